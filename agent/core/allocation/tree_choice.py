"""Which cards a request gets by the tree of the cards: near ones, those of a broken group, the fullest. Pure.

The three ways are the evaluators of TKEStack's gpu-manager (v1.1.0, pkg/algorithm/nvidia), without the count
of processes on a card. Of equal choices the one with the smallest index is taken: later releases take any of
them (c961e77c).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import islice

from agent.core.devices.topology_tree import TopologyTree, TreeNode


@dataclass(frozen=True, slots=True)
class CardRoom:
    """What is left of a card, in the units of the request. `index` decides between equal cards."""

    uuid: str
    index: int
    cores: int
    memory: int


@dataclass(frozen=True, slots=True)
class _Wanted:
    """`count` cards out of `free`, among them `required`; cards are bits."""

    free: int
    required: int
    count: int

    def fits(self, node: TreeNode) -> bool:
        return not self.required & ~node.members and node.count(self.free) >= self.count

    def cards(self, tree: TopologyTree, node: TreeNode) -> tuple[str, ...]:
        """The required cards and the lowest free ones of the node; () where these are too few."""
        missing = self.count - self.required.bit_count()
        if missing < 0 or self.count < 1 or not self.fits(node):
            return ()
        others = tree.uuids(node.members & self.free & ~self.required)
        return (*tree.uuids(self.required), *islice(others, missing))


def whole_cards(
    tree: TopologyTree, free: Collection[str], count: int, required: Collection[str] = ()
) -> tuple[str, ...]:
    """`count` of the free cards, with the required ones, which count as free.

    One card comes out of the group with the fewest free cards; more cards are near to each other. () where
    too few are free, or more are required than asked for.
    """
    return (fragment if count == 1 else link)(tree, free, count, required)


def link(
    tree: TopologyTree, free: Collection[str], count: int, required: Collection[str] = ()
) -> tuple[str, ...]:
    """The cards that are nearest to each other.

    Each card looks for the lowest node above that has enough free cards. Of these nodes the lowest is taken,
    and of several at one level the one with the fewest free cards.
    """
    wanted = _wanted(tree, free, count, required)
    nodes, _ = _lowest(tree.root, wanted)
    nearest = min(
        nodes, key=lambda node: (node.level, node.count(wanted.free), node.first), default=tree.root
    )
    return wanted.cards(tree, nearest)


def fragment(
    tree: TopologyTree, free: Collection[str], count: int, required: Collection[str] = ()
) -> tuple[str, ...]:
    """Cards of the node with the fewest free ones, found from the root downwards: larger groups stay whole.

    A card that hangs beside such nodes is passed by.
    """
    wanted = _wanted(tree, free, count, required)
    node: TreeNode | None = tree.root
    while node is not None:
        fullest = node
        below = (child for child in node.children if child.children and wanted.fits(child))
        node = min(below, key=lambda child: (child.count(wanted.free), child.first), default=None)
    return wanted.cards(tree, fullest)


def share(rooms: Iterable[CardRoom], cores: int, memory: int) -> str | None:
    """The card with the least room that has enough of both amounts; None where no card has."""
    fitting = (it for it in rooms if it.cores >= cores and it.memory >= memory)
    fullest = min(fitting, key=lambda it: (it.cores, it.memory, it.index, it.uuid), default=None)
    return None if fullest is None else fullest.uuid


def _wanted(tree: TopologyTree, free: Collection[str], count: int, required: Collection[str]) -> _Wanted:
    held = tree.bits(required)
    return _Wanted(tree.bits(free) | held, held, count)


def _lowest(node: TreeNode, wanted: _Wanted) -> tuple[list[TreeNode], bool]:
    """The lowest nodes that fit, from each card upwards; and whether a card below still finds none.

    The node that joins all is not among them: the caller takes that one where there are no others.
    """
    if not node.children:
        return [], True
    below = [_lowest(child, wanted) for child in node.children]
    found = [it for nodes, _ in below for it in nodes]
    looks = any(is_looking for _, is_looking in below)
    if looks and not node.is_root and wanted.fits(node):
        return [*found, node], False
    return found, looks
