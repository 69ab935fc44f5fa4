"""Which of the available IDs are best, where no scheduler chose cards. Pure, and never an error."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate
from operator import add, itemgetter

from agent.core.devices.memory_units import on_one_card
from agent.core.devices.topology import Topology
from agent.core.model import Resource
from agent.vendor_api.agent import BY_TREE

#: How many sets of cards are compared one by one (under 2 ms). With more sets the choice is greedy.
EXHAUSTIVE = 1000
#: Up to this number of cards each is tried first in a greedy choice; of more, as many as EFFORT allows.
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

    Memory units, and replicas that are kept together, come from one card. `room`: card to the number of IDs
    that it can hold, with the required ones, where the free IDs do not say that. Of other replicas more may
    be required than `size`: then the required ones are the answer, as NVIDIA's plugin has it. By the tree,
    replicas come from the fullest card that has enough of them, and from several cards where none has.
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
    held = Counter(_card_of(resource, device_id) for device_id in must)
    by_tree = resource.policy == BY_TREE
    if is_alone or (by_tree and resource.rule.sharing.kind != "exclusive"):
        chosen = _choose_on_one_card(resource, left, must, held, size, room)
        if chosen or is_alone:
            return chosen
    count, known = size - len(must), sum(map(len, left.values()))
    if known <= count:  # IDs with which an Allocate is refused come last
        listed = [device_id for ids in left.values() for device_id in ids]
        return must + listed + sorted(free.difference(listed))[: count - known]
    if (
        (by_tree or resource.policy == "aligned")
        and all(len(ids) == 1 for ids in left.values())
        and max(held.values(), default=1) == 1
        and held.keys().isdisjoint(left)
    ):
        choose = partial(_choose_by_tree, resource) if by_tree else _choose_aligned
        return must + [left[card][0] for card in choose(topology, list(left), list(held), count)]
    return must + _choose_greedily(resource, left, held, count)


def _choose_on_one_card(
    resource: Resource,
    left: Mapping[str, list[str]],
    must: list[str],
    held: Counter[str],
    size: int,
    room: Mapping[str, int] | None,
) -> list[str]:
    """The lowest IDs of the card where they fit best; [] if they fit nowhere.

    Required IDs decide on the card.
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
    """The card with room for `count` IDs that has least to spare, or most where pods are spread."""
    sign = -1 if resource.policy == "distributed" else 1
    fitting = [card.uuid for card in resource.cards if free.get(card.uuid, 0) >= count]
    return min(fitting, key=lambda uuid: sign * free[uuid], default=None)


def _card_of(resource: Resource, device_id: str) -> str:
    card = resource.card_of(device_id)
    return card.uuid if card else device_id  # an unknown ID counts as a card of its own


def _choose_greedily(
    resource: Resource, left: Mapping[str, list[str]], held: Counter[str], count: int
) -> list[str]:
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


def _choose_aligned(topology: Topology, free: Sequence[str], held: Sequence[str], count: int) -> list[str]:
    """The free cards that are nearest to each other and to the held cards; of equal sets the first."""
    return [free[card] for card in _nearest_set(topology.rows([*free, *held]), len(free), count)]


def _choose_by_tree(
    resource: Resource, topology: Topology, free: Sequence[str], held: Sequence[str], count: int
) -> list[str]:
    """The free cards that the tree of the resource's cards offers beside the held cards."""
    # An agent without the policy starts without the tree.
    from agent.core.allocation.tree_choice import whole_cards
    from agent.core.devices.topology_tree import topology_tree

    tree = topology_tree(topology, (card.uuid for card in resource.cards))
    required = [card for card in held if card in tree.cards]
    chosen = whole_cards(tree, free, len(required) + count, required)
    return [card for card in chosen if card not in required]


def _nearest_set(rows: Rows, free: int, count: int) -> tuple[int, ...]:
    """The best set among the first `free` cards of the score matrix `rows`. The other cards are held."""
    # The worth of a card: how near it is to the chosen ones; among equals, how little the other cards lose.
    unit = 1 + sum(map(sum, rows))
    near = [[unit * score for score in row[:free]] for row in rows[:free]]
    worth = [unit * sum(row[free:]) - sum(row[:free]) for row in rows[:free]]
    if math.comb(free, count) <= EXHAUSTIVE:
        return _best_set(near, worth, range(free), count)[1]
    # What a card may bring in later: the scores of its nearest cards, free or chosen.
    promise = list(
        zip(*(accumulate(sorted(row, reverse=True)[:count], initial=0) for row in near), strict=True)
    )
    hopes = list(map(add, worth, promise[count - 1]))
    tries = free if free <= FEW else max(4, EFFORT // (count * free))
    first = sorted(range(free), key=hopes.__getitem__, reverse=True)[:tries]
    return max((_grow_set(near, worth, promise, card, count) for card in first), key=itemgetter(0))[1]


def _best_set(near: Rows, worth: Sequence[float], others: Sequence[int], count: int) -> Chosen:
    """The best of all sets; of equal sets the first."""
    if count == 1:
        card = max(others, key=worth.__getitem__)
        return worth[card], (card,)
    sets: list[Chosen] = []
    for at, card in enumerate(others[: len(others) - count + 1]):
        value, rest = _best_set(near, list(map(add, worth, near[card])), others[at + 1 :], count - 1)
        sets.append((worth[card] + value, (card, *rest)))
    return max(sets, key=itemgetter(0))


def _grow_set(near: Rows, worth: Sequence[float], promise: Rows, card: int, count: int) -> Chosen:
    """A set that grows from one card, each time by the card with the highest worth and promise."""
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
