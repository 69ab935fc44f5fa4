"""Which of the available IDs to take: GetPreferredAllocation's answer. Pure, and never an error."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import combinations

from agent.core.model import Resource
from agent.core.topology import Topology

#: Sets of cards that are compared one by one (under 2 ms); beyond it the choice is greedy.
EXHAUSTIVE = 1000
READABLE = 4096


def prefer(
    resource: Resource, available: Sequence[str], required: Sequence[str], size: int, topology: Topology
) -> list[str]:
    """Exactly `size` distinct available IDs including the required ones, or [] where that is impossible."""
    free = dict.fromkeys(available)
    must = list(dict.fromkeys(required))
    if not 0 < size <= len(free) or len(must) > size or any(it not in free for it in must):
        return []
    if len(must) == size:
        return must
    cards = _Cards(resource)
    left: dict[str, list[str]] = {}
    for device_id in _ordered(set(free) - set(must)):
        left.setdefault(cards.of(device_id), []).append(device_id)
    left = _known(left, resource, size - len(must))
    held = Counter(map(cards.of, must))
    if (
        resource.policy == "aligned"
        and all(len(ids) == 1 for ids in left.values())
        and max(held.values(), default=1) == 1
        and held.keys().isdisjoint(left)
    ):
        chosen = _aligned(topology, frozenset(left), frozenset(held), size)
        return must + [left[card][0] for card in chosen if card not in held]
    return must + _greedy(resource, left, held, size - len(must))


def _known(left: dict[str, list[str]], resource: Resource, count: int) -> dict[str, list[str]]:
    """Without the IDs that we would refuse in Allocate, as long as enough others are there."""
    ours = {card.uuid for card in resource.cards}
    known = {card: ids for card, ids in left.items() if card in ours}
    return known if sum(map(len, known.values())) >= count else left


class _Cards:
    """Finds the card of an ID quickly; 58,000 IDs must not take longer than a pod's patience."""

    def __init__(self, resource: Resource) -> None:
        self._stems = {card.ids.stem: card.uuid for card in resource.cards if card.ids is not None}
        self._kept = {device_id: card.uuid for card in resource.cards for device_id in card.kept}

    def of(self, device_id: str) -> str:
        found = self._kept.get(device_id) or self._stems.get(device_id)
        if found is None:
            stem, separator, _ = device_id.rpartition("::")
            found = self._stems.get(stem) if separator else None
        return found or device_id  # an ID that nobody knows counts as a card of its own


def _greedy(resource: Resource, left: dict[str, list[str]], held: Counter[str], count: int) -> list[str]:
    """Take IDs one by one: from the least used card when spreading, from the most used when packing."""
    total = {card.uuid: len(card) for card in resource.cards}
    sign = 1 if resource.policy == "distributed" else -1
    picked = Counter(held)

    def rank(card: str) -> tuple[int, int, str]:
        used = total.get(card, 1) - len(left[card])
        return sign * used, sign * picked[card], card

    chosen: list[str] = []
    for _ in range(count):
        card = min((name for name, ids in left.items() if ids), key=rank)
        chosen.append(left[card].pop())
        picked[card] += 1
    return chosen


def _ordered(ids: set[str]) -> Sequence[str]:
    """Last first, so that pop() takes the lowest; beyond a few thousand nobody reads the order."""
    if len(ids) > READABLE:
        return list(ids)
    return sorted(ids, key=lambda it: (len(it), it), reverse=True)


@lru_cache(maxsize=1024)
def _aligned_memo(key: tuple[tuple[int, ...], ...], must: tuple[int, ...], size: int) -> tuple[int, ...]:
    """The best set over an index matrix of pair scores; memoised by topology, not by name."""
    everyone = range(len(key))
    others = [card for card in everyone if card not in must]
    missing = size - len(must)
    if math.comb(len(others), missing) <= EXHAUSTIVE:
        candidates: Iterable[tuple[int, ...]] = (must + rest for rest in combinations(others, missing))
    else:
        candidates = (_grown(key, must or (seed,), others, size) for seed in others)
    return max(candidates, key=lambda chosen: _worth(key, chosen))


def _worth(key: tuple[tuple[int, ...], ...], chosen: tuple[int, ...]) -> tuple[int, int]:
    """How near the chosen cards are to each other; among equals, how little the others lose."""
    inside = sum(key[a][b] for a in chosen for b in chosen)
    cut = sum(sum(key[a]) for a in chosen) - inside
    return inside, -cut


def _grown(
    key: tuple[tuple[int, ...], ...], start: tuple[int, ...], others: Sequence[int], size: int
) -> tuple[int, ...]:
    chosen = list(start)
    while len(chosen) < size:
        chosen.append(
            max(
                (card for card in others if card not in chosen),
                key=lambda card: (sum(key[card][it] for it in chosen), -sum(key[card]), -card),
            )
        )
    return tuple(sorted(chosen))


def _aligned(topology: Topology, free: frozenset[str], must: frozenset[str], size: int) -> list[str]:
    names = sorted(free | must)
    key = tuple(tuple(topology.score(a, b) for b in names) for a in names)
    required = tuple(index for index, name in enumerate(names) if name in must)
    return [names[index] for index in _aligned_memo(key, required, size)]
