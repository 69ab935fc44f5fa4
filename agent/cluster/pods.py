"""The pods of this node, as the attribution of requests reads them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from itertools import islice
from typing import Any

from agent.cluster.api import Object
from agent.cluster.object_fields import text, texts
from agent.cluster.reflector import MirroredObjects, number
from agent.core.cell import Cell
from agent.scheduler_api import DEFAULT_SCHEDULER, AnnotationFilter, Candidate, PodContainer, one_of_each_uid
from agent.scheduler_api.document_parts import part_of
from agent.scheduler_api.managed_fields import UPDATE, entries
from agent.scheduler_api.quantities import whole

PODS = "/api/v1/pods"
#: Bounds of what a stranger's pod can make us keep; the API server takes 256 KiB of annotations.
MAX_CONTAINERS = 500
MAX_RESOURCES = 100
#: Characters of the annotations that are kept of a pod; a promise has some hundreds for each container.
MAX_ANNOTATIONS = 64 << 10
MAX_UID = 128
#: Characters of what the kubelet says of a pod.
MAX_MESSAGE = 4096
MAX_SCHEDULER = 253
#: Of a mirror pod: the uid of the static pod that it shows, and the same again as the mark of a mirror.
STATIC_UID = "kubernetes.io/config.hash"
MIRROR_OF = "kubernetes.io/config.mirror"
_OVER = frozenset({"Succeeded", "Failed"})


def query(node_name: str) -> Mapping[str, str]:
    """Of a list or watch of pods: those bound to this node."""
    return {"fieldSelector": f"spec.nodeName={node_name}"}


def candidate(pod: Object, reads: AnnotationFilter) -> Candidate | None:
    """What is kept of a pod; None of one without a uid and a name.

    One that is being deleted is over once it has started: till then the kubelet still takes it in, and asks
    for its devices (v1.36.3, pkg/kubelet/kubelet.go, HandlePodAdditions).
    The kubelet knows a static pod by its own uid, not by the mirror's, which names it in an annotation.
    Anybody may write that; it is believed of a pod that looks in all as a kubelet makes a mirror.
    Source: k8s.io/kubernetes, pkg/kubelet/types (ConfigHashAnnotationKey), pkg/kubelet/pod/mirror_client.go.
    """
    metadata, spec, status = part_of(pod, "metadata"), part_of(pod, "spec"), part_of(pod, "status")
    uid, name, namespace = text(metadata, "uid"), text(metadata, "name"), text(metadata, "namespace")
    if not (uid and name and namespace):
        return None
    static = _static_uid(metadata, text(spec, "nodeName"))
    is_new = text(status, "phase") in ("", "Pending")
    pending = is_new or _starts_anew(status, booted())
    ended = text(status, "phase") in _OVER
    return Candidate(
        static or uid,
        namespace,
        name,
        tuple(islice(_containers(spec), MAX_CONTAINERS)),
        dict(_promises(metadata, reads.prefixes)),
        _time(text(metadata, "creationTimestamp")),
        over=ended or ("deletionTimestamp" in metadata and not pending),
        message=text(status, "message")[:MAX_MESSAGE],
        static=bool(static),
        ended=ended,
        scheduler=_scheduler(pod, reads),
        pending=pending,
        appeared=version(metadata) if is_new else 0,
        version=version(metadata),
        bound=_bound(status),
    )


async def follow(
    mirror: Cell[MirroredObjects[Candidate]],
    pods: Cell[tuple[Candidate, ...]],
    reached: Callable[[int], None] = lambda version: None,
) -> None:
    """Keep the cell as the mirror is, oldest first, for ever. While the server is away the last ones stay.

    `reached` is told, once the cell has the pods, the resourceVersion up to which they are followed.
    """
    appeared: dict[str, int] = {}
    async for seen in mirror.watch():
        if seen.synced:
            its = one_of_each_uid(seen.objects.values())
            appeared = {it.uid: appeared.get(it.uid) or it.appeared for it in its}
            pods.set(tuple(replace(it, appeared=appeared[it.uid]) for it in its))
            reached(seen.version)


def version(metadata: Mapping[str, Any]) -> int:
    """That of an object or a list, as a number; the API server's only grow (KEP-5504)."""
    return number(text(metadata, "resourceVersion"))


