"""Pod attribution: matches waiting pods to a request, which does not name its pod. Pure.

The kubelet's checkpoint shows later which pod sent the request.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

from msgspec import Struct, structs

from agent.core.allocation.card_choice import card_finder, knows_room
from agent.core.allocation.container_allocations import containers_with_allocation
from agent.core.allocation.current_holders import card_holders
from agent.core.allocation.holder_texts import claims_on_cards
from agent.core.allocation.taken_room import TakenRoom
from agent.core.allocation.vendor_requests import names_no_card
from agent.core.attribution.claim_reading import any_claims
from agent.core.attribution.scheduler_promises import Promises
from agent.core.attribution.waiting_claims import WaitingClaims
from agent.core.attribution.waiting_pods import WaitingPods, waiting_for
from agent.core.errors import AgentError
from agent.core.model import Resource
from agent.scheduler_api.claims import Claim


class Attribution(Struct, frozen=True):
    """The claim that is most likely behind a request.

    `why_uncertain` says why it may be another claim, or why none is known.
    """

    claim: Claim | None = None
    why_uncertain: str = ""
    #: Claims on other cards for the same number of IDs, in the order of their pods. Without `claim` all such
    #: claims. Where `claim` names no card, these are the claims of the pods before its pod.
    elsewhere: tuple[Claim, ...] = ()
    #: Whether a pod without any claim waits for the same number of IDs.
    unclaimed: bool = False
    #: Where the claim names no card: the other claims without a card that the request may be for.
    alike: tuple[Claim, ...] = ()
    #: The claims of the containers that the kubelet may ask for now. Several, where their order is not known.
    #: None stands for a container without a claim.
    possible_claims: tuple[Claim | None, ...] = ()

    def with_room_for(self, claim: Claim) -> tuple[Claim | None, ...]:
        """The claims that need room if this claim is answered: any of their containers may have asked."""
        return self.possible_claims if claim in self.possible_claims else (claim, *self.possible_claims)


def attribute(resource: str, count: int, cards: Collection[str], waiting: WaitingPods) -> Attribution:
    """The claim behind a request for `count` IDs on these cards.

    Only containers that ask for exactly this number of IDs count. The pod that the kubelet heard of first
    comes first, or else the oldest pod. Of the pods that the kubelet found at its start, the oldest comes
    first.
    """
    claims = WaitingClaims(resource, waiting)
    return structs.replace(
        _find_claim(claims, count, cards), possible_claims=tuple(claims.claims_that_may_ask(count))
    )


def _find_claim(waiting: WaitingClaims, count: int, cards: Collection[str]) -> Attribution:
    wanted = set(cards)
    claims, others = waiting.claims_for_count(count)
    exact = [it for it in claims if not it.devices or set(it.devices) == wanted]
    fitting = exact or [
        replace(claim, devices=other)
        for claim in claims
        for other in (waiting.cards_of_equal_claims(claim, wanted), waiting.cards_after_swaps(claim))
        if other and set(other) == wanted
    ]
    if fitting:
        anywhere = () if fitting[0].devices else tuple(it for it in fitting[1:] if not it.devices)
        before = () if fitting[0].devices else tuple(claims[: claims.index(fitting[0])])
        return Attribution(fitting[0], _explain_uncertainty(fitting, others), before, bool(others), anywhere)
    if claims:
        why = f"claims are on other cards: {claims_on_cards(claims[:3])}"
        return Attribution(None, why, tuple(claims), bool(others))
    without_claim = f"{others[0]} asks for as much and has no claim" if others else ""
    why = "; ".join(waiting.unreadable[:3]) or without_claim or "no pod that waits has a claim"
    return Attribution(None, why, unclaimed=bool(others))


def _explain_uncertainty(fitting: Sequence[Claim], others: Sequence[str]) -> str:
    if others:
        return f"{others[0]} asks for as much and has no claim"
    return f"one of {len(fitting)} claims that fit" if len(fitting) > 1 else ""


def claims_due(resource: str, waiting: WaitingPods) -> tuple[Claim, ...]:
    """The claims on chosen cards of pods that wait and were not refused."""
    claims = WaitingClaims(resource, waiting).claims_due()
    return tuple(it for it in claims if it.devices and it.uid not in waiting.refused)


def any_promised(resource: str, waiting: WaitingPods) -> bool:
    """Whether a scheduler promised something of the resource to any of the pods."""
    claims, pods = WaitingClaims(resource, waiting), waiting.candidates
    locked = chain.from_iterable(pods.by_name.get(name, ()) for name in waiting.locked)
    return any(claims.claims_of_pod(pod.uid) for pod in locked if not pod.over) or any_claims(
        pods, resource, waiting.dialects, waiting.devices
    )


def most_likely_pod(attribution: Attribution, resource: str, count: int, waiting: WaitingPods) -> str:
    """The uid of the pod that is refused most likely with this request; empty where none is known."""
    if attribution.claim is not None:
        return attribution.claim.uid
    if attribution.elsewhere and not attribution.unclaimed:
        return attribution.elsewhere[0].uid
    return next((pod.uid for pod, _ in WaitingClaims(resource, waiting).pods(count)), "")


def pods_that_may_ask(resource: str, count: int, waiting: WaitingPods) -> tuple[str, ...]:
    """The uids of the pods that may ask next for this number of IDs; several where no order is known."""
    return tuple(pod.uid for pod, _ in WaitingClaims(resource, waiting).pods_that_may_ask(count))


def is_awaited(promises: Promises, resource: str, count: int) -> bool:
    """Whether a known pod waits for this number of IDs."""
    candidates = promises.scene.candidates
    taken = containers_with_allocation(promises.in_use, resource, candidates)
    pods = waiting_for(resource, count, candidates, taken)
    return any(pod.uid not in promises.refused for pod in pods)


def is_promised(promises: Promises, resource: str, count: int) -> bool:
    """Whether this number of IDs was promised to a known pod that waits."""
    attribution = attribute(resource, count, (), waiting_pods(promises, resource))
    claims = (attribution.claim, *attribution.elsewhere)
    return any(claim is not None and claim.uid not in promises.refused for claim in claims)


def is_chosen_for(promises: Promises, resource: str) -> bool:
    """Whether a scheduler promised cards of the resource to any pod, waiting or served."""
    return any_promised(resource, waiting_pods(promises, resource))


def suspected_pod(promises: Promises, resource: str, ids: Collection[str]) -> str:
    """The uid of the pod that a refused request most likely came from; empty where none is known."""
    if (served := promises.served(resource)) is None:
        return ""
    unique = tuple(dict.fromkeys(ids))
    pods = waiting_pods(promises, resource)
    return most_likely_pod(_attribute_ids(promises, served[0], unique, pods), resource, len(unique), pods)


def suspected_pods(promises: Promises, resource: str, ids: Collection[str]) -> tuple[str, ...]:
    """The uids of the pods that a refused request may have come from, the most likely one first."""
    if not (first := suspected_pod(promises, resource, ids)):
        return ()
    others = pods_that_may_ask(resource, len(set(ids)), waiting_pods(promises, resource))
    return tuple(dict.fromkeys((first, *others)))


def attribute_request(promises: Promises, planned: Resource, ids: Sequence[str]) -> Attribution:
    """The claim behind an admitted request."""
    scene = promises.scene
    if not (scene.candidates and promises.dialects(planned)):
        why = f"no pod is seen: {scene.unseen}" if scene.unseen else "no pod of this node is known"
        return Attribution(why_uncertain=why)
    attribution = _attribute_ids(promises, planned, ids, waiting_pods(promises, planned.name, ids))
    cards = [claim.devices for claim in attribution.possible_claims if claim is not None and claim.devices]
    # The hardware of this answer can move to another card once the pod is known: the first pod decides.
    vendor = scene.vendors[planned.vendor]
    can_move = names_no_card(scene, vendor, planned.name, ids, cards)
    return structs.replace(attribution, possible_claims=()) if can_move else attribution


def _attribute_ids(
    promises: Promises, planned: Resource, ids: Sequence[str], pods: WaitingPods
) -> Attribution:
    """The claim behind a request for these IDs; where the order of the pods is known, of the next pod."""
    cards = {card.uuid for card in map(planned.card_of, ids) if card is not None}
    attribution = attribute(planned.name, len(ids), cards, pods)
    if not all(map(planned.shares, ids)) or not (asking := _claims_of_next_pod(promises, attribution)):
        return attribution
    # The kubelet had no IDs left on the card of this pod. A claim of another pod is not meant.
    why = f"claims are on other cards: {claims_on_cards(asking)}"
    return structs.replace(attribution, claim=None, why_uncertain=why, elsewhere=asking, unclaimed=False)


def _claims_of_next_pod(promises: Promises, attribution: Attribution) -> tuple[Claim, ...]:
    """The claims of the pod that asks now, where only one pod can and its cards are not those of the IDs.

    There are several claims where containers of that pod ask for the same number of IDs.
    """
    asking = tuple(it for it in attribution.possible_claims if it is not None and it.devices)
    if len({claim and claim.uid for claim in attribution.possible_claims}) != 1 or not asking:
        return ()
    uid = asking[0].uid
    if attribution.claim is not None and (not attribution.claim.devices or attribution.claim.uid == uid):
        return ()
    if attribution.claim is None and all(claim.uid != uid for claim in attribution.elsewhere):
        return ()
    scene = promises.scene
    pod = scene.candidates.by_uid.get(uid)
    has_known_order = pod is not None and bool(pod.appeared) and uid not in scene.pods_at_kubelet_start
    return asking if has_known_order and uid not in promises.refused else ()


def waiting_pods(promises: Promises, resource: str, free: Collection[str] = ()) -> WaitingPods:
    """All that is known of the pods that may ask for the resource.

    `free`: IDs that the kubelet gives out now. In the ledger they may still belong to pods that have ended.
    """
    planned, scene = promises.scene.plan[resource], promises.scene
    is_whole = planned.rule.sharing.kind == "exclusive"
    taken = containers_with_allocation(promises.in_use, resource, scene.candidates)
    return WaitingPods(
        candidates=scene.candidates,
        dialects=promises.dialects(planned),
        devices=promises.cards(planned.vendor),
        taken=taken,
        cards_of_container=taken.cards_of,
        holders=card_holders(promises.in_use, resource, free) if is_whole else {},
        locked=scene.locked,
        failed={card.uuid for card in planned.cards if not card.healthy},
        refused=promises.refused,
        pods_at_kubelet_start=scene.pods_at_kubelet_start,
        find_cards_with_room=partial(_cards_for_claim, promises, planned),
        guessed=promises.guessed,
    )


def due_claims(promises: Promises, planned: Resource) -> Sequence[Claim]:
    """The claims of waiting pods on chosen cards of the resource."""
    return claims_due(planned.name, waiting_pods(promises, planned.name))


def _cards_for_claim(promises: Promises, planned: Resource, claim: Claim, count: int) -> Sequence[str]:
    """The cards that can serve a claim without cards, best one first; none where that is not known."""
    if not knows_room(promises.scene.vendors[planned.vendor], planned):
        return ()
    taken, due = TakenRoom(planned.name, promises.in_use), due_claims(promises, planned)
    try:
        return card_finder(promises.scene, promises.in_use, planned, count, taken, due)(claim.parameters)
    except AgentError:  # the Allocate is refused with this error
        return ()
