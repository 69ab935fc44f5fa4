"""The pods of this node, as the attribution of requests reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import islice
from typing import Any

from agent.cluster.api import Object
from agent.cluster.reflector import Mirror
from agent.core.cell import Cell
from agent.core.claims import Candidate, PodContainer
from agent.core.quantity import whole

PODS = "/api/v1/pods"
#: Bounds of what a stranger's pod can make us keep; the API server takes 256 KiB of annotations.
MAX_CONTAINERS = 500
MAX_RESOURCES = 100
MAX_ANNOTATIONS = 1000
MAX_ANNOTATION = 256 << 10
#: Characters of what the kubelet says of a pod.
MAX_MESSAGE = 4096
#: Of a mirror pod: the uid of the static pod that it shows.
STATIC_UID = "kubernetes.io/config.hash"
_OVER = frozenset({"Succeeded", "Failed"})


def query(node_name: str) -> Mapping[str, str]:
    """Of a list or watch of pods: those bound to this node."""
    return {"fieldSelector": f"spec.nodeName={node_name}"}


def candidate(pod: Object) -> Candidate | None:
    """What is kept of a pod; None of one without a uid and a name.

    The kubelet knows a static pod by its own uid, not by the mirror's, which names it in an annotation.
    Source: k8s.io/kubernetes, pkg/kubelet/types (ConfigHashAnnotationKey).
    """
    metadata, spec, status = _mapping(pod, "metadata"), _mapping(pod, "spec"), _mapping(pod, "status")
    uid, name, namespace = _text(metadata, "uid"), _text(metadata, "name"), _text(metadata, "namespace")
    if not (uid and name and namespace):
        return None
    annotations = dict(islice(_annotations(metadata), MAX_ANNOTATIONS))
    return Candidate(
        annotations.get(STATIC_UID) or uid,
        namespace,
        name,
        tuple(islice(_containers(spec), MAX_CONTAINERS)),
        annotations,
        _time(_text(metadata, "creationTimestamp")),
        over="deletionTimestamp" in metadata or _text(status, "phase") in _OVER,
        message=_text(status, "message")[:MAX_MESSAGE],
    )


async def follow(mirror: Cell[Mirror[Candidate]], pods: Cell[tuple[Candidate, ...]]) -> None:
    """Keep the cell as the mirror is, oldest first, for ever. While the server is away the last ones stay."""
    async for seen in mirror.watch():
        pods.set(tuple(sorted(seen.objects.values(), key=lambda it: (it.created, it.uid))))


def _containers(spec: Mapping[str, Any]) -> Iterator[PodContainer]:
    for key, init in (("initContainers", True), ("containers", False)):
        its = spec.get(key)
        for it in its if isinstance(its, list) else ():
            if isinstance(it, dict) and (name := _text(it, "name")):
                restartable = init and it.get("restartPolicy") == "Always"
                yield PodContainer(name, _limits(it), init, restartable)


def _limits(container: Mapping[str, Any]) -> Mapping[str, int]:
    """Of extended resources, whose names hold a slash; cpu and memory are nobody's devices."""
    limits = _mapping(_mapping(container, "resources"), "limits")
    counts = ((name, whole(value)) for name, value in limits.items() if isinstance(name, str) and "/" in name)
    return dict(islice(((name, it) for name, it in counts if it), MAX_RESOURCES))


def _annotations(metadata: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in _mapping(metadata, "annotations").items():
        if isinstance(key, str) and isinstance(value, str) and len(value) <= MAX_ANNOTATION:
            yield key, value


def _time(text: str) -> float:
    """Unix seconds of an RFC 3339 time; 0 of any other text."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def _mapping(of: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = of.get(key)
    return value if isinstance(value, dict) else {}


def _text(of: Mapping[str, Any], key: str) -> str:
    value = of.get(key)
    return value if isinstance(value, str) else ""
