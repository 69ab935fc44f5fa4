"""Machines as `nvidia-smi topo -m` shows them, for rules that read links."""

from __future__ import annotations

from agent.core.devices.topology import Topology
from agent.core.devices.topology_tree import TopologyTree, topology_tree
from agent.vendor_api.agent import Device, Distance, Link

PATHS = {
    "PIX": Distance.SWITCH,
    "PXB": Distance.SWITCHES,
    "PHB": Distance.HOST_BRIDGE,
    "SOC": Distance.NUMA_NODE,
    "SYS": Distance.SYSTEM,
}


def machine(text: str) -> Topology:
    """The cards "0", "1" and so on of the matrix; a pair with another word has no link."""
    rows = [line.split()[1:] for line in text.strip().splitlines()[1:]]

    def links(row: list[str]) -> tuple[Link, ...]:
        return tuple(Link(str(peer), 0, PATHS[it]) for peer, it in enumerate(row) if it in PATHS)

    return Topology({str(card): Device(str(card), card, links=links(row)) for card, row in enumerate(rows)})


def tree_of(text: str) -> TopologyTree:
    topology = machine(text)
    return topology_tree(topology, topology.devices)


def grouped(*levels: tuple[str, str], size: int) -> str:
    """A matrix of `size` cards. A level is a word and groups, as `PIX` and `01 23`; the first one counts."""
    words = [["X" if row == column else "-" for column in range(size)] for row in range(size)]
    for word, groups in reversed(levels):
        for group in groups.split():
            places = [int(it, 36) for it in group]
            for row in places:
                for column in places:
                    words[row][column] = "X" if row == column else word
    header = " ".join(f"GPU{card}" for card in range(size))
    return "\n".join([header, *(f"GPU{card} {' '.join(row)}" for card, row in enumerate(words))])


#: gpu-manager's own tests (pkg/device/nvidia/tree_test.go).
SIX = grouped(("PIX", "01 23 45"), ("PHB", "0123"), ("SOC", "012345"), size=6)
ONE = "GPU0\nGPU0 x"
#: Two sockets with two switches of two cards each below a larger one.
EIGHT = grouped(("PIX", "01 23 45 67"), ("PXB", "0123 4567"), ("SOC", "01234567"), size=8)
#: A card alone beside a pair.
THREE = grouped(("PIX", "12"), ("PHB", "012"), size=3)
#: A node with seven P40, as a user of gpu-manager published the matrix.
SEVEN = grouped(("PIX", "012 3456"), ("PHB", "0123456"), size=7)
