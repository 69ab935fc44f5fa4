"""Writes the extended resources that vendors count for the node to the Node's status.

An annotation of the Node, written in the same patches, names the resources that the agent wrote. So they
are removed too after their vendor has left the config. The right to patch a Node's status includes its
annotations (kubernetes/kubernetes v1.36.0 pkg/registry/core/node/strategy.go: nodeStatusStrategy keeps the
spec alone).

Capacity and allocatable are both written, so that schedulers need not wait for the kubelet. With each status
update the kubelet keeps foreign capacity, and computes allocatable from it. At its start it sets all extended
resources to 0 if no plugin has left a file (v1.36.0 pkg/kubelet/kubelet_node_status.go, ShouldReset-
ExtendedResourceCapacity); then they are written again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agent.cluster.api_protocol import Object
from agent.cluster.own_node import PREFIX, OwnNode, own_node, path
from agent.cluster.repeated_writes import RepeatedWriteTexts
from agent.cluster.vendor_key_writer import OwnedWriter
from agent.core.publishing.extended_resource_rules import Extended, wrong_key

#: The annotation that names the extended resources that the agent wrote, separated by commas.
EXTENDED = f"{PREFIX}extended-resources"
MAX_EXTENDED = 64


def recorded(node: OwnNode) -> frozenset[str]:
    """Names of the resources that an agent wrote; checked, because any client can write the annotation."""
    names = node.annotations.get(EXTENDED, "").split(",")[:MAX_EXTENDED]
    return frozenset(name for name in names if not wrong_key(name))


def patches(node: OwnNode, wanted: Extended) -> list[dict[str, Any]]:
    """The merge patches of the status, in order, that bring the agent's resources to the wanted counts.

    Removals come last, in a patch of their own: an admission policy that no longer allows a name refuses that
    patch only. A resource stays in the annotation until it is removed. A resource that no agent wrote is not
    removed. Patches have no resourceVersion: the kubelet writes the status every few seconds, and only the
    agent writes these names.
    """
    before = recorded(node)
    after = {name: count for name, count in wanted.values.items() if count is not None}
    present = node.capacity.keys() | node.allocatable.keys()
    awaited = before & wanted.awaited & present
    removed = (before - after.keys() - awaited) & present
    lists = {"capacity": node.capacity, "allocatable": node.allocatable}
    counts = {key: _differing(table, after) for key, table in lists.items()}
    names = _record({*after, *awaited, *removed})
    patches = [_patch(counts, {} if names == node.annotations.get(EXTENDED) else {EXTENDED: names})]
    if removed:
        removal = {key: dict.fromkeys(removed & table.keys()) for key, table in lists.items()}
        patches.append(_patch(removal, {EXTENDED: _record({*after, *awaited})}))
    return [patch for patch in patches if patch]


def _record(names: Iterable[str]) -> str | None:
    return ",".join(sorted(names)) or None


def _differing(present: Mapping[str, int], after: Mapping[str, int]) -> dict[str, str]:
    return {name: str(count) for name, count in after.items() if present.get(name) != count}


def _patch(counts: Mapping[str, Mapping[str, Any]], annotations: Mapping[str, Any]) -> dict[str, Any]:
    status = {key: values for key, values in counts.items() if values}
    metadata = {"annotations": annotations} if annotations else {}
    return ({"status": status} if status else {}) | ({"metadata": metadata} if metadata else {})


class ExtendedWriter(OwnedWriter[int]):
    """Writes extended resources to the Node's status."""

    words = RepeatedWriteTexts(
        "extended resources refused",
        "extended resources wait for the API server",
        "extended resources are as they should be again",
        "another client changes extended resources of this node as often as they are written",
    )
    record = EXTENDED

    @classmethod
    def _differs(cls, node: OwnNode, wanted: Extended) -> bool:
        return bool(patches(node, wanted))

    @classmethod
    def _changes(cls, node: Object, wanted: Extended) -> Sequence[dict[str, Any]]:
        current = own_node(node)
        return patches(current, wanted) if current is not None else ()

    @classmethod
    def _written(cls, changes: Mapping[str, Any]) -> Mapping[str, object]:
        status: Mapping[str, Mapping[str, object]] = changes.get("status", {})
        counts: dict[str, object] = {}
        for table in status.values():
            counts |= table
        return counts or {EXTENDED: changes["metadata"]["annotations"][EXTENDED]}

    @classmethod
    def _path(cls, node_name: str) -> str:
        return f"{path(node_name)}/status"
