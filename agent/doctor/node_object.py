"""Compares the Node at the API server with the agent's resources and with the config."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agent.doctor.surroundings import Surroundings
from agent.http.inspect_document import InspectedResource
from agent.scheduler_api.document_parts import part_of
from agent.scheduler_api.findings import Finding, FindingKind, Severity, not_made, well
from agent.scheduler_api.quantities import whole
from agent.vendor_api.text import shorten

ALLOCATABLE = "node-allocatable"
LABELS = "node-labels"

NOTHING = FindingKind(
    ALLOCATABLE,
    "allocatable-missing",
    Severity.STOPS,
    "the Node offers nothing of a resource that the agent serves",
    "The scheduler places no pod that asks for the resource here. The kubelet updates the Node every 10 "
    "s, so right after a start the resource may still be missing.",
    "run the doctor again in 10 s; if the resource is still missing: systemctl restart kubelet (the "
    "agent registers again by itself), and journalctl -u kubelet | grep -i 'device plugin'",
)
OTHER = FindingKind(
    ALLOCATABLE,
    "allocatable-differs",
    Severity.WARNS,
    "the Node offers another number of devices than the agent",
    "The kubelet updates the number every 10 s. If the numbers still differ then, another plugin lists "
    "the same resource, or the kubelet cannot reach the API server.",
    "run the doctor again in 10 s; if the numbers still differ see the check device-plugins, and "
    "journalctl -u kubelet | grep -i 'node status'",
)
NO_NODE = FindingKind(
    ALLOCATABLE,
    "node-unknown",
    Severity.STOPS,
    "the cluster has no Node of this name",
    "The agent needs the name to find its Node, its labels and its pods.",
    "set NODE_NAME from spec.nodeName (fieldRef) in the pod, or give --node-name one of the names of: "
    "kubectl get nodes -o name",
)
NO_LABEL = FindingKind(
    LABELS,
    "node-label-missing",
    Severity.WARNS,
    "the Node lacks a label that the config matches by",
    "The part of the config for nodes with this label has no effect here.",
    "if the Node should have it: kubectl label node {node} {key}=VALUE; no restart is needed",
)
MANY_LABELS = 20


def allocatable(around: Surroundings) -> Iterator[Finding]:
    """Compares status.allocatable of the Node with the resources of the running agent."""
    node = around.cluster.node
    if node.value is None:
        yield NO_NODE.found(node.why) if node.is_absent else not_made(ALLOCATABLE, node.why)
        return
    if not around.serves:
        yield not_made(ALLOCATABLE, "no agent serves this node: there is nothing to compare the Node with")
        return
    offered = part_of(part_of(node.value, "status"), "allocatable")
    found = [it for resource in around.resources.values() for it in _compared(resource, offered)]
    yield from found or [well(ALLOCATABLE, _equal_counts(around))]


def _compared(resource: InspectedResource, offered: Mapping[str, Any]) -> Iterator[Finding]:
    name, by_agent = resource.name, resource.allocatable
    by_node = whole(offered.get(name, 0))
    if resource.retired or by_agent is None or by_node == by_agent:
        return
    what = f"{name}: the agent offers {by_agent}, the Node {shorten(str(offered.get(name, 'none')))}"
    yield NOTHING.found(what) if by_agent and by_node == 0 else OTHER.found(what)


def _equal_counts(around: Surroundings) -> str:
    rows = (f"{name} {it.allocatable}" for name, it in sorted(around.resources.items()))
    return f"the Node offers what the agent does: {', '.join(rows) or 'nothing'}"


def labels(around: Surroundings) -> Iterator[Finding]:
    """Whether the Node has the labels that the config matches by."""
    keys = around.configuration.labels
    if not keys:
        yield well(LABELS, "the config matches by no label of the Node")
        return
    node = around.cluster.node
    if node.value is None:
        yield not_made(LABELS, f"the config matches by {', '.join(keys[:MANY_LABELS])}, and {node.why}")
        return
    present = part_of(part_of(node.value, "metadata"), "labels")
    missing = [key for key in keys if key not in present]
    for key in missing[:MANY_LABELS]:
        yield NO_LABEL.found(f"Node {around.node} has no label {key}", node=around.node, key=key)
    if not missing:
        shown = ", ".join(f"{key}={shorten(str(present[key]))}" for key in keys[:MANY_LABELS])
        yield well(LABELS, f"the Node has {shown}")
