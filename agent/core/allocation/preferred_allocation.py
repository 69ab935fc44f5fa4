"""Which of the available IDs to take: GetPreferredAllocation's answer. Pure, and never an error."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from operator import add, itemgetter

from agent.core.devices.memory_units import on_one_card
from agent.core.devices.topology import Topology
from agent.core.model import Resource

#: Sets of cards that are compared one by one (under 2 ms); beyond it the choice is greedy.
EXHAUSTIVE = 1000
#: Up to so many cards each is tried as the first of a greedy choice; beyond it as many as time allows.
FEW = 16
EFFORT = 1 << 13

Rows = Sequence[Sequence[int]]
Chosen = tuple[float, tuple[int, ...]]


def prefer(
    resource: Resource,
    available: Sequence[str],
    required: Sequence[str],
    size: int,
    topology: Topology,
    room: Mapping[str, int] | None = None,
) -> list[str]:
    """Exactly `size` distinct available IDs including the required ones, or [] where that is impossible.

    Units of memory, and replicas that are kept together, are of one card; `room` says how many it holds,
    those required among them, where the IDs that are free there do not say it. Of other replicas more may be
    required than are asked for: then it is those, as NVIDIA's plugin answers.
    """
    free = set(available)
    must = list(dict.fromkeys(required))
    if not 0 < size <= len(free) or not free.issuperset(must):
        return []
    is_alone = on_one_card(resource.rule.sharing)
    if len(must) >= size and not is_alone:
        return must if len(must) == size or resource.policy != "aligned" else []
    free.difference_update(must)
    left = {
        card.uuid: ids
        for card in resource.cards
        if card.healthy and (ids := list(filter(free.__contains__, card)))
    }
    held = Counter(_card(resource, device_id) for device_id in must)
    if is_alone:
        return _on_one_card(resource, left, must, held, size, room)
    count, known = size - len(must), sum(map(len, left.values()))
    if known <= count:  # IDs that we would refuse in Allocate come last
        ours = [device_id for ids in left.values() for device_id in ids]
        return must + ours + sorted(free.difference(ours))[: count - known]
    if (
        resource.policy == "aligned"
        and all(len(ids) == 1 for ids in left.values())
        and max(held.values(), default=1) == 1
        and held.keys().isdisjoint(left)
    ):
        chosen = _aligned(topology, list(left), list(held), count)
        return must + [left[card][0] for card in chosen]
    return must + _greedy(resource, left, held, count)


def _on_one_card(
    resource: Resource,
    left: Mapping[str, list[str]],
    must: list[str],
    held: Counter[str],
    size: int,
    room: Mapping[str, int] | None,
) -> list[str]:
    """The lowest IDs of the card where they fit best, which is that of the required ones; [] if they fit
    nowhere.
    """
    count = size - len(must)
    free = {
        uuid: len(ids) if room is None else min(len(ids), room.get(uuid, 0) - held[uuid])
        for uuid, ids in left.items()
        if not held or uuid in held
    }
    if count <= 0 or len(held) > 1:
        return must if count == 0 and len(held) == 1 else []
    best = best_fit(resource, free, count)
    return [] if best is None else [*must, *left[best][:count]]


def best_fit(resource: Resource, free: Mapping[str, int], count: int) -> str | None:
    """The card that has room for as many, and least of all to spare; most of all where pods are spread."""
    sign = -1 if resource.policy == "distributed" else 1
    fitting = [card.uuid for card in resource.cards if free.get(card.uuid, 0) >= count]
    return min(fitting, key=lambda uuid: sign * free[uuid], default=None)


def _card(resource: Resource, device_id: str) -> str:
    card = resource.card_of(device_id)
    return card.uuid if card else device_id  # an ID that nobody knows counts as a card of its own


def _greedy(resource: Resource, left: Mapping[str, list[str]], held: Counter[str], count: int) -> list[str]:
    """Take IDs one by one: from the least used card when spreading, from the most used when packing."""
    sign = 1 if resource.policy == "distributed" else -1
    ranks = [
        (sign * (len(card) - len(left[card.uuid])), sign * held[card.uuid], place, card.uuid)
        for place, card in enumerate(resource.cards)
        if card.uuid in left
    ]
    heapq.heapify(ranks)
    lowest = {card: iter(ids) for card, ids in left.items()}
    chosen: list[str] = []
    while len(chosen) < count:
        used, picked, place, card = ranks[0]
        device_id = next(lowest[card], None)
        if device_id is None:
            heapq.heappop(ranks)
        else:
            chosen.append(device_id)
            heapq.heapreplace(ranks, (used + sign, picked + sign, place, card))
    return chosen


def _aligned(topology: Topology, free: Sequence[str], held: Sequence[str], count: int) -> list[str]:
    """The free cards that are nearest to each other and to those held already; of equals the first."""
    return [free[card] for card in _nearest(topology.rows([*free, *held]), len(free), count)]


def _nearest(rows: Rows, free: int, count: int) -> tuple[int, ...]:
    """The best set among the first `free` of the cards whose pair scores these are; the others are held."""
    # A card is worth how near it is to the chosen ones and, among equals, how little the others lose by it.
    unit = 1 + sum(map(sum, rows))
    near = [[unit * score for score in row[:free]] for row in rows[:free]]
    worth = [unit * sum(row[free:]) - sum(row[:free]) for row in rows[:free]]
    if math.comb(free, count) <= EXHAUSTIVE:
        return _best(near, worth, range(free), count)[1]
    # What a card may bring in later: its nearest so many, whether they are free still or chosen.
    promise = list(
        zip(*(accumulate(sorted(row, reverse=True)[:count], initial=0) for row in near), strict=True)
    )
    hopes = list(map(add, worth, promise[count - 1]))
    tries = free if free <= FEW else max(4, EFFORT // (count * free))
    first = sorted(range(free), key=hopes.__getitem__, reverse=True)[:tries]
    return max((_grown(near, worth, promise, card, count) for card in first), key=itemgetter(0))[1]


def _best(near: Rows, worth: Sequence[float], others: Sequence[int], count: int) -> Chosen:
    """The best of all sets; of equals the first."""
    if count == 1:
        card = max(others, key=worth.__getitem__)
        return worth[card], (card,)
    found: list[Chosen] = []
    for at, card in enumerate(others[: len(others) - count + 1]):
        value, rest = _best(near, list(map(add, worth, near[card])), others[at + 1 :], count - 1)
        found.append((worth[card] + value, (card, *rest)))
    return max(found, key=itemgetter(0))


def _grown(near: Rows, worth: Sequence[float], promise: Rows, card: int, count: int) -> Chosen:
    """A set that grows from a card, each time by the one that is worth and promises most."""
    value: float = 0
    chosen: list[int] = []
    while len(chosen) < count:
        if chosen:
            hopes = list(map(add, worth, promise[count - len(chosen) - 1]))
            card = hopes.index(max(hopes))
        value += worth[card]
        chosen.append(card)
        worth = list(map(add, worth, near[card]))
        worth[card] = -math.inf
    return value, tuple(chosen)
