"""Which devices koord-scheduler takes for a pod, given what is free.

Restated from koordinator a7a1b76b, pkg/scheduler/plugins/deviceshare: allocator_gpu.go,
allocator_gpu_helper.go, device_allocator.go, device_resources.go, scoring.go, topology_hint.go.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from .amounts import Amounts, left
from .wishes import MEMORY, RATIO, RDMA, Unschedulable, Wish

#: What a device is scored by.
_SCORED = (RATIO, MEMORY, RDMA)
_LEVELS = {"": 0, "Node": 1, "NUMANode": 2, "PCIe": 3, "Device": 4}
#: What groups of so many linked cards count where one is to be spared.
_SPARED = {8: 10_000, 4: 100, 2: 1}


@dataclass(frozen=True, slots=True)
class Card:
    type: str
    minor: int
    id: str
    #: Nothing of one that is unhealthy.
    total: Amounts
    topology: Mapping[str, Any] | None
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def numa(self) -> int:
        return self.topology["nodeID"] if self.topology else -1

    @property
    def pcie(self) -> str:
        return self.topology["pcieID"] if self.topology else ""


@dataclass(frozen=True, slots=True)
class Part:
    """A card, and how much of it."""

    card: Card
    resources: Amounts


@dataclass(frozen=True, slots=True)
class Node:
    #: By type and minor.
    cards: Mapping[str, Mapping[int, Card]]
    used: Mapping[str, Mapping[int, Amounts]]
    #: How many cards to the groups that are linked.
    partitions: Mapping[int, Sequence[Mapping[str, Any]]]
    honors: bool

    def free(self, type: str) -> dict[int, dict[str, int]]:
        used = self.used.get(type, {})
        return {minor: left(it.total, used.get(minor, {})) for minor, it in self.cards.get(type, {}).items()}


Wishes = Mapping[str, Wish]
Choice = dict[str, list[Part]]


def narrowest(node: Node, wanted: Wishes, hints: Mapping[str, Any], joint: Any) -> Choice:
    """On as few NUMA nodes as can be (topology_hint.go), those first that all of them would choose."""
    numas = sorted({it.numa for its in node.cards.values() for it in its.values() if it.numa >= 0})
    best = chosen(node, wanted, hints, joint, numas or None)
    for size in range(1, len(numas)):
        found = []
        for mask in combinations(numas, size):
            try:
                found.append(chosen(node, wanted, hints, joint, mask))
            except Unschedulable:
                continue
        if found:
            return next((it for it in found if it.get("gpu") == best.get("gpu")), found[0])
    return best


def chosen(
    node: Node, wanted: Wishes, hints: Mapping[str, Any], joint: Any, numas: Collection[int] | None = None
) -> Choice:
    """Device type to the parts of devices, in the order of allocation; `numas`: on these nodes alone.

    Raises:
        Unschedulable: There is not enough.
    """
    types = [it for it in (joint or {}).get("deviceTypes", ()) if it in wanted]
    found: Choice = {}
    if len(wanted) > 1 and types:
        first, *others = types
        found[first] = _of_type(node, first, wanted[first], hints.get(first, {}), numas)
        roots = {it.card.pcie for it in found[first]}
        strict = joint.get("requiredScope") == "SamePCIe"
        for it in others:
            found[it] = _of_type(node, it, wanted[it], hints.get(it, {}), numas, roots, strict)
            if strict and {one.card.pcie for one in found[it]} != roots:
                raise Unschedulable("node(s) Device Joint-Allocate rules violation")
    for it in wanted.keys() - found.keys():
        found[it] = _of_type(node, it, wanted[it], hints.get(it, {}), numas)
    return {it: found[it] for it in sorted(found)}


def _of_type(
    node: Node,
    type: str,
    wish: Wish,
    hint: Mapping[str, Any],
    numas: Collection[int] | None,
    roots: Collection[str] = (),
    strict: bool = False,
) -> list[Part]:
    if not node.cards.get(type):
        raise Unschedulable(f"Insufficient {type} devices")
    selector = hint.get("selector", {}).get("matchLabels", {})
    allowed = {
        it.minor: it
        for it in node.cards[type].values()
        if numas is None or (it.topology is not None and it.numa in (-1, *numas))
        if selector.items() <= it.labels.items()
    }
    free = {minor: its for minor, its in node.free(type).items() if minor in allowed}
    if type == "gpu":
        if minors := _of_partition(node, wish, allowed) or _of_scope(node, wish, hint, allowed, free):
            return [Part(allowed[it], wish.each) for it in minors]
        roots = ()
    least = max(wish.count, len(roots)) if strict else wish.count
    most = max(least, len(roots))
    minors = [it for it in _scored(wish, allowed, free, roots) if any(free[it].values())]
    fitting = [it for it in minors if _fits(wish, free[it])][:most]
    if len(fitting) < least:
        raise Unschedulable(f"Insufficient {type} devices")
    return [Part(allowed[it], wish.each) for it in fitting]


def _fits(wish: Wish, free: Amounts) -> bool:
    """What the device does not have at all is not asked for (quotav1.LessThanOrEqual)."""
    return all(wish.each.get(name, 0) <= amount for name, amount in free.items())


def _score(wish: Wish, total: Amounts, free: Amounts) -> int:
    """LeastAllocated: the emptier the better."""
    scores = []
    for name in _SCORED:
        if all_ := total.get(name, 0):
            rest = free.get(name, 0)
            asked = all_ - rest + wish.each.get(name, 0) if all_ >= rest else all_
            scores.append((all_ - asked) * 100 // all_ if asked <= all_ else 0)
    return sum(scores) // len(scores) if scores else 0


def _scored(
    wish: Wish, cards: Mapping[int, Card], free: Mapping[int, Amounts], roots: Collection[str]
) -> list[int]:
    """By score, those under the wanted PCIe roots before, one of each root in turn."""

    def place(minor: int) -> tuple[int, int]:
        return -_score(wish, cards[minor].total, free[minor]), minor

    minors = sorted(cards, key=place)
    groups = {root: [it for it in minors if cards[it].pcie == root] for root in roots}
    most = max(map(len, groups.values()), default=0)
    near = [
        it
        for turn in range(most)
        for it in sorted((its[turn] for its in groups.values() if turn < len(its)), key=place)
    ]
    return [*near, *(it for it in minors if it not in near)]


def _of_partition(node: Node, wish: Wish, allowed: Mapping[int, Card]) -> list[int]:
    """A group of linked cards that are all untouched; none where nobody insists on one."""
    if wish.shared:
        return []
    used = set(node.used.get("gpu", {}))
    well = {minor for minor, it in allowed.items() if any(it.total.values())}
    found: list[Sequence[int]] = []
    groups = node.partitions.get(wish.count, ())
    for score in sorted({it["allocationScore"] for it in groups}):  # the lowest first, whatever is meant
        found = [
            it["minors"]
            for it in groups
            if it["allocationScore"] == score
            and used.isdisjoint(it["minors"])
            and well.issuperset(it["minors"])
        ]
        if found:
            break
    if not found:
        if node.honors:
            raise Unschedulable("Insufficient Partitioned GPU Devices")
        return []
    return list(max(found, key=lambda its: _spared(node, wish, used.union(its))))


def _spared(node: Node, wish: Wish, used: Collection[int]) -> int:
    """What larger groups are left whole."""
    spared = 0
    for size, worth in _SPARED.items():
        groups = node.partitions.get(size, ()) if size >= wish.count else ()
        lowest = min((it["allocationScore"] for it in groups), default=0)
        free = [it for it in groups if it["allocationScore"] == lowest and not set(used) & set(it["minors"])]
        spared += worth * lowest * len(free)
    return spared


@dataclass(frozen=True, slots=True)
class _Found:
    minors: list[int]
    depth: int
    #: How many of the scopes around them are in use already.
    touched: int
    score: int


@dataclass(frozen=True, slots=True)
class _Scope:
    level: int
    minors: Sequence[int]
    inner: Sequence[_Scope] = ()


def _of_scope(
    node: Node, wish: Wish, hint: Mapping[str, Any], allowed: Mapping[int, Card], free: Mapping[int, Amounts]
) -> list[int]:
    """Cards of the narrowest scope (PCIe root, NUMA node, node) that has them, and of those the fullest."""
    required = hint.get("requiredTopologyScope", "")
    cards = node.cards["gpu"].values()
    if any(it.topology is None for it in cards) or (wish.shared and wish.count > 1):
        if required:
            raise Unschedulable("node(s) missing GPU Device Topology Tree")
        return []
    search = _Search(node, wish, _LEVELS[required], allowed, free)
    found = search.within(_tree(list(cards)), 0, 0)
    if found is None:
        scoped = "Topology Scoped " if required else ""
        raise Unschedulable(f"Insufficient {scoped}GPU Devices")
    return found.minors


def _tree(cards: Sequence[Card]) -> _Scope:
    def roots(numa: int) -> Iterator[_Scope]:
        for root in sorted({it.pcie for it in cards if it.numa == numa}):
            yield _Scope(3, sorted(it.minor for it in cards if (it.numa, it.pcie) == (numa, root)))

    numas = [
        _Scope(2, sorted(it.minor for it in cards if it.numa == numa), tuple(roots(numa)))
        for numa in sorted({it.numa for it in cards})
    ]
    return _Scope(1, sorted(it.minor for it in cards), numas)


@dataclass(frozen=True, slots=True)
class _Search:
    node: Node
    wish: Wish
    level: int
    allowed: Mapping[int, Card]
    free: Mapping[int, Amounts]

    def within(self, scope: _Scope, depth: int, touched: int) -> _Found | None:
        if len(scope.minors) < self.wish.count:
            return None
        depth += 1
        touched += not self.node.used.get("gpu", {}).keys().isdisjoint(scope.minors)
        best: _Found | None = None
        for it in scope.inner:
            found = self.within(it, depth, touched)
            if found and (best is None or self._is_better(found, best)):
                best = found
        if best is not None:
            return best
        return self._here(scope, depth, touched) if self.level <= scope.level else None

    def _is_better(self, found: _Found, best: _Found) -> bool:
        mine, its = (found.depth, found.touched), (best.depth, best.touched)
        return mine > its or (self.wish.shared and mine == its and found.score > best.score)

    def _here(self, scope: _Scope, depth: int, touched: int) -> _Found | None:
        fitting = [
            it
            for it in scope.minors
            if it in self.allowed and any(self.allowed[it].total.values()) and _fits(self.wish, self.free[it])
        ]
        if not self.wish.shared:
            enough = len(fitting) >= self.wish.count
            return _Found(fitting[: self.wish.count], depth, touched, -1) if enough else None
        if not fitting:
            return None
        # The original hands over total and free the other way round: one that is in use scores nothing.
        scores = {it: _score(self.wish, self.free[it], self.allowed[it].total) for it in fitting}
        one = max(fitting, key=lambda it: scores[it])
        return _Found([one], depth, touched, scores[one])
