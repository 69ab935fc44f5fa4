"""The pods of this node, reduced to what the attribution of requests needs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from itertools import chain, islice
from typing import Any

from agent.cluster.api_protocol import Object
from agent.cluster.object_fields import text, texts
from agent.cluster.reflector import MirroredObjects, number
from agent.core.allocation.known_pods import KnownPods
from agent.core.cell import Cell
from agent.scheduler_api.candidate import DEFAULT_SCHEDULER, Candidate, PodContainer, one_of_each_uid
from agent.scheduler_api.document_parts import part_of
from agent.scheduler_api.managed_fields import UPDATE, entries
from agent.scheduler_api.quantities import whole
from agent.scheduler_api.scheduler import AnnotationFilter

PODS = "/api/v1/pods"
#: Bounds on what a pod can make the agent keep; the API server allows 256 KiB of annotations.
MAX_CONTAINERS = 500
MAX_RESOURCES = 100
#: Characters of a pod's annotations that are kept; a claim has some hundreds for each container.
MAX_ANNOTATIONS = 64 << 10
MAX_UID = 128
#: Characters of a pod's status message that are kept.
MAX_MESSAGE = 4096
MAX_SCHEDULER = 253
#: Annotations of a mirror pod: the uid of its static pod, and the same value as the mark of a mirror.
STATIC_UID = "kubernetes.io/config.hash"
MIRROR_OF = "kubernetes.io/config.mirror"
_OVER = frozenset({"Succeeded", "Failed"})


def query(node_name: str) -> Mapping[str, str]:
    """Query of a list or watch that selects the pods of this node."""
    return {"fieldSelector": f"spec.nodeName={node_name}"}


def candidate(pod: Object, reads: AnnotationFilter) -> Candidate | None:
    """The reduced pod; None of an object without a uid and a name.

    A pod that is being deleted is over once it has started. Before, the kubelet still admits it and calls
    Allocate for it (v1.36.3, pkg/kubelet/kubelet.go, HandlePodAdditions).
    The kubelet knows a static pod by its own uid. The mirror pod has another uid, and the static pod's in an
    annotation. Any client can write that annotation, so it counts only on a pod that looks like a mirror in
    all points. Source: k8s.io/kubernetes, pkg/kubelet/types (ConfigHashAnnotationKey),
    pkg/kubelet/pod/mirror_client.go.
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
        container_ids=dict(_container_ids(status)) if reads.container_ids and _has_several(spec) else {},
    )


async def follow(
    mirror: Cell[MirroredObjects[Candidate]],
    pods: Cell[KnownPods],
    reached: Callable[[int], None] = lambda version: None,
) -> None:
    """Keep the cell equal to the mirror, oldest pod first, for ever. The pods stay while the server is away.

    `reached` is called after the cell is set, with the resourceVersion that the pods are known up to.
    """
    known = KnownPods()
    objects: Mapping[str, Candidate] = {}
    async for seen in mirror.watch():
        if seen.synced:
            known, objects = _after(known, objects, seen.objects), seen.objects
            pods.set(known)
            reached(seen.version)


def _after(known: KnownPods, before: Mapping[str, Candidate], after: Mapping[str, Candidate]) -> KnownPods:
    """The known pods after the mirror has changed. They keep the version at which they appeared.

    Only objects that have changed are looked at, as long as no two of them have the same uid.
    """

    def appeared(pod: Candidate) -> Candidate:
        first = known.by_uid[pod.uid].appeared if pod.uid in known.by_uid else 0
        return replace(pod, appeared=first) if first and first != pod.appeared else pod

    come = {key: pod for key, pod in after.items() if before.get(key) is not pod}
    # A changed object may have another uid, so its former uid goes, too.
    replaced = (before.keys() - after.keys()) | (before.keys() & come.keys())
    pods = known.after([before[key].uid for key in replaced], map(appeared, come.values()))
    if len(pods) != len(after):
        return known.updated(map(appeared, one_of_each_uid(after.values())))
    return pods


def version(metadata: Mapping[str, Any]) -> int:
    """The resourceVersion of an object or list as a number, which only grows (KEP-5504); 0 of other text."""
    return number(text(metadata, "resourceVersion"))


def _static_uid(metadata: Mapping[str, Any], node_name: str) -> str:
    """The uid of the static pod that a mirror pod shows; empty of any other pod."""
    annotations = part_of(metadata, "annotations")
    uid, owners = text(annotations, STATIC_UID), metadata.get("ownerReferences")
    if not 0 < len(uid) <= MAX_UID or text(annotations, MIRROR_OF) != uid or not isinstance(owners, list):
        return ""
    of_the_node = any(
        isinstance(owner, dict) and (owner.get("kind"), owner.get("name")) == ("Node", node_name)
        for owner in owners
    )
    return uid if of_the_node else ""


