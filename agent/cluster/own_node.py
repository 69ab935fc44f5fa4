"""This node's Node object, reduced to what the agent needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from itertools import islice
from typing import Any
from urllib.parse import quote

from agent.cluster.api_protocol import Object
from agent.cluster.object_fields import text, texts
from agent.cluster.reflector import MirroredObjects
from agent.core.allocation.node_lock_rules import lock_annotations
from agent.core.cell import Cell
from agent.core.publishing.node_annotation_rules import wrong_key
from agent.scheduler_api.document_parts import part_of
from agent.scheduler_api.quantities import whole
from agent.vendor_api.kubernetes_names import wrong_label, wrong_name

NODES = "/api/v1/nodes"
#: Prefix of the agent's own annotations.
PREFIX = "xpu-agent.io/"
#: The annotation that names the vendors' annotations that the agent wrote, separated by commas.
ANNOTATED = f"{PREFIX}annotations"
MAX_ANNOTATED = 64
#: Names the labels that node-feature-discovery keeps; a named instance puts its name and a dot before this.
#: Source: kubernetes-sigs/node-feature-discovery, pkg/apis/nfd/v1alpha1/annotations_labels.go.
NFD_LABELS = "nfd.node.kubernetes.io/feature-labels"
_NFD_DOMAIN = "feature.node.kubernetes.io/"

#: etcd takes no object above 1.5 MB; nodes of large clusters have a few hundred labels.
MAX_LABELS = 10_000
MAX_RESOURCES = 1000
MAX_ANNOTATION = 256 << 10
MAX_LABEL = 63


@dataclass(frozen=True, slots=True)
class OwnNode:
    """This node's Node.

    `annotations` are the agent's own, and those of vendors that it wrote. `allocatable` and `capacity` count
    the resources of device plugins.
    """

    name: str
    uid: str = ""
    _: KW_ONLY
    #: The resourceVersion. Not compared: each heartbeat of the kubelet changes it.
    version: str = field(default="", compare=False)
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    #: Keys of labels that node-feature-discovery keeps.
    nfd: frozenset[str] = frozenset()
    allocatable: Mapping[str, int] = field(default_factory=dict)
    capacity: Mapping[str, int] = field(default_factory=dict)
    #: Annotations that are, or may be, locks of schedulers, by key.
    locks: Mapping[str, str] = field(default_factory=dict)


def path(name: str) -> str:
    """The path of the Node at the API server."""
    return f"{NODES}/{quote(name, safe='')}"


def query(name: str) -> Mapping[str, str]:
    """Query of a list or watch that selects this Node."""
    return {"fieldSelector": f"metadata.name={name}"}


def own_node(node: Object) -> OwnNode | None:
    """The reduced Node; None of an object without a name. Values that Kubernetes refuses are left out."""
    metadata, status = part_of(node, "metadata"), part_of(node, "status")
    name = text(metadata, "name")
    if not name:
        return None
    annotations = dict(texts(metadata, "annotations", MAX_ANNOTATION))
    written = recorded(annotations)
    labels = (it for it in texts(metadata, "labels", MAX_LABEL) if not wrong_label(*it))
    return OwnNode(
        name,
        text(metadata, "uid"),
        version=text(metadata, "resourceVersion"),
        labels=dict(islice(labels, MAX_LABELS)),
        annotations={key: it for key, it in annotations.items() if key.startswith(PREFIX) or key in written},
        nfd=frozenset(_nfd(annotations)),
        allocatable=_counts(part_of(status, "allocatable")),
        capacity=_counts(part_of(status, "capacity")),
        locks=lock_annotations(annotations),
    )


def recorded(annotations: Mapping[str, str]) -> frozenset[str]:
    """Keys of the vendors' annotations that an agent wrote; checked, as any client can write the list."""
    keys = annotations.get(ANNOTATED, "").split(",")[:MAX_ANNOTATED]
    return frozenset(key for key in keys if not wrong_key(key))


async def follow(
    mirror: Cell[MirroredObjects[OwnNode]],
    name: str,
    node: Cell[OwnNode | None],
    labels: Cell[Mapping[str, str] | None],
) -> None:
    """Keep both cells equal to the mirror, for ever. Labels stay when the Node disappears."""
    async for seen in mirror.watch():
        found = seen.objects.get(name)
        node.set(found)
        if found is not None:
            labels.set(found.labels)


def _nfd(annotations: Mapping[str, str]) -> Iterator[str]:
    for key, value in annotations.items():
        if key == NFD_LABELS or key.endswith(f".{NFD_LABELS}"):
            names = (name.strip() for name in value.split(",")[:MAX_LABELS])
            yield from (name if "/" in name else _NFD_DOMAIN + name for name in names if name)


def _counts(quantities: Mapping[str, Any]) -> Mapping[str, int]:
    found = ((name, whole(value)) for name, value in quantities.items() if not wrong_name(name))
    return dict(islice(((name, it) for name, it in found if it is not None), MAX_RESOURCES))
