"""The room that is left on cards: by device IDs, or by the amounts that schedulers promised. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import floor

from agent.core.allocation.best_free_ids import best_fit
from agent.core.allocation.card_amounts import ROUNDING, CardAmounts, fit, room_left
from agent.core.devices.memory_units import counted_in, on_one_card
from agent.core.model import Allocation, Resource
from agent.scheduler_api.claims import Claim, Part

#: Counts IDs alone.
BY_IDS = CardAmounts()


def has_room(
    resource: Resource,
    uuids: Sequence[str],
    count: int,
    in_use: Sequence[Allocation],
    *,
    sick: bool = False,
    amounts: CardAmounts = BY_IDS,
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
    free = free_by_card(resource, in_use, sick=sick, amounts=amounts)
    return all(
        _fits(uuid, wanted[uuid], free, in_use, amounts, amounts.amount_of_claim(claim, uuid, len(wanted)))
        for uuid in wanted
        for claim in claims
    )


def _fits(
    uuid: str,
    count: int,
    free: Mapping[str, int],
    in_use: Iterable[Allocation],
    amounts: CardAmounts,
    part: Part | None,
) -> bool:
    if part is None:
        return count <= free.get(uuid, 0)
    return uuid in free and fit(amounts.amount_on_card(uuid, in_use), part)


def free_by_card(
    resource: Resource, in_use: Iterable[Allocation], *, sick: bool = False, amounts: CardAmounts = BY_IDS
) -> Mapping[str, int]:
    """Card to the number of replicas or memory units that still fit on it.

    Allocations count on the cards where they lie, whatever cards their IDs name. IDs that a card lists only
    for pods that hold them are no room. An ID that several containers of a pod have one after another takes
    room once (kubelet, devicesToReuse); made hardware takes room for each container. A promise in percent or
    in bytes takes that part of the card.
    """
    in_use = tuple(in_use)
    ids_by_place: defaultdict[tuple[str, str], list[Sequence[str]]] = defaultdict(list)
    for allocation in in_use:
        holder = (
            allocation.id
            if allocation.partitions
            else allocation.container_key[0]
            if allocation.container_key
            else ""
        )
        for n, uuid in enumerate(allocation.cards if allocation.resource == resource.name else ()):
            ids_by_place[holder, uuid].append(
                allocation.ids[n :: len(allocation.cards)] if len(allocation.cards) > 1 else allocation.ids
            )
    taken: Counter[str] = Counter()
    for (_, uuid), id_lists in ids_by_place.items():  # of units there are thousands
        taken[uuid] += len(id_lists[0]) if len(id_lists) == 1 else len(set().union(*id_lists))
    free = {}
    for card in resource.cards:
        if not (card.healthy or sick):
            continue
        free[card.uuid] = card.shares - taken[card.uuid]
        if amounts.is_measured_on(card.uuid, in_use):
            free[card.uuid] = floor(
                (room_left(amounts.amount_on_card(card.uuid, in_use)) + ROUNDING) * card.shares
            )
    return free


def is_as_counted(
    resource: Resource,
    ids: Sequence[str],
    others: Sequence[Allocation],
    *,
    amounts: CardAmounts = BY_IDS,
    claims: Sequence[Claim | None] = (None,),
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
    diverged = any(it.diverged for it in others)
    measured = any(amounts.is_measured_on(it, others) for it in known) or any(
        amounts.amount_of_claim(claim, uuid, len(known)) is not None for claim in claims for uuid in known
    )
    if not (exact or alone) and not ((diverged or measured) and shares):
        return True
    return has_room(resource, cards, len(ids), others, sick=True, amounts=amounts, claims=claims)


def other_cards_with_room(
    resource: Resource, count: int, others: Iterable[Allocation], *, amounts: CardAmounts = BY_IDS
) -> tuple[str, ...]:
    """Cards with room for `count` IDs: one card for all, or else a card for each; none without room.

    IDs that must lie on one card go where they fit best.
    """
    free = free_by_card(resource, others, amounts=amounts)
    if on_one_card(resource.rule.sharing):
        best = best_fit(resource, free, count)
        return () if best is None else (best,)
    fullest_last = sorted(free, key=lambda uuid: -free[uuid])
    units = [uuid for uuid in fullest_last for _ in range(free[uuid])][:count]
    return () if len(units) < count else tuple(units) if len(set(units)) > 1 else (units[0],)