def _scheduler(pod: Object, reads: AnnotationFilter) -> str:
    """The pod's schedulerName; for the default scheduler's name, the program that wrote the pod's claim.

    Another scheduler may run under the default name, and managedFields tell which client wrote an annotation.
    A client that may patch the pod can forge that, as its creator can name any scheduler.
    """
    requested = text(part_of(pod, "spec"), "schedulerName")[:MAX_SCHEDULER]
    if requested != DEFAULT_SCHEDULER:
        return requested
    found = [fields for fields in entries(pod) if fields.operation == UPDATE]
    for program, annotation in reads.writers:
        owned = (it for it in found if it.manager == program)
        if any(it.owns("metadata", "annotations", annotation) for it in owned):
            return program
    return requested


def _containers(spec: Mapping[str, Any]) -> Iterator[PodContainer]:
    for key, init in (("initContainers", True), ("containers", False)):
        containers = spec.get(key)
        for container in containers if isinstance(containers, list) else ():
            if isinstance(container, dict) and (name := text(container, "name")):
                restartable = init and container.get("restartPolicy") == "Always"
                yield PodContainer(name, _limits(container), init, restartable)


def _has_several(spec: Mapping[str, Any]) -> bool:
    """Whether the pod has more than one container. A container for debugging is ephemeral."""
    lists = (spec.get(key) for key in ("initContainers", "containers", "ephemeralContainers"))
    return sum(len(it) for it in lists if isinstance(it, list)) > 1


def _container_ids(status: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The runtime's ids of the containers, which the status has as `containerd://ID`, with the names."""
    shown = chain(_container_statuses(status), _listed(status, "ephemeralContainerStatuses"))
    for container in islice(shown, MAX_CONTAINERS):
        container_id = text(container, "containerID").rpartition("://")[2]
        if (name := text(container, "name")) and 0 < len(container_id) <= MAX_UID:
            yield container_id, name


def _container_statuses(status: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """What the status says of each container, init containers first."""
    return chain(_listed(status, "initContainerStatuses"), _listed(status, "containerStatuses"))


def _listed(status: Mapping[str, Any], key: str) -> Iterator[Mapping[str, Any]]:
    found = status.get(key)
    return (it for it in (found if isinstance(found, list) else ()) if isinstance(it, dict))


def _limits(container: Mapping[str, Any]) -> Mapping[str, int]:
    """The limits of extended resources, which have a slash in their names; cpu and memory are no devices."""
    limits = part_of(part_of(container, "resources"), "limits")
    counts = ((name, whole(value)) for name, value in limits.items() if isinstance(name, str) and "/" in name)
    return dict(islice(((name, it) for name, it in counts if it), MAX_RESOURCES))


def _promises(metadata: Mapping[str, Any], reads: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """The annotations that fit, shortest first, so that a huge one displaces no other."""
    left = MAX_ANNOTATIONS
    read = (it for it in texts(metadata, "annotations", left) if it[0].startswith(reads))
    for key, value in sorted(read, key=lambda it: len(it[0]) + len(it[1])):
        left -= len(key) + len(value)
        if left < 0:
            return
        yield key, value


def booted() -> float:
    """When this node booted, in Unix seconds by the current clock."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def _starts_anew(status: Mapping[str, Any], boot: float) -> bool:
    """Whether a pod shown as Running has a container that ran before this boot, and not since.

    Until the kubelet has started the container again, the API server shows the state before the boot. A
    kubelet without its checkpoint calls Allocate for the container again before it starts it
    (pkg/kubelet/cm/devicemanager/manager.go, GetDeviceRunContainerOptions).
    """
    if text(status, "phase") != "Running":
        return False
    statuses = islice(_container_statuses(status), MAX_CONTAINERS)
    latest = (max(_starts(it), default=0.0) for it in statuses)
    return any(0.0 < started < boot for started in latest)


def _starts(container: Mapping[str, Any]) -> Iterator[float]:
    """The start times that the container's status has, in Unix seconds."""
    for key in ("state", "lastState"):
        for how in ("running", "terminated"):
            yield _time(text(part_of(part_of(container, key), how), "startedAt"))


def _bound(status: Mapping[str, Any]) -> float:
    """When the pod was bound; the API server sets the condition (registry/core/pod/storage, BindingREST)."""
    conditions = status.get("conditions")
    rows = (it for it in (conditions if isinstance(conditions, list) else ()) if isinstance(it, dict))
    found = (it for it in rows if (it.get("type"), it.get("status")) == ("PodScheduled", "True"))
    return _time(text(next(found, {}), "lastTransitionTime"))


def _time(written: str) -> float:
    """Unix seconds of an RFC 3339 time; 0 of other text."""
    try:
        return datetime.fromisoformat(written).timestamp()
    except (ValueError, OverflowError):
        return 0.0
