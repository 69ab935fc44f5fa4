"""Computes the patches that bring the agent's labels, on the Node or in a NodeFeature object, up to date.

An annotation of the Node, written in the same patch, names the labels that the agent wrote, as
node-feature-discovery does it. managedFields cannot tell them: a client that writes a value that is already
there, as after a move from gpu-feature-discovery, does not become the label's manager.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from agent.cluster.api_protocol import Object
from agent.cluster.own_node import PREFIX, OwnNode
from agent.core.publishing.label_rules import WantedFeatures, domain
from agent.scheduler_api.document_parts import part_of
from agent.vendor_api.kubernetes_names import wrong_label

#: The annotation that names the agent's labels of the Node, separated by commas.
OWNED = f"{PREFIX}labels"
#: Domains in which no vendor's label is. Source: kubernetes.io, "Labels and Selectors", syntax.
_KUBERNETES = ("kubernetes.io", "k8s.io")

GROUP = "/apis/nfd.k8s-sigs.io/v1alpha1"
#: The label with the node's name on a NodeFeature object. Source: its pkg/apis/nfd/v1alpha1.
NODE_NAME = "nfd.node.kubernetes.io/node-name"
_FEATURES: Mapping[str, Any] = {"flags": {}, "attributes": {}, "instances": {}}


def node_patch(node: OwnNode, wanted: WantedFeatures) -> dict[str, Any] | None:
    """The merge patch that brings the agent's labels of the Node to what is wanted; None if nothing differs.

    Labels that node-feature-discovery keeps, and those of Kubernetes' own domains, are left alone.
    """
    before = owned(node)
    current = {key: node.labels[key] for key in before if key in node.labels}
    after = {key: value for key, value in _wanted(node, wanted, current).items() if _writable(node, key)}
    labels: dict[str, str | None] = {
        key: None for key in current if key not in after and _writable(node, key)
    }
    labels |= {key: value for key, value in after.items() if node.labels.get(key) != value}
    names = ",".join(sorted(after)) or None
    if not labels and names == node.annotations.get(OWNED):
        return None
    metadata: dict[str, Any] = {"annotations": {OWNED: names}, "labels": labels}
    return {"metadata": {**metadata, "resourceVersion": node.version}}


def owned(node: OwnNode) -> frozenset[str]:
    """Keys of the labels that an agent wrote; checked, because any client can write the annotation."""
    keys = node.annotations.get(OWNED, "").split(",")
    return frozenset(key for key in keys if not wrong_label(key, "") and _vendors(key))


def _wanted(node: OwnNode, wanted: WantedFeatures, current: Mapping[str, str]) -> Mapping[str, str]:
    if wanted.published_as is None:
        return {}
    after = wanted.vendor_labels.over(current)
    if wanted.published_as == "node":
        return after
    # They stay until node-feature-discovery takes them over, because pods select by them.
    return {key: value for key, value in after.items() if key in current}


def _writable(node: OwnNode, key: str) -> bool:
    return key not in node.nfd and _vendors(key)


def _vendors(key: str) -> bool:
    name = domain(key)
    return bool(name) and not any(name == it or name.endswith(f".{it}") for it in _KUBERNETES)


def feature_name(node: str) -> str:
    """The NodeFeature object's name; not gpu-feature-discovery's, so that neither overwrites the other."""
    return f"xpu-agent-features-for-{node}"


def features_path(namespace: str) -> str:
    return f"{GROUP}/namespaces/{quote(namespace, safe='')}/nodefeatures"


def feature_path(namespace: str, node: str) -> str:
    return f"{features_path(namespace)}/{quote(feature_name(node), safe='')}"


def feature(found: Object | None, node: str, wanted: WantedFeatures) -> dict[str, Any] | None:
    """The wanted NodeFeature object; None if it is as wanted, or there is nothing to write yet.

    Source of its form: NVIDIA/k8s-device-plugin v0.20, internal/lm/output.go. Fields that others added are
    kept. Unlike gpu-feature-discovery's it has no owner, because labels outlive the agent.
    """
    labels = wanted.vendor_labels.over(_feature_labels(found))
    if found is None and not labels:
        return None
    metadata = {"name": feature_name(node), **part_of(found, "metadata")}
    names = {**part_of(metadata, "labels"), NODE_NAME: node}
    spec = {"features": _FEATURES, **part_of(found, "spec"), "labels": labels}
    after = {
        "apiVersion": "nfd.k8s-sigs.io/v1alpha1",
        "kind": "NodeFeature",
        "metadata": {**metadata, "labels": names},
        "spec": spec,
    }
    same = names == metadata.get("labels") and labels == part_of(found, "spec").get("labels")
    return None if same else after


def _feature_labels(found: Object | None) -> dict[str, str]:
    labels = part_of(part_of(found, "spec"), "labels")
    return {key: it for key, it in labels.items() if isinstance(it, str) and not wrong_label(key, it)}
