"""Which of the available IDs to take: GetPreferredAllocation's answer. Pure, and never an error."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import add, itemgetter

from agent.core.model import Resource
from agent.core.topology import Topology

#: Sets of cards that are compared one by one (under 2 ms); beyond it the choice is greedy.
EXHAUSTIVE = 1000
#: Up to so many cards each is tried as the first of a greedy choice; beyond it as many as time allows.
FEW = 16
EFFORT = 1 << 15

Matrix = tuple[tuple[int, ...], ...]
Near = list[list[int]]
Chosen = tuple[int, tuple[int, ...]]


def prefer(
    resource: Resource, available: Sequence[str], required: Sequence[str], size: int, topology: Topology
) -> list[str]:
    """Exactly `size` distinct available IDs including the required ones, or [] where that is impossible."""
    free = set(available)
    must = list(dict.fromkeys(required))
    if not 0 < size <= len(free) or len(must) > size or not free.issuperset(must):
        return []
    if len(must) == size:
        return must
    free.difference_update(must)
    left = {card.uuid: ids for card in resource.cards if (ids := list(filter(free.__contains__, card)))}
    held = Counter(_card(resource, device_id) for device_id in must)
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
        chosen = _aligned(topology, frozenset(left), frozenset(held), size)
        return must + [left[card][0] for card in chosen if card not in held]
    return must + _greedy(resource, left, held, count)


def _card(resource: Resource, device_id: str) -> str:
    card = resource.card_of(device_id)
    return card.uuid if card else device_id  # an ID that nobody knows counts as a card of its own


def _greedy(resource: Resource, left: Mapping[str, list[str]], held: Counter[str], count: int) -> list[str]:
    """Take IDs one by one: from the least used card when spreading, from the most used when packing."""
    sign = 1 if resource.policy == "distributed" else -1
    ranks = [
        (sign * (len(card) - len(left[card.uuid])), sign * held[card.uuid], card.uuid)
        for card in resource.cards
        if card.uuid in left
    ]
    heapq.heapify(ranks)
    lowest = {card: iter(ids) for card, ids in left.items()}
    chosen: list[str] = []
    while len(chosen) < count:
        used, picked, card = ranks[0]
        device_id = next(lowest[card], None)
        if device_id is None:
            heapq.heappop(ranks)
        else:
            chosen.append(device_id)
            heapq.heapreplace(ranks, (used + sign, picked + sign, card))
    return chosen


def _aligned(topology: Topology, free: frozenset[str], must: frozenset[str], size: int) -> list[str]:
    names = sorted(free | must)
    scores = topology.scores
    key = tuple(tuple([scores.get((a, b), 0) for b in names]) for a in names)
    required = tuple(index for index, name in enumerate(names) if name in must)
    return [names[index] for index in _aligned_memo(key, required, size)]


@lru_cache(maxsize=1024)
def _aligned_memo(key: Matrix, must: tuple[int, ...], size: int) -> tuple[int, ...]:
    """The best set over an index matrix of pair scores; memoised by topology, not by name."""
    others = [card for card in range(len(key)) if card not in must]
    missing = size - len(must)
    # A card is worth how near it is to the chosen ones and, among equals, how little the others lose by it.
    unit = 1 + sum(map(sum, key))
    near = [[unit * score for score in row] for row in key]
    worth = [-sum(row) for row in key]
    for card in must:
        worth = list(map(add, worth, near[card]))
    if math.comb(len(others), missing) <= EXHAUSTIVE:
        return must + _best(near, worth, others, missing)[1]
    out = -4 * unit * unit
    worth = [out if card in must else it for card, it in enumerate(worth)]
    starts = [()] if must else [(seed,) for seed in _seeds(near, size)]
    return must + max((_grown(near, worth, start, missing, out) for start in starts), key=itemgetter(0))[1]


def _best(near: Near, worth: list[int], others: list[int], missing: int) -> Chosen:
    """The best of all sets; of equals the first."""
    if missing == 1:
        card = max(others, key=worth.__getitem__)
        return worth[card], (card,)
    found: list[Chosen] = []
    for at, card in enumerate(others[: len(others) - missing + 1]):
        value, rest = _best(near, list(map(add, worth, near[card])), others[at + 1 :], missing - 1)
        found.append((worth[card] + value, (card, *rest)))
    return max(found, key=itemgetter(0))


def _seeds(near: Near, size: int) -> Sequence[int]:
    """The cards to begin with; of many, those with the nearest neighbours."""
    cards = range(len(near))
    if len(near) <= FEW:
        return cards
    kin = [sum(sorted(row, reverse=True)[: size - 1]) for row in near]
    return sorted(cards, key=kin.__getitem__, reverse=True)[: max(4, EFFORT // (size * len(near)))]


def _grown(near: Near, worth: list[int], start: tuple[int, ...], missing: int, out: int) -> Chosen:
    """A set that grows by the card that is worth most; `out` is the worth of a card that is taken."""
    value = 0
    chosen: list[int] = []
    while len(chosen) < missing:
        card = start[0] if start and not chosen else worth.index(max(worth))
        value += worth[card]
        chosen.append(card)
        worth = list(map(add, worth, near[card]))
        worth[card] = out
    return value, tuple(chosen)
