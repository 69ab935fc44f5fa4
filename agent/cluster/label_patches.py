"""The labels that the devices give the node, as its Node and its NodeFeature object should have them. Pure.

Which labels of the Node are the agent's own stands in an annotation of it, in the same patch as they, as
node-feature-discovery does it. managedFields would not do: whoever writes a value that is there already, as
after a move from gpu-feature-discovery, does not become its manager, and nobody could remove the label.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from agent.cluster.api import Object
from agent.cluster.own_node import PREFIX, OwnNode
from agent.core.kubernetes_names import wrong_label
from agent.core.publishing.label_rules import WantedFeatures, domain
from agent.scheduler_api.document_parts import part_of

#: The annotation that names our labels of the Node, with commas.
OWNED = f"{PREFIX}labels"
#: Of the domains that labels of no vendor are in. Source: kubernetes.io, "Labels and Selectors", syntax.
_KUBERNETES = ("kubernetes.io", "k8s.io")

GROUP = "/apis/nfd.k8s-sigs.io/v1alpha1"
#: By which node-feature-discovery knows whose NodeFeature it is. Source: its pkg/apis/nfd/v1alpha1.
NODE_NAME = "nfd.node.kubernetes.io/node-name"
_FEATURES: Mapping[str, Any] = {"flags": {}, "attributes": {}, "instances": {}}


def node_patch(node: OwnNode, wanted: WantedFeatures) -> dict[str, Any] | None:
    """The merge patch that makes our labels of the Node those that are wanted; None where they are.

    What node-feature-discovery keeps is left to it, and what is Kubernetes' own is nobody's to remove.
    """
    before = owned(node)
    there = {key: node.labels[key] for key in before if key in node.labels}
    after = {key: value for key, value in _wanted(node, wanted, there).items() if _writable(node, key)}
    labels: dict[str, str | None] = {key: None for key in there if key not in after and _writable(node, key)}
    labels |= {key: value for key, value in after.items() if node.labels.get(key) != value}
    names = ",".join(sorted(after)) or None
    if not labels and names == node.annotations.get(OWNED):
        return None
    metadata: dict[str, Any] = {"annotations": {OWNED: names}, "labels": labels}
    return {"metadata": {**metadata, "resourceVersion": node.version}}


def owned(node: OwnNode) -> frozenset[str]:
    """The keys of the labels that an agent wrote here; anybody may have written the annotation."""
    keys = node.annotations.get(OWNED, "").split(",")
    return frozenset(key for key in keys if not wrong_label(key, "") and _vendors(key))


def _wanted(node: OwnNode, wanted: WantedFeatures, there: Mapping[str, str]) -> Mapping[str, str]:
    if wanted.published_as is None:
        return {}
    after = wanted.vendor_labels.over(there)
    if wanted.published_as == "node":
        return after
    # They stay until node-feature-discovery takes them over: pods are selected by them.
    return {key: value for key, value in after.items() if key in there}


def _writable(node: OwnNode, key: str) -> bool:
    return key not in node.nfd and _vendors(key)


def _vendors(key: str) -> bool:
    of = domain(key)
    return bool(of) and not any(of == it or of.endswith(f".{it}") for it in _KUBERNETES)


def feature_name(node: str) -> str:
    """Of the NodeFeature object. Another than gpu-feature-discovery's, so that neither undoes the other."""
    return f"xpu-agent-features-for-{node}"


def features_path(namespace: str) -> str:
    return f"{GROUP}/namespaces/{quote(namespace, safe='')}/nodefeatures"


def feature_path(namespace: str, node: str) -> str:
    return f"{features_path(namespace)}/{quote(feature_name(node), safe='')}"


def feature(there: Object | None, node: str, wanted: WantedFeatures) -> dict[str, Any] | None:
    """The NodeFeature object as it should be; None where it is, or there is nothing to say yet.

    Source of its shape: NVIDIA/k8s-device-plugin v0.20, internal/lm/output.go. Owners and what others added
    stay; unlike theirs it has no owner, as labels shall outlive the agent.
    """
    labels = wanted.vendor_labels.over(_feature_labels(there))
    if there is None and not labels:
        return None
    metadata = {"name": feature_name(node), **part_of(there, "metadata")}
    names = {**part_of(metadata, "labels"), NODE_NAME: node}
    spec = {"features": _FEATURES, **part_of(there, "spec"), "labels": labels}
    after = {
        "apiVersion": "nfd.k8s-sigs.io/v1alpha1",
        "kind": "NodeFeature",
        "metadata": {**metadata, "labels": names},
        "spec": spec,
    }
    same = names == metadata.get("labels") and labels == part_of(there, "spec").get("labels")
    return None if same else after


def _feature_labels(there: Object | None) -> dict[str, str]:
    found = part_of(part_of(there, "spec"), "labels")
    return {key: it for key, it in found.items() if isinstance(it, str) and not wrong_label(key, it)}
