"""How a scheduler's choice of cards becomes the kubelet's: GetPreferredAllocation names IDs on them. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from math import floor

from agent.core.allocation.card_amounts import HAIR, CardAmounts, fit, left
from agent.core.allocation.pod_attribution import WaitingPods, intended
from agent.core.allocation.preferred_allocation import best_fit, prefer
from agent.core.devices.memory_units import counted_in, on_one_card
from agent.core.devices.topology import Topology
from agent.core.model import Allocation, Resource
from agent.scheduler_api import Claim, Part

#: Where nothing is measured but IDs are counted.
BY_IDS = CardAmounts()


def steered(
    resource: Resource,
    available: Sequence[str],
    required: Sequence[str],
    size: int,
    topology: Topology,
    waiting: WaitingPods,
    room: Mapping[str, int] | None = None,
) -> list[str]:
    """`size` of the available IDs, the required ones among them, on the cards of who most likely asks.

    Who was promised nothing is kept from the cards of who was, as long as there are others. `room` is for
    `prefer`.
    """
    cards = {one: card.uuid for one in available if (card := resource.card_of(one))}
    held = {cards[one] for one in required if one in cards}
    aim = intended(resource.name, size, held, {*cards.values()}, waiting)
    if aim.cards and (chosen := _even(aim.cards, available, required, size, cards)):
        return chosen
    others = [one for one in available if one in required or cards.get(one) not in aim.avoid]
    chosen = prefer(resource, others, required, size, topology, room) if aim.avoid else []
    return chosen or prefer(resource, available, required, size, topology, room)


def _even(
    aim: Sequence[str],
    available: Sequence[str],
    required: Sequence[str],
    size: int,
    cards: Mapping[str, str],
) -> list[str]:
    """As many IDs of each of these cards, the first ones more where it does not come out; [] if it fails."""
    must = list(dict.fromkeys(required))
    left = {
        uuid: deque(one for one in available if cards.get(one) == uuid and one not in must) for uuid in aim
    }
    got = Counter(cards[one] for one in must if one in cards)
    chosen = must
    while len(chosen) < size:
        uuid = min((it for it in aim if left[it]), key=lambda it: got[it], default=None)
        if uuid is None:
            return []
        chosen.append(left[uuid].popleft())
        got[uuid] += 1
    return chosen if len(chosen) == size and set(got) == set(aim) else []


def holders(in_use: Iterable[Allocation], resource: str) -> dict[str, str]:
    """Card to the uid of the pod that has it, as the kubelet or else a claim says."""
    return {
        uuid: it.place[0]
        for it in in_use
        if it.resource == resource and it.place is not None
        for uuid in it.cards
    }


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
    """Whether a container with any of these claims fits on these cards, whatever IDs those before bear.

    `count`: of its replicas, by which it counts where nobody measured more exactly what it is promised.
    `sick`: also on cards that are given to nobody new, for who has them already.
    """
    if len(uuids) > count or (on_one_card(resource.rule.sharing) and len(set(uuids)) > 1):
        return False
    each, more = divmod(count, len(uuids))
    wanted = Counter([*uuids] * each + [*uuids[:more]])
    free = free_on(resource, in_use, sick=sick, amounts=amounts)
    return all(
        _fits(uuid, wanted[uuid], free, in_use, amounts, amounts.promised(claim, uuid, len(wanted)))
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
    return uuid in free and fit(amounts.on(uuid, in_use), part)


def free_on(
    resource: Resource, in_use: Iterable[Allocation], *, sick: bool = False, amounts: CardAmounts = BY_IDS
) -> Mapping[str, int]:
    """Card to how many replicas or units of memory more fit on it, wherever their IDs are of.

    What a card lists beyond its number, for who has it, is no room of it. An ID that containers of a pod have
    one after another takes room once (kubelet, devicesToReuse); of made hardware each of them has its own.
    What was promised in percent or in bytes takes as many of them as these are of the card.
    """
    in_use = tuple(in_use)
    there: defaultdict[tuple[str, str], list[Sequence[str]]] = defaultdict(list)
    for it in in_use:
        whose = it.id if it.partitions else it.place[0] if it.place else ""
        for n, uuid in enumerate(it.cards if it.resource == resource.name else ()):
            there[whose, uuid].append(it.ids[n :: len(it.cards)] if len(it.cards) > 1 else it.ids)
    taken: Counter[str] = Counter()
    for (_, uuid), its in there.items():  # of units there are thousands
        taken[uuid] += len(its[0]) if len(its) == 1 else len(set().union(*its))
    free = {}
    for card in resource.cards:
        if not (card.healthy or sick):
            continue
        free[card.uuid] = card.shares - taken[card.uuid]
        if amounts.is_measured_on(card.uuid, in_use):
            free[card.uuid] = floor((left(amounts.on(card.uuid, in_use)) + HAIR) * card.shares)
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

    It gives out no ID twice; but shares that lie on other cards than their IDs say take the room of these,
    and what was promised in percent or in bytes it does not count. What lies on one card has room on one
    card alone.
    """
    cards = [card.uuid for card in resource.cards_of(ids) if card is not None]
    exact = counted_in(resource.rule.sharing)
    alone = on_one_card(resource.rule.sharing) and len(set(cards)) > 1
    shares = all(map(resource.shares, ids))
    known = {*cards}
    lies = any(it.diverged for it in others)
    measured = any(amounts.is_measured_on(it, others) for it in known) or any(
        amounts.promised(claim, uuid, len(known)) is not None for claim in claims for uuid in known
    )
    if not (exact or alone) and not ((lies or measured) and shares):
        return True
    return has_room(resource, cards, len(ids), others, sick=True, amounts=amounts, claims=claims)


def roomier(
    resource: Resource, count: int, others: Iterable[Allocation], *, amounts: CardAmounts = BY_IDS
) -> tuple[str, ...]:
    """Where as many fit: one card, or else a card for each; none where there is no room.

    What lies on one card goes where it fits best.
    """
    free = free_on(resource, others, amounts=amounts)
    if on_one_card(resource.rule.sharing):
        best = best_fit(resource, free, count)
        return () if best is None else (best,)
    fullest_last = sorted(free, key=lambda uuid: -free[uuid])
    units = [uuid for uuid in fullest_last for _ in range(free[uuid])][:count]
    return () if len(units) < count else tuple(units) if len(set(units)) > 1 else (units[0],)
