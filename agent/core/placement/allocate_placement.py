"""Chooses the claim and the cards of an admitted request, or says why it cannot be placed. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import floor
from operator import itemgetter

from msgspec import Struct

from agent.core.allocation import room_on_cards
from agent.core.allocation.admission import Admitted
from agent.core.allocation.allocations_in_use import AllocationsInUse
from agent.core.allocation.card_amounts import ROUNDING
from agent.core.allocation.card_choice import FindCards, card_finder, first_that_fits, knows_room
from agent.core.allocation.holder_texts import claims_on_cards, first_of, holder_name
from agent.core.allocation.taken_room import TakenRoom
from agent.core.attribution.dialects_of_resource import choosing_scheduler
from agent.core.attribution.pod_attribution import Attribution, attribute_request, due_claims
from agent.core.attribution.scheduler_promises import Promises
from agent.core.devices.dynamic_modes import holder_in_other_mode
from agent.core.devices.memory_units import counted_in, on_one_card
from agent.core.errors import (
    InOtherMode,
    InsufficientMemory,
    InsufficientShares,
    NotPromised,
    PromisedElsewhere,
    PromisedMoreCards,
)
from agent.core.model import Resource
from agent.scheduler_api.claims import Claim
from agent.vendor_api.text import shorten

#: Reasons for a refusal, after the name of the card.
FILLED = "which is full of allocations with IDs of other cards"
ON_ONE = "but all shares of one container must be on one card"


class PlacementChoice(Struct, frozen=True):
    """The claim of a request, and its cards. `actual_cards` is empty where these are the cards of its IDs."""

    claim: Claim | None = None
    actual_cards: tuple[str, ...] = ()


class PlacedRequest(Struct, frozen=True):
    """An admitted request with its claim and cards."""

    request: Admitted
    choice: PlacementChoice


class CardRequest(Struct, frozen=True):
    """An admitted request, with all that decides on its cards."""

    promises: Promises
    admitted: Admitted
    #: The claim behind the request, as far as the waiting pods show.
    attribution: Attribution
    #: What takes room on the resource's cards.
    taken: TakenRoom

    @property
    def planned(self) -> Resource:
        """The resource that is asked for."""
        return self.admitted.resource

    @property
    def ids(self) -> Sequence[str]:
        """The device IDs that the kubelet chose."""
        return self.admitted.ids

    @property
    def cards_of_ids(self) -> Sequence[str]:
        """The cards of the IDs, sorted."""
        return self.admitted.uuids

    def has_room(self, uuids: Sequence[str], claims: Sequence[Claim | None]) -> bool:
        """Whether these cards have room for the request with any of these claims."""
        return bool(uuids) and room_on_cards.has_room(
            self.planned, uuids, len(self.ids), self.taken, claims=claims
        )

    def has_room_for(self, claim: Claim) -> bool:
        """Whether the cards of the claim have room for each of the claims that may be meant."""
        return self.has_room(claim.devices, self.attribution.with_room_for(claim))

    def is_as_counted(self, claims: Sequence[Claim | None] = (None,)) -> bool:
        """Whether the cards of the IDs have the room that the kubelet counts there."""
        return room_on_cards.is_as_counted(self.planned, self.ids, self.taken, claims=claims)

    def refusal(self, why: str) -> PromisedElsewhere:
        """The error that refuses the request."""
        return PromisedElsewhere(self.planned.name, self.cards_of_ids, why)


def place_request(promises: Promises, request: Admitted, others: AllocationsInUse) -> PlacedRequest:
    """Place a request. `others`: the allocations that share no ID with the request.

    The kubelet gives an ID out again once its pod has ended, so the other allocations take no room.

    Raises:
        AllocationError: A scheduler chose other cards, or there is no room.
        InOtherMode: Another resource has one of the cards.
    """
    choice = choose_cards(promises, request, others)
    _refuse_other_mode(promises, request, choice.actual_cards or [it.uuid for it in request.devices])
    return PlacedRequest(request, choice)


def choose_cards(promises: Promises, admitted: Admitted, others: AllocationsInUse) -> PlacementChoice:
    """The claim of a request, and its cards. `others`: the allocations that share no ID with the request.

    Raises:
        PromisedElsewhere: A scheduler chose another card, which cannot be had by these IDs.
        PromisedMoreCards: A scheduler chose more cards than there are IDs.
        InsufficientMemory, InsufficientShares: No single card has enough.
        NotPromised: A scheduler had to choose, and did not.
    """
    planned, scene, amounts = admitted.resource, promises.scene, promises.amounts(admitted.resource)
    attribution = attribute_request(promises, planned, admitted.ids)
    taken = promises.in_the_way(planned, others, amounts)
    request = CardRequest(promises, admitted, attribution, taken)
    by_amount = knows_room(admitted.vendor, planned)
    if attribution.claim is not None and by_amount and not attribution.claim.devices:
        return _choose_card_by_amount(request, attribution.claim)
    if attribution.claim is not None:
        return _choose_claimed_cards(request, attribution.claim)
    if planned.rule.placement != "local":
        if attribution.elsewhere and (planned.rule.placement == "claim" or not attribution.unclaimed):
            return _choose_other_claimed_cards(request)
        if planned.rule.placement == "claim":
            raise NotPromised(planned.name, attribution.why_uncertain, choosing_scheduler(scene.schedulers))
    if by_amount:  # the limits of the pod are not known yet: the card with most room can take them
        cards = _find_cards(request)({})[: len(admitted.ids)]
        return PlacementChoice(None, () if {*request.cards_of_ids} == {*cards} else cards)
    return _choose_cards_of_ids(request)


def _choose_claimed_cards(request: CardRequest, claim: Claim) -> PlacementChoice:
    """Choose the cards where the claim names the cards of the IDs, or no card."""
    if not claim.devices:
        return PlacementChoice(claim, _find_other_cards(request))
    if on_one_card(request.planned.rule.sharing) and len(request.cards_of_ids) > 1:
        why = f"{claim.namespace}/{claim.pod} is promised {len(request.cards_of_ids)} cards, {ON_ONE}"
        raise request.refusal(why)
    claims = request.attribution.with_room_for(claim)
    if request.is_as_counted(claims):
        return PlacementChoice(claim)
    for asking in claims:  # the first claim with cards that have room for each of the claims
        if asking is not None and request.has_room(asking.devices, claims):
            return PlacementChoice(asking, asking.devices)
    if left := _cards_left_for(request, claim):
        return PlacementChoice(claim, left)
    raise request.refusal(f"{claim.namespace}/{claim.pod} is promised that one, {_why_full(request)}")


def _choose_other_claimed_cards(request: CardRequest) -> PlacementChoice:
    """Choose the cards where claims are on other cards than those of the IDs."""
    claims, ids = request.attribution.elsewhere, request.ids
    if all(len(claim.devices) > len(ids) for claim in claims):
        raise _too_few_ids_error(request, claims[0])
    taken = _why_taken(request)
    if not all(map(request.planned.shares, ids)):
        raise request.refusal("; ".join((request.attribution.why_uncertain, *taken)))
    for claim in claims:
        if request.has_room_for(claim):
            return PlacementChoice(claim, claim.devices)
    for claim in claims:
        if left := _cards_left_for(request, claim):
            return PlacementChoice(claim, left if {*left} != {*request.cards_of_ids} else ())
    raise request.refusal("; ".join((f"{request.attribution.why_uncertain}, which have no room", *taken)))


def _too_few_ids_error(request: CardRequest, claim: Claim) -> PromisedMoreCards:
    dialects = request.promises.dialects(request.planned)
    counts = (dialect.card_count for dialect in dialects if dialect.name == claim.dialect)
    count = next(filter(None, counts), "")
    fewer = f"{len(request.ids)} of {count}" if count else "as few cards"
    pod = f"{claim.namespace}/{claim.pod}"
    return PromisedMoreCards(request.planned.name, pod, len(request.ids), claim.devices, fewer)


def _choose_cards_of_ids(request: CardRequest) -> PlacementChoice:
    """Place a request of a pod without a claim.

    Another waiting pod may have sent the request. If that pod has a claim that needs more room, the card must
    have room for that claim.
    """
    claims = request.attribution.possible_claims
    promised = [asking for asking in claims if asking is not None and asking.devices]
    if not promised or request.planned.rule.placement == "local":
        return PlacementChoice(None, _find_other_cards(request))
    if request.is_as_counted(claims):
        return PlacementChoice(None)
    for asking in promised:
        if request.has_room(asking.devices, claims):
            return PlacementChoice(asking, asking.devices)
    raise request.refusal(f"{_why_full(request)}, and claims are on other cards: {claims_on_cards(promised)}")


def _choose_card_by_amount(request: CardRequest, claim: Claim) -> PlacementChoice:
    """Choose a card where the claim says how much of a card, and not which card.

    Raises:
        InsufficientRoom, NotServable: No card can take the request, whatever pod asks.
    """
    for earlier in request.attribution.elsewhere:  # the pod that asks first; its card had no IDs left
        if request.has_room_for(earlier):
            return PlacementChoice(earlier, earlier.devices)
    count, given = len(request.ids), request.cards_of_ids
    chosen, cards = first_that_fits((claim, *request.attribution.alike), count, _find_cards(request))
    if len(given) == count and {*given} <= {*cards}:
        return PlacementChoice(chosen)
    return PlacementChoice(chosen, cards[:count])


def _find_cards(request: CardRequest) -> FindCards:
    promises, planned = request.promises, request.planned
    due = due_claims(promises, planned)
    return card_finder(
        promises.scene, promises.in_use, planned, len(request.ids), request.taken, due, request.cards_of_ids
    )


def _cards_left_for(request: CardRequest, claim: Claim) -> tuple[str, ...]:
    """Cards that pods on the cards of this claim were promised and did not get; none where all are taken.

    The kubelet may take equal pods in another order than they were bound.
    """
    claims = request.attribution.with_room_for(claim)
    passed, cards = {*claim.devices}, [*claim.devices]
    for card in cards:  # the list grows
        for promised in _promised_to_pods_on(request, card):
            if not passed.isdisjoint(promised):
                continue
            if request.has_room(promised, claims):
                return promised
            passed |= {*promised}
            cards += promised
    return ()


def _promised_to_pods_on(request: CardRequest, card: str) -> Iterator[tuple[str, ...]]:
    """The cards that were chosen for the pods that have the same number of IDs on this card."""
    promises, pods = request.promises, request.promises.pods
    for other in request.taken.on_card(card):
        if other.container_key is not None and len(other.ids) == len(request.ids):
            claim = promises.claim_of(other, pods.get(other.container_key[0]), other.container_key[1])
            if claim is not None and claim.devices:
                yield claim.devices


def _why_taken(request: CardRequest) -> Sequence[str]:
    """Why the kubelet may not have given the claimed cards: the first reasons, one sentence each."""
    planned = request.planned
    wanted = dict.fromkeys(uuid for claim in request.attribution.elsewhere for uuid in claim.devices)
    cards = {card.uuid: card for card in planned.cards}
    counted = {it.id for uuid in wanted for it in request.taken.on_card(uuid)}
    blocking = [it for it in request.promises.in_use if it.resource != planned.name or it.id in counted]
    listed = [cards[uuid] for uuid in wanted if uuid in cards]
    sick = [f"{shorten(it.uuid)} is unhealthy" for it in listed if not it.healthy and not it.mode]
    foreign = [f"{shorten(uuid)} is not of this resource" for uuid in wanted if uuid not in cards]
    held = [
        f"{shorten(uuid)} is held by {holder_name(allocation, planned.name)}"
        for allocation in blocking
        for uuid in allocation.cards
        if uuid in wanted
    ]
    return first_of([*sick, *foreign, *held], str)


def _find_other_cards(request: CardRequest) -> tuple[str, ...]:
    """Other cards with room; none where the cards of the IDs have room.

    Raises:
        PromisedElsewhere: No card has room.
        InsufficientMemory, InsufficientShares: No single card has enough.
    """
    planned, count, taken = request.planned, len(request.ids), request.taken
    if request.is_as_counted():
        return ()
    if roomier := room_on_cards.other_cards_with_room(planned, count, taken):
        return roomier
    if not on_one_card(planned.rule.sharing):
        raise request.refusal(f"{_why_full(request)}, and no other card has room")
    free = room_on_cards.free_by_card(planned, taken)
    roomy = ((uuid, left) for uuid, left in free.items() if left > 0)
    largest = max(roomy, key=itemgetter(1), default=None)
    unit = counted_in(planned.rule.sharing)
    if not unit:
        raise InsufficientShares(planned.name, count, largest)
    words = request.admitted.vendor.offers.insufficient_memory
    raise InsufficientMemory(planned.name, words, count, unit, largest)


def _why_full(request: CardRequest) -> str:
    """Why the cards of the IDs have no room."""
    uuids, taken = request.cards_of_ids, request.taken
    if not any(map(taken.is_measured, uuids)):
        return FILLED
    fullest = max(map(taken.amount, uuids), key=lambda it: it.core + it.memory)
    core, memory = (_percent(1 - part) for part in (fullest.core, fullest.memory))
    return f"which has {core} % of its cores and {memory} % of its memory left"


def _percent(part: float) -> str:
    """The part in percent, rounded down: too little by a fraction must not look like enough."""
    return f"{max(0, floor(1000 * (part + ROUNDING))) / 10:g}"


def _refuse_other_mode(promises: Promises, request: Admitted, uuids: Sequence[str]) -> None:
    """Refuse a card that went to another resource since the plan was made.

    An ID that another plugin gave to a pod stays listed while that pod may be there. Once the pod has ended,
    the kubelet may give that ID to another pod.

    Raises:
        InOtherMode: One of the cards has gone to another resource.
    """
    planned = request.resource
    for card in planned.cards:
        if card.mode and card.uuid in uuids and not any(device_id in card.held for device_id in request.ids):
            raise InOtherMode(planned.name, card.uuid, card.mode)
    for uuid in dict.fromkeys(uuids):
        of_others = promises.in_use.of_others_on_card(planned.name, uuid)
        if (allocation := holder_in_other_mode(planned, uuid, of_others)) is not None:
            name = holder_name(allocation, allocation.resource)
            raise InOtherMode(planned.name, uuid, allocation.resource, name)
