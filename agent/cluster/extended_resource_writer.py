"""The extended resources that vendors count for the node, as its Node should have them. Pure.

Which of them are the agent's own stands in an annotation of the Node, in the same patches as they: so they go
too, when the vendor has left the config meanwhile. Who may patch a Node's status may annotate it by that
(kubernetes/kubernetes v1.36.0 pkg/registry/core/node/strategy.go: nodeStatusStrategy keeps the spec alone).

Capacity and allocatable are written alike, so that nobody waits for the kubelet: it keeps what of capacity is
not its own and makes allocatable of it, each time it tells its status. At its start it sets all extended
resources to 0 where no plugin has left a file (v1.36.0 pkg/kubelet/kubelet_node_status.go, ShouldReset-
ExtendedResourceCapacity), and they are written again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agent.cluster.api import Object
from agent.cluster.own_node import PREFIX, OwnNode, own_node, path
from agent.cluster.upkeep import UpkeepTexts
from agent.cluster.vendor_key_writer import OwnedWriter
from agent.core.publishing.extended_resource_rules import Extended, wrong_key

#: The annotation that names the extended resources that an agent wrote here, with commas.
EXTENDED = f"{PREFIX}extended-resources"
MAX_EXTENDED = 64


def recorded(node: OwnNode) -> frozenset[str]:
    """The names of those that an agent wrote; anybody may have written what names them."""
    names = node.annotations.get(EXTENDED, "").split(",")[:MAX_EXTENDED]
    return frozenset(name for name in names if not wrong_key(name))


def patches(node: OwnNode, wanted: Extended) -> list[dict[str, Any]]:
    """The merge patches of its status that make ours those that are wanted, one after the other.

    What is to go goes last, by itself: an admission policy that names it no more refuses that patch, and what
    is wanted stands by then. Until it is gone it stays recorded.
    One that nobody of ours wrote is not removed. No patch has a resourceVersion: the kubelet writes the
    status each few seconds, and nobody else these names.
    """
    before = recorded(node)
    after = {name: count for name, count in wanted.values.items() if count is not None}
    there = node.capacity.keys() | node.allocatable.keys()
    stay = before & wanted.awaited & there
    gone = (before - after.keys() - stay) & there
    lists = {"capacity": node.capacity, "allocatable": node.allocatable}
    counts = {key: _differing(its, after) for key, its in lists.items()}
    noted = _record({*after, *stay, *gone})
    patches = [_patch(counts, {} if noted == node.annotations.get(EXTENDED) else {EXTENDED: noted})]
    if gone:
        less = {key: dict.fromkeys(gone & its.keys()) for key, its in lists.items()}
        patches.append(_patch(less, {EXTENDED: _record({*after, *stay})}))
    return [it for it in patches if it]


def _record(names: Iterable[str]) -> str | None:
    return ",".join(sorted(names)) or None


def _differing(there: Mapping[str, int], after: Mapping[str, int]) -> dict[str, str]:
    return {name: str(count) for name, count in after.items() if there.get(name) != count}


def _patch(counts: Mapping[str, Mapping[str, Any]], notes: Mapping[str, Any]) -> dict[str, Any]:
    status = {key: its for key, its in counts.items() if its}
    return ({"status": status} if status else {}) | ({"metadata": {"annotations": notes}} if notes else {})


class ExtendedWriter(OwnedWriter[int]):
    """Writes the Node's status."""

    words = UpkeepTexts(
        "extended resources refused",
        "extended resources wait for the API server",
        "extended resources are as they should be again",
        "somebody else changes extended resources of this node as often as they are written",
    )
    record = EXTENDED

    @classmethod
    def _differs(cls, node: OwnNode, wanted: Extended) -> bool:
        return bool(patches(node, wanted))

    @classmethod
    def _changes(cls, node: Object, wanted: Extended) -> Sequence[dict[str, Any]]:
        its = own_node(node)
        return patches(its, wanted) if its is not None else ()

    @classmethod
    def _written(cls, changes: Mapping[str, Any]) -> Mapping[str, object]:
        status: Mapping[str, Mapping[str, object]] = changes.get("status", {})
        told: dict[str, object] = {key: it for its in status.values() for key, it in its.items()}
        return told or {EXTENDED: changes["metadata"]["annotations"][EXTENDED]}

    @classmethod
    def _path(cls, node_name: str) -> str:
        return f"{path(node_name)}/status"
