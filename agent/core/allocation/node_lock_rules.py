"""Node locks: reads them, decides when a lock is over, and makes the patch that frees that lock. Pure.

A scheduler takes the lock before it binds a pod, and never frees it: the device plugin that answers the
Allocate of that pod frees it.
Source: Project-HAMi/HAMi pkg/util/nodelock (4707fb02), koordinator device_plugin_adapter.go (a7a1b76b).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any

from msgspec import Struct

from agent.core.model import Allocation, AllocationSource
from agent.scheduler_api.candidate import Candidate
from agent.scheduler_api.scheduler import Scheduler
from agent.vendor_api.agent import Vendor
from agent.vendor_api.text import shorten

#: Seconds after which schedulers themselves take the lock from its holder.
EXPIRES = 300.0
EXPIRED = f"it is older than {EXPIRES:g} s"
#: Of a lock with a time in the future: schedulers would keep it until then.
AHEAD = (
    f"it is of a time to come and has been there for {EXPIRES:g} s: the clock of its scheduler or of this "
    "node is wrong"
)
MAX_VALUE = 1024


class Lock(Struct, frozen=True):
    """`value`: the annotation as it stands. `taken`: Unix seconds. A lock of the old form names no pod."""

    key: str
    value: str
    taken: float
    namespace: str = ""
    pod: str = ""


def parsed_lock(key: str, value: str) -> Lock | None:
    """Parse `TIME,NAMESPACE,POD`, or TIME alone as old HAMi wrote it; None for any other value."""
    time, *pod = value.split(",")
    try:
        taken = datetime.fromisoformat(time)
    except ValueError:
        return None
    if len(value) > MAX_VALUE or taken.tzinfo is None or len(pod) not in (0, 2) or not all(pod):
        return None
    return Lock(key, value, taken.timestamp(), *pod)


def locks_on_node(annotations: Mapping[str, str], keys: Iterable[str]) -> list[Lock]:
    """The locks under these keys among the Node's annotations."""
    parsed = (parsed_lock(key, annotations[key]) for key in dict.fromkeys(keys) if key in annotations)
    return [it for it in parsed if it is not None]


def lock_annotations(annotations: Mapping[str, str]) -> dict[str, str]:
    """The annotations that have the form of a lock, under whichever key."""
    return {key: it for key, it in annotations.items() if parsed_lock(key, it) is not None}


def lock_keys(schedulers: Iterable[Scheduler], vendors: Iterable[Vendor]) -> tuple[str, ...]:
    """The keys of the locks that the agent frees: those of schedulers and of all dialects."""
    registered = tuple(schedulers)
    groups = [scheduler.locks for scheduler in registered]
    groups += [dialect.locks for scheduler in registered for dialect in scheduler.dialects]
    groups += [dialect.locks for vendor in vendors for dialect in vendor.dialects]
    return tuple(dict.fromkeys(key for keys in groups for key in keys))


def locks_dated_ahead(
    seen_locks: Iterable[Lock], known: Mapping[Lock, float], now: float, seen: float
) -> dict[Lock, float]:
    """Lock to the time of its first sight, for locks with a time too far in the future.

    `known`: the answer of the last call. `now`: Unix seconds. `seen`: the same moment on a monotonic clock.
    """
    return {it: known.get(it, seen) for it in seen_locks if it in known or it.taken - now > EXPIRES}


def named_pods(
    held: Iterable[Lock], now: float, waited: Mapping[Lock, float] = MappingProxyType({})
) -> frozenset[tuple[str, str]]:
    """(namespace, name) of the pods that unexpired locks name.

    `waited`: seconds since a lock with a time in the future was first seen.
    """
    return frozenset(
        (lock.namespace, lock.pod)
        for lock in held
        if lock.pod and max(now - lock.taken, waited.get(lock, 0.0)) < EXPIRES
    )


def why_over(
    lock: Lock,
    pods: Iterable[Candidate],
    allocations: Iterable[Allocation],
    now: float,
    waited: float = 0.0,
) -> str:
    """Why the lock must be freed; empty while the lock must stay.

    An unknown pod may be about to be bound, so only time ends its lock. `waited`: seconds since a lock
    with a time in the future was first seen.
    """
    named = [pod for pod in pods if lock.pod and (pod.namespace, pod.name) == (lock.namespace, lock.pod)]
    if named and all(pod.over for pod in named):
        return "its pod is over"
    known = tuple(allocations)
    served = _served_containers(known)
    external = {it.owner.uid for it in known if it.source is AllocationSource.ANNOTATION and it.owner}
    if any(_is_served(pod, served) or _is_external(pod, served, external) for pod in named):
        return "its pod has its devices"
    if now - lock.taken >= EXPIRES:
        return EXPIRED
    return AHEAD if waited >= EXPIRES else ""


def stale_sentences(reasons: Mapping[Lock, str]) -> tuple[str, ...]:
    """A sentence for each lock that time alone ended. `reasons`: lock to why the lock is over."""
    return tuple(
        f"the lock {lock.key} of the node is over: {shorten(lock.value)} has not come for its devices, {why}"
        for lock, why in reasons.items()
        if why in (EXPIRED, AHEAD)
    )


def freeing_patch(lock: Lock) -> list[dict[str, Any]]:
    """The JSON patch that removes the lock from the Node; it fails where another lock is there by now."""
    path = f"/metadata/annotations/{lock.key.replace('~', '~0').replace('/', '~1')}"
    return [{"op": "test", "path": path, "value": lock.value}, {"op": "remove", "path": path}]


def _served_containers(allocations: Iterable[Allocation]) -> Mapping[str, Collection[tuple[str, str]]]:
    """Resource to the containers, as (pod uid, name), that have an allocation of it."""
    containers: dict[str, set[tuple[str, str]]] = {}
    for allocation in allocations:
        if allocation.container_key is not None and allocation.source is not AllocationSource.ANNOTATION:
            containers.setdefault(allocation.resource, set()).add(allocation.container_key)
    return containers


def _is_served(pod: Candidate, served: Mapping[str, Collection[tuple[str, str]]]) -> bool:
    """Whether the pod asks for a served resource, and each such container has its allocation."""
    asking = [(name, it.name) for it in pod.containers for name in it.limits if name in served]
    return bool(asking) and all((pod.uid, container) in served[name] for name, container in asking)


def _is_external(
    pod: Candidate, served: Mapping[str, Collection[tuple[str, str]]], external: Collection[str]
) -> bool:
    """Whether the pod has cards in external use, for which no Allocate comes."""
    return pod.uid in external and not any(name in served for it in pod.containers for name in it.limits)
