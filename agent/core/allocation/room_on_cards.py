"""The room that is left on cards: by device IDs, or by the amounts that schedulers promised. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import floor

from agent.core.allocation.best_free_ids import best_fit
from agent.core.allocation.card_amounts import ROUNDING, fit, room_left
from agent.core.allocation.taken_room import TakenRoom
from agent.core.devices.memory_units import counted_in, on_one_card
from agent.core.model import AdvertisedDevice, Resource
from agent.scheduler_api.claims import Claim


def has_room(
    resource: Resource,
    uuids: Sequence[str],
    count: int,
    taken: TakenRoom,
    *,
    sick: bool = False,
    claims: Sequence[Claim | None] = (None,),
) -> bool:
    """Whether a container with any of these claims fits on these cards, whichever IDs earlier ones have.

    `count`: the number of IDs, which count where no dialect measures the claim. `sick`: unhealthy cards
    count too, for a container that has them already.
    """
    if len(uuids) > count or (on_one_card(resource.rule.sharing) and len(set(uuids)) > 1):
        return False
    each, more = divmod(count, len(uuids))
    wanted = Counter([*uuids] * each + [*uuids[:more]])
    listed = [card for card in resource.cards if card.uuid in wanted]
    free = {card.uuid: _free_on_card(card, taken) for card in listed if card.healthy or sick}
    parts = [(uuid, taken.amounts.amount_of_claim(it, uuid, len(wanted))) for uuid in wanted for it in claims]
    return all(
        wanted[uuid] <= free.get(uuid, 0) if part is None else uuid in free and fit(taken.amount(uuid), part)
        for uuid, part in parts
    )


def free_by_card(resource: Resource, taken: TakenRoom, *, sick: bool = False) -> Mapping[str, int]:
    """Card to the number of replicas or memory units that still fit on it.

    Allocations count on the cards where they lie, whatever cards their IDs name. IDs that a card lists only
    for pods that hold them are no room. An ID that several containers of a pod have one after another takes
    room once (kubelet, devicesToReuse); made hardware takes room for each container. A promise in percent or
    in bytes takes that part of the card.
    """
    listed = (card for card in resource.cards if card.healthy or sick)
    return {card.uuid: _free_on_card(card, taken) for card in listed}


def free_ids_by_card(resource: Resource, taken: TakenRoom) -> Mapping[str, int]:
    """The same by device IDs alone, whatever was promised."""
    healthy = (card for card in resource.cards if card.healthy)
    return {card.uuid: card.shares - taken.ids_taken(card.uuid) for card in healthy}


def _free_on_card(card: AdvertisedDevice, taken: TakenRoom) -> int:
    if taken.is_measured(card.uuid):
        return floor((room_left(taken.amount(card.uuid)) + ROUNDING) * card.shares)
    return card.shares - taken.ids_taken(card.uuid)


def is_as_counted(
    resource: Resource, ids: Sequence[str], taken: TakenRoom, *, claims: Sequence[Claim | None] = (None,)
) -> bool:
    """Whether the cards of these IDs have the room that the kubelet counts there.

    The kubelet gives out no ID twice. It does not know of shares on other cards than their IDs name, nor of
    promises in percent or in bytes. IDs that must lie on one card need the room on that card.
    """
    cards = [card.uuid for card in resource.cards_of(ids) if card is not None]
    exact = counted_in(resource.rule.sharing)
    alone = on_one_card(resource.rule.sharing) and len(set(cards)) > 1
    shares = all(map(resource.shares, ids))
    known = {*cards}
    measured = any(map(taken.is_measured, known)) or any(
        taken.amounts.amount_of_claim(claim, uuid, len(known)) is not None
        for claim in claims
        for uuid in known
    )
    if not (exact or alone) and not ((taken.diverged() or measured) and shares):
        return True
    return has_room(resource, cards, len(ids), taken, sick=True, claims=claims)


def other_cards_with_room(resource: Resource, count: int, taken: TakenRoom) -> tuple[str, ...]:
    """Cards with room for `count` IDs: one card for all, or else a card for each; none without room.

    IDs that must lie on one card go where they fit best.
    """
    free = free_by_card(resource, taken)
    if on_one_card(resource.rule.sharing):
        best = best_fit(resource, free, count)
        return () if best is None else (best,)
    fullest_last = sorted(free, key=lambda uuid: -free[uuid])
    units = [uuid for uuid in fullest_last for _ in range(free[uuid])][:count]
    return () if len(units) < count else tuple(units) if len(set(units)) > 1 else (units[0],)