def _static_uid(metadata: Mapping[str, Any], node_name: str) -> str:
    """Of a mirror pod: the uid of the static pod that it shows; empty of any other."""
    annotations = part_of(metadata, "annotations")
    uid, owners = text(annotations, STATIC_UID), metadata.get("ownerReferences")
    if not 0 < len(uid) <= MAX_UID or text(annotations, MIRROR_OF) != uid or not isinstance(owners, list):
        return ""
    of_the_node = any(
        isinstance(it, dict) and (it.get("kind"), it.get("name")) == ("Node", node_name) for it in owners
    )
    return uid if of_the_node else ""


def _scheduler(pod: Object, reads: AnnotationFilter) -> str:
    """The scheduler that the pod asks for; where that bears the name of Kubernetes' own, who wrote its cards.

    Another program may run under that name; the API server keeps whose the annotation is. Whoever may patch
    the pod can say so falsely, as whoever makes it can ask for any scheduler.
    """
    asked = text(part_of(pod, "spec"), "schedulerName")[:MAX_SCHEDULER]
    if asked != DEFAULT_SCHEDULER:
        return asked
    found = [it for it in entries(pod) if it.operation == UPDATE]
    for program, annotation in reads.writers:
        its = (it for it in found if it.manager == program)
        if any(it.owns("metadata", "annotations", annotation) for it in its):
            return program
    return asked


def _containers(spec: Mapping[str, Any]) -> Iterator[PodContainer]:
    for key, init in (("initContainers", True), ("containers", False)):
        its = spec.get(key)
        for it in its if isinstance(its, list) else ():
            if isinstance(it, dict) and (name := text(it, "name")):
                restartable = init and it.get("restartPolicy") == "Always"
                yield PodContainer(name, _limits(it), init, restartable)


def _limits(container: Mapping[str, Any]) -> Mapping[str, int]:
    """Of extended resources, whose names hold a slash; cpu and memory are nobody's devices."""
    limits = part_of(part_of(container, "resources"), "limits")
    counts = ((name, whole(value)) for name, value in limits.items() if isinstance(name, str) and "/" in name)
    return dict(islice(((name, it) for name, it in counts if it), MAX_RESOURCES))


def _promises(metadata: Mapping[str, Any], reads: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """As many as fit, the shortest first: a huge one costs its pod no other."""
    left = MAX_ANNOTATIONS
    read = (it for it in texts(metadata, "annotations", left) if it[0].startswith(reads))
    for key, value in sorted(read, key=lambda it: len(it[0]) + len(it[1])):
        left -= len(key) + len(value)
        if left < 0:
            return
        yield key, value


def booted() -> float:
    """When this node was started, Unix seconds by the clock as it goes now."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def _starts_anew(status: Mapping[str, Any], boot: float) -> bool:
    """Whether a pod that is shown as Running has a container that ran before this boot, and not since.

    No process outlives a boot, but what the API server shows of it does, until the kubelet has started the
    container again. A kubelet that has lost its memory asks for its devices anew before it does
    (pkg/kubelet/cm/devicemanager/manager.go, GetDeviceRunContainerOptions).
    """
    if text(status, "phase") != "Running":
        return False
    lists = (status.get(key) for key in ("initContainerStatuses", "containerStatuses"))
    its = (it for found in lists if isinstance(found, list) for it in found if isinstance(it, dict))
    lasts = (max(_starts(it), default=0.0) for it in islice(its, MAX_CONTAINERS))
    return any(0.0 < it < boot for it in lasts)


def _starts(container: Mapping[str, Any]) -> Iterator[float]:
    """When it was started, as far as its status tells; Unix seconds."""
    for key in ("state", "lastState"):
        for how in ("running", "terminated"):
            yield _time(text(part_of(part_of(container, key), how), "startedAt"))


def _bound(status: Mapping[str, Any]) -> float:
    """The API server sets the condition as it binds (pkg/registry/core/pod/storage, BindingREST)."""
    conditions = status.get("conditions")
    its = (it for it in (conditions if isinstance(conditions, list) else ()) if isinstance(it, dict))
    found = (it for it in its if (it.get("type"), it.get("status")) == ("PodScheduled", "True"))
    return _time(text(next(found, {}), "lastTransitionTime"))


def _time(written: str) -> float:
    """Unix seconds of an RFC 3339 time; 0 of any other text."""
    try:
        return datetime.fromisoformat(written).timestamp()
    except (ValueError, OverflowError):
        return 0.0
