"""A scheduler's lock on a node: who holds it, whether it is over, and the patch that frees just this one.

The scheduler takes it before it binds a pod and never frees it: whoever answers Allocate does.
Source: Project-HAMi/HAMi pkg/util/nodelock (4707fb02), koordinator device_plugin_adapter.go (a7a1b76b).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any

from agent.core.model import Allocation, AllocationSource
from agent.scheduler_api import Candidate, Scheduler
from agent.vendor_api.agent import Vendor
from agent.vendor_api.text import shorten

#: Seconds after which schedulers themselves take a lock away from its holder.
EXPIRES = 300.0
EXPIRED = f"it is older than {EXPIRES:g} s"
#: Of one of a time to come: schedulers would keep it until then.
AHEAD = (
    f"it is of a time to come and has been there for {EXPIRES:g} s: the clock of its scheduler or of this "
    "node is wrong"
)
MAX_VALUE = 1024


@dataclass(frozen=True, slots=True)
class Lock:
    """`value` as it stands there; `taken`: Unix time in seconds. Without a name it is of the old form."""

    key: str
    value: str
    taken: float
    namespace: str = ""
    pod: str = ""


def lock(key: str, value: str) -> Lock | None:
    """`TIME,NAMESPACE,POD`, or TIME alone as old HAMi wrote it; None of anything else, which is nobody's."""
    time, *named = value.split(",")
    try:
        taken = datetime.fromisoformat(time)
    except ValueError:
        return None
    if len(value) > MAX_VALUE or taken.tzinfo is None or len(named) not in (0, 2) or not all(named):
        return None
    return Lock(key, value, taken.timestamp(), *named)


def locks(annotations: Mapping[str, str], keys: Iterable[str]) -> list[Lock]:
    """The locks of these keys that stand on the Node."""
    found = (lock(key, annotations[key]) for key in dict.fromkeys(keys) if key in annotations)
    return [it for it in found if it is not None]


def kept(annotations: Mapping[str, str]) -> dict[str, str]:
    """The annotations that read like a scheduler's lock."""
    return {key: it for key, it in annotations.items() if lock(key, it) is not None}


def keys_of(schedulers: Iterable[Scheduler], vendors: Iterable[Vendor]) -> tuple[str, ...]:
    """The locks that are freed here: of the registered schedulers, of their dialects and of the vendors'."""
    heard = tuple(schedulers)
    locks = [scheduler.locks for scheduler in heard]
    locks += [dialect.locks for scheduler in heard for dialect in scheduler.dialects]
    locks += [dialect.locks for vendor in vendors for dialect in vendor.schedulers]
    return tuple(dict.fromkeys(key for keys in locks for key in keys))


def ahead(its: Iterable[Lock], known: Mapping[Lock, float], now: float, seen: float) -> dict[Lock, float]:
    """When each lock was seen first that lay further ahead of `now` then than it may last.

    `known`: those of before. `seen`: this moment, on a clock that nobody sets.
    """
    return {it: known.get(it, seen) for it in its if it in known or it.taken - now > EXPIRES}


def named(
    its: Iterable[Lock], now: float, waited: Mapping[Lock, float] = MappingProxyType({})
) -> frozenset[tuple[str, str]]:
    """The pods, by namespace and name, that locks name which have not expired.

    `waited`: seconds since those were seen that were ahead.
    """
    return frozenset(
        (it.namespace, it.pod) for it in its if it.pod and max(now - it.taken, waited.get(it, 0.0)) < EXPIRES
    )


def over(
    it: Lock,
    pods: Iterable[Candidate],
    allocations: Iterable[Allocation],
    now: float,
    waited: float = 0.0,
) -> str:
    """Why the lock is to be freed; empty while it is not.

    A pod that is not known may be about to be bound: only time ends its lock. `waited`: seconds since it was
    seen, of one that was ahead.
    """
    mine = [pod for pod in pods if it.pod and (pod.namespace, pod.name) == (it.namespace, it.pod)]
    if mine and all(pod.over for pod in mine):
        return "its pod is over"
    its = tuple(allocations)
    served, given = (
        _served(its),
        {one.owner.uid for one in its if one.source is AllocationSource.ANNOTATION and one.owner},
    )
    if any(_is_served(pod, served) or _asks_nobody(pod, served, given) for pod in mine):
        return "its pod has its devices"
    if now - it.taken >= EXPIRES:
        return EXPIRED
    return AHEAD if waited >= EXPIRES else ""


def stale(found: Mapping[Lock, str]) -> tuple[str, ...]:
    """A sentence for each of those that are over which time alone ended."""
    return tuple(
        f"the lock {it.key} of the node is over: {shorten(it.value)} has not come for its devices, {why}"
        for it, why in found.items()
        if why in (EXPIRED, AHEAD)
    )


def freeing(it: Lock) -> list[dict[str, Any]]:
    """The JSON patch of the Node: it fails where another lock stands there by then."""
    path = f"/metadata/annotations/{it.key.replace('~', '~0').replace('/', '~1')}"
    return [{"op": "test", "path": path, "value": it.value}, {"op": "remove", "path": path}]


def _served(allocations: Iterable[Allocation]) -> Mapping[str, Collection[tuple[str, str]]]:
    """Resource to the places, uid and container, that have an allocation of it."""
    found: dict[str, set[tuple[str, str]]] = {}
    for it in allocations:
        if it.place is not None and it.source is not AllocationSource.ANNOTATION:
            found.setdefault(it.resource, set()).add(it.place)
    return found


def _is_served(pod: Candidate, served: Mapping[str, Collection[tuple[str, str]]]) -> bool:
    """Whether each container of it that asks for what is served here has it, and there is one."""
    asking = [(name, it.name) for it in pod.containers for name in it.limits if name in served]
    return bool(asking) and all((pod.uid, container) in served[name] for name, container in asking)


def _asks_nobody(
    pod: Candidate, served: Mapping[str, Collection[tuple[str, str]]], given: Collection[str]
) -> bool:
    """Whether it has cards by the scheduler's word alone: nobody is ever asked for them."""
    return pod.uid in given and not any(name in served for it in pod.containers for name in it.limits)
