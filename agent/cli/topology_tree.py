"""The tree of `inspect`: NUMA nodes, their devices, and how each device reaches the others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from agent.cli.inspect_cells import place
from agent.host import terminal
from agent.http.inspect_document import InspectedDevice

if TYPE_CHECKING:
    from rich.tree import Tree


def topology(devices: Sequence[InspectedDevice]) -> Tree:
    """The tree; devices without a known NUMA node come last."""
    from rich.tree import Tree

    names = {device.uuid: f"{device.vendor} {place(device)}" for device in devices}
    by_numa: dict[int | None, list[InspectedDevice]] = defaultdict(list)
    for device in devices:
        by_numa[device.numa].append(device)
    tree = Tree(terminal.styled("topology", "bold"))
    for node in sorted(by_numa, key=lambda node: (node is None, node or 0)):
        branch = tree.add(terminal.styled("NUMA node unknown" if node is None else f"NUMA node {node}"))
        for device in by_numa[node]:
            leaf = branch.add(terminal.styled(" ".join(_texts(device, names))))
            for line in _links(device, names):
                leaf.add(terminal.styled(line))
    return tree


def _texts(device: InspectedDevice, names: Mapping[str, str]) -> Iterator[str]:
    yield names[device.uuid]
    yield from (text for text in (device.uuid, device.pci) if text)
    if device.health.state != "healthy":
        yield f"({device.health.state or 'unknown'})"


def _links(device: InspectedDevice, names: Mapping[str, str]) -> Iterator[str]:
    """A line for each link of direct lanes, then a line for each distance."""
    by_distance: dict[str, list[str]] = defaultdict(list)
    for link in device.links:
        peer = names.get(link.peer, link.peer)
        if link.lanes:
            yield f"{link.lanes} lanes to {peer}, {link.distance}"
        else:
            by_distance[link.distance].append(peer)
    for distance, peers in by_distance.items():
        yield f"{distance}: {', '.join(peers)}"
