"""The tree of a node's cards: which cards hang below one switch, one host bridge, one NUMA node. Pure.

The tree is that of TKEStack's gpu-manager (v1.1.0, pkg/device/nvidia/tree.go), with differences where that
program ends or answers wrongly: more than 32 cards, a card that no other card is joined with, and direct
lanes where a text shows lanes alone.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import combinations

from agent.core.devices.topology import Topology
from agent.vendor_api.agent import Distance, Link


class Level(IntEnum):
    """What joins the cards of a node of the tree, nearest first; the numbers are nvmlGpuTopologyLevel_t."""

    CARD = 0  # a leaf
    LANES = 5  # direct lanes where no path is known, and slices of one card
    SWITCH = 10
    SWITCHES = 20
    HOST_BRIDGE = 30
    NUMA_NODE = 40
    SYSTEM = 50
    ROOT = 60


#: gpu-manager counts the chips of one board as cards below one switch.
_LEVELS: Mapping[Distance, Level] = {
    Distance.BOARD: Level.SWITCH,
    Distance.SWITCH: Level.SWITCH,
    Distance.SWITCHES: Level.SWITCHES,
    Distance.HOST_BRIDGE: Level.HOST_BRIDGE,
    Distance.NUMA_NODE: Level.NUMA_NODE,
    Distance.SYSTEM: Level.SYSTEM,
}

#: A level, and the cards that are joined there: a bit for each card.
_Group = tuple[Level, int]
#: The groups of each level, oldest first; the nearest level first.
_Groups = Sequence[tuple[Level, Sequence[int]]]


@dataclass(frozen=True, slots=True)
class TreeNode:
    """Cards that one level joins, as a bit for each place in `TopologyTree.cards`. A leaf has no children."""

    level: Level
    members: int
    children: tuple[TreeNode, ...] = ()

    @property
    def first(self) -> int:
        """The lowest place of a member; -1 without members."""
        return (self.members & -self.members).bit_length() - 1

    @property
    def is_root(self) -> bool:
        return self.level is Level.ROOT

    def count(self, cards: int) -> int:
        """How many of these cards are members."""
        return (self.members & cards).bit_count()


@dataclass(frozen=True, slots=True)
class TopologyTree:
    """The tree over `cards`, uuids in the order of their indices. What is in use is never part of the tree.

    A card that no level joins with another card hangs at the root, and so do all cards where no link is
    known.
    """

    cards: tuple[str, ...]
    root: TreeNode

    def bits(self, uuids: Collection[str]) -> int:
        """The places of these cards, as bits; other uuids are left out."""
        return sum(1 << place for place, uuid in enumerate(self.cards) if uuid in uuids)

    def uuids(self, bits: int) -> Iterator[str]:
        """The cards at these places, lowest first."""
        return (uuid for place, uuid in enumerate(self.cards) if bits >> place & 1)


def topology_tree(topology: Topology, uuids: Iterable[str]) -> TopologyTree:
    """The tree over these cards, the same for each order in which the cards and their links are given."""
    devices = topology.devices

    def order(uuid: str) -> tuple[float, int, str]:
        device = devices.get(uuid)
        return (math.inf, 0, uuid) if device is None else (device.index, device.slice or 0, uuid)

    cards = tuple(sorted(set(uuids), key=order))
    groups, root = _joined(_levels(topology, cards)), (Level.ROOT, (1 << len(cards)) - 1)
    below: dict[_Group, set[_Group]] = defaultdict(set)
    for place in range(len(cards)):
        group = (Level.CARD, 1 << place)
        while group != root:
            above = _above(group, groups) or root
            if group in below[above]:
                break
            below[above].add(group)
            group = above
    return TopologyTree(cards, _node(root, below))


def _node(group: _Group, below: Mapping[_Group, Collection[_Group]]) -> TreeNode:
    children = [_node(it, below) for it in below.get(group, ())]
    children.sort(key=lambda node: (node.first, node.members))
    return TreeNode(*group, tuple(children))


def _above(group: _Group, groups: _Groups) -> _Group | None:
    """The nearest group above that shares a card with this one, and of several at a level the oldest."""
    level, members = group
    for above, known in groups:
        if above > level:
            for others in known:
                if others & members:
                    return above, others
    return None


def _joined(levels: Iterable[tuple[Level, int]]) -> _Groups:
    """The groups of each level: a pair joins the oldest group that has one of both cards."""
    groups: dict[Level, list[int]] = defaultdict(list)
    for level, pair in levels:
        known = groups[level]
        for place, members in enumerate(known):
            if members & pair:
                known[place] |= pair
                break
        else:
            known.append(pair)
    return sorted(groups.items())


def _levels(topology: Topology, cards: Sequence[str]) -> Iterator[tuple[Level, int]]:
    """The level of each pair that has one, in the order of the cards, with the bits of the pair.

    A link that only one side reports counts for both.
    """
    devices = topology.devices
    own = [devices[it].parent or it if it in devices else it for it in cards]
    reach = {uuid: _reach(devices[uuid].links) if uuid in devices else {} for uuid in own}
    for left, right in combinations(range(len(cards)), 2):
        here, there = own[left], own[right]
        level, back = reach[here].get(there), reach[there].get(here)
        if here == there:
            level = Level.LANES
        elif level is None or (back is not None and back < level):
            level = back
        if level is not None:
            yield level, 1 << left | 1 << right


def _reach(links: Iterable[Link]) -> Mapping[str, Level]:
    """Peer to level. Lanes beside a path do not count, as NVML's common ancestor does not count NVLink."""
    return {
        link.peer: Level.LANES if link.lanes and link.distance is Distance.BOARD else _LEVELS[link.distance]
        for link in links
    }
