"""koord-scheduler as far as it chooses devices of a node from its Device alone, and writes them on the pod.

Restated from koordinator a7a1b76b, pkg/scheduler/plugins/deviceshare: device_allocator.go, allocator_gpu.go,
scoring.go, plugin.go, device_plugin_adapter.go. test_scheduler.py holds it to what the real one wrote.
Left out: reservations, preemption, virtual functions, resource templates, adapters but MetaX's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from .amounts import Amounts, added, amounts, binary
from .choice import Card, Node, Part, chosen, narrowest
from .wishes import CORE, MEMORY, RATIO, Unschedulable, wishes

ALLOCATED = "scheduling.koordinator.sh/device-allocated"
BOUND, MINORS = "scheduling.koordinator.sh/bind-timestamp", "scheduling.koordinator.sh/gpu-minors"
HINT = "scheduling.koordinator.sh/device-allocate-hint"
JOINT = "scheduling.koordinator.sh/device-joint-allocate"
METAX = "metax-tech.com/gpu-devices-allocated"
ISOLATION, HAMI_NODE = "koordinator.sh/gpu-isolation-provider", "hami.io/vgpu-node"
VENDOR = "node.koordinator.sh/gpu-vendor"
LOCK = "hami.io/mutex.lock"
LOCKED_FOR = 300.0


@dataclass(frozen=True, slots=True)
class Asking:
    """A pod that waits to be scheduled."""

    name: str
    #: The limits of each container, as the pod's author wrote them.
    containers: tuple[Mapping[str, str], ...]
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    namespace: str = "default"

    @property
    def total(self) -> dict[str, int]:
        return added(amounts({k: v for k, v in its.items() if "/" in k}) for its in self.containers)


@dataclass(frozen=True, slots=True)
class Bound:
    """A pod on the node: what it asks for, and what its annotation says, whoever wrote that."""

    asking: Asking
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    #: What was written on the Node.
    locks: Mapping[str, str] = field(default_factory=dict)


class Scheduler:
    """Keeps nothing in mind: its book is what the pods of the node say."""

    def __init__(self, *, adapts: bool = True, numa: bool = False) -> None:
        """`adapts`: the gate DevicePluginAdaption. `numa`: whether pods are kept within few NUMA nodes."""
        self._adapts = adapts
        self._numa = numa

    def bind(
        self,
        asking: Asking,
        device: Mapping[str, Any] | None,
        pods: Sequence[Bound],
        *,
        allocatable: Amounts,
        labels: Mapping[str, str] | None = None,
        locks: Mapping[str, str] | None = None,
        node: str = "node",
        now: float = 0.0,
    ) -> Bound:
        """The pod with what is written on it; `locks` are the Node's annotations.

        Raises:
            Unschedulable: The node does not take it.
        """
        total = asking.total
        taken = added(it.asking.total for it in pods)
        for name, amount in total.items():
            if taken.get(name, 0) + amount > allocatable.get(name, 0):
                raise Unschedulable(f"Insufficient {name}")
        wanted = wishes(total)
        provider = asking.labels.get(ISOLATION)
        if provider and wanted["gpu"].shared and (labels or {}).get(ISOLATION) != provider:
            raise Unschedulable("GPUIsolationProviderHAMICore not found on the node")
        if device is None or not wanted:
            return Bound(asking)  # left to the kubelet
        sight = seen(device, pods)
        hints = json.loads(asking.annotations.get(HINT, "{}"))
        joint = json.loads(asking.annotations.get(JOINT, "null"))
        take = narrowest if self._numa else chosen
        parts = {type: _filled(its, sight, type) for type, its in take(sight, wanted, hints, joint).items()}
        written = {ALLOCATED: _json({type: [_part(it) for it in its] for type, its in parts.items()})}
        if not self._adapts:
            return Bound(asking, written)
        written |= {BOUND: str(int(now * 1e9))}
        gpus = parts.get("gpu", [])
        if gpus:
            written |= {MINORS: ",".join(str(it.card.minor) for it in gpus)}
        fresh: dict[str, str] = {}
        if gpus and device["metadata"].get("labels", {}).get(VENDOR) == "metax":
            written |= {METAX: _metax(gpus)}
            _refuse_locked((locks or {}).get(LOCK), pods, now)
            stamp = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            fresh = {LOCK: f"{stamp},{asking.namespace},{asking.name}"}
        marks = {HAMI_NODE: node} if gpus and provider == "HAMi-core" else {}
        return Bound(asking, written, marks, fresh)


def seen(device: Mapping[str, Any], pods: Iterable[Bound]) -> Node:
    """The node as the scheduler sees it."""
    partitions = json.loads(device["metadata"].get("annotations", {}).get(_PARTITIONS, "{}"))
    honors = device["metadata"].get("labels", {}).get(_POLICY) == "Honor"
    cards: dict[str, dict[int, Card]] = {}
    for it in device["spec"]["devices"]:
        cards.setdefault(it["type"], {})[it["minor"]] = Card(
            it["type"],
            it["minor"],
            it.get("id", ""),
            amounts(it["resources"]) if it["health"] else {},
            it.get("topology"),
            it.get("labels", {}),
        )
    return Node(cards, booked(pods), {int(size): groups for size, groups in partitions.items()}, honors)


def booked(pods: Iterable[Bound]) -> dict[str, dict[int, dict[str, int]]]:
    """Device type to minor to what is used of it, by the annotations of these pods alone."""
    found: dict[str, dict[int, dict[str, int]]] = {}
    for pod in pods:
        for type, parts in json.loads(pod.annotations.get(ALLOCATED, "{}")).items():
            for it in parts:
                used = found.setdefault(type, {})
                used[it["minor"]] = added((used.get(it["minor"], {}), amounts(it["resources"])))
    return found


_PARTITIONS = "scheduling.koordinator.sh/gpu-partitions"
_POLICY = "node.koordinator.sh/gpu-partition-policy"


def _filled(parts: Sequence[Part], node: Node, type: str) -> list[Part]:
    """With both ways to say how much memory it is."""
    if type != "gpu":
        return list(parts)
    found = []
    for it in parts:
        total = node.cards[type][it.card.minor].total
        if not total:
            raise Unschedulable(f"no healthy gpu device with minor {it.card.minor} of allocation")
        its = dict(it.resources)
        if MEMORY in its:
            its.setdefault(RATIO, int(its[MEMORY] / total[MEMORY] * 100))
        else:
            its[MEMORY] = its[RATIO] * total[MEMORY] // 100
        found.append(Part(it.card, its))
    return found


def _part(it: Part) -> dict[str, Any]:
    resources = {
        name: binary(amount) if name == MEMORY else str(amount) for name, amount in it.resources.items()
    }
    return {"minor": it.card.minor, "resources": dict(sorted(resources.items())), "id": it.card.id}


def _metax(parts: Sequence[Part]) -> str:
    """All cards as of one container, whichever asks for them."""
    if any(CORE not in it.resources for it in parts):
        raise Unschedulable("gpu core resource is required")
    its = [
        {"uuid": it.card.id, "compute": it.resources[CORE], "vRam": it.resources[MEMORY] >> 20}
        for it in parts
    ]
    return _json([its])


def _refuse_locked(lock: str | None, pods: Sequence[Bound], now: float) -> None:
    if lock is None:
        return
    stamp, namespace, name = lock.split(",")
    there = any((it.asking.namespace, it.asking.name) == (namespace, name) for it in pods)
    if there and now - datetime.fromisoformat(stamp).timestamp() <= LOCKED_FOR:
        raise Unschedulable("the node has been locked")


def _json(said: Any) -> str:
    return json.dumps(said, separators=(",", ":"))
