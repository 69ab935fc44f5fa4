"""The tree of a node's cards by their links, as `config check --topology` shows it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from agent.core.devices.topology_tree import Level, TopologyTree, TreeNode

_NAMES: Mapping[Level, str] = {
    Level.LANES: "direct lanes",
    Level.SWITCH: "one switch",
    Level.SWITCHES: "several switches",
    Level.HOST_BRIDGE: "host bridge",
    Level.NUMA_NODE: "NUMA node",
    Level.SYSTEM: "across NUMA nodes",
    Level.ROOT: "node",
}


def card_tree(tree: TopologyTree, indices: Mapping[str, int]) -> Iterator[str]:
    """A line for each node with the number of its cards, and for each card. `indices`: by uuid."""
    return _lines(tree, tree.root, indices, "")


def _lines(tree: TopologyTree, node: TreeNode, indices: Mapping[str, int], indent: str) -> Iterator[str]:
    if node.level is Level.CARD:
        yield from (f"{indent}card {indices[uuid]}" for uuid in tree.uuids(node.members))
    else:
        yield f"{indent}{_NAMES[node.level]}: {node.members.bit_count()}"
    below = "|-- " if not indent else "|   " + indent
    for child in node.children:
        yield from _lines(tree, child, indices, below)
