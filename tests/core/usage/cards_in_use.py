"""A node whose cards containers and other processes use, as values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agent.core.allocation.known_pods import KnownPods
from agent.core.allocation.scene import Scene
from agent.core.attribution.scheduler_promises import Promises
from agent.core.devices.topology import Topology
from agent.core.model import (
    AdvertisedDevice,
    Allocation,
    DeviceStatus,
    Health,
    IdRange,
    NodeSnapshot,
    Owner,
    Resource,
    VendorState,
    VendorStatus,
)
from agent.core.usage.card_accounts import Accounts, KnownSample, accounts
from agent.core.usage.card_holdings import holdings
from agent.core.usage.cgroup_paths import CgroupOwner, Kind
from agent.core.usage.process_owners import NodeProcess
from agent.core.usage.usage_report import CardUse, ContainerUse, VendorSample
from agent.scheduler_api import Candidate, PodContainer
from agent.vendor_api.agent import Device, ProcessUsage, ResourceRule, Sharing, State, Usage, Vendor
from core.values import GPU, allocation, grouped

GIB = 1 << 30
CARD = "GPU-a"
OTHER_CARD = "GPU-b"
#: The container ids that the runtime gives are of this form.
HEX = "ab" * 32

ACME = Vendor("acme", "test:Backend", "acme.com/gpu", lambda devices, request: None)  # type: ignore[arg-type,return-value]


def device(
    uuid: str, memory: int = 16 * GIB, parent: str | None = None, vendor: str = "acme"
) -> DeviceStatus:
    return DeviceStatus(
        vendor, Device(uuid, 0, memory=memory, parent=parent), Health(State.HEALTHY), told_healthy=True
    )


def resource(
    *cards: str, replicas: int | None = None, name: str = GPU, sharing: Sharing | None = None
) -> Resource:
    ids = tuple(AdvertisedDevice(uuid, IdRange(uuid, replicas), healthy=True) for uuid in cards)
    return Resource(name, "acme", ResourceRule(name, sharing=sharing or Sharing()), "aligned", ids)


def pod(
    name: str, *containers: str, init: Sequence[str] = (), ids: Mapping[str, str] | None = None, **more: Any
) -> Candidate:
    names = (*(PodContainer(it, init=True) for it in init), *map(PodContainer, containers or ("main",)))
    known = {"pending": False, **more}
    return Candidate(f"uid-{name}", "ns", name, names, container_ids=ids or {}, **known)


def held(name: str, *ids: str, container: str = "main", named: bool = True, **more: Any) -> Allocation:
    """An allocation that a container of the pod of this name has."""
    owner = Owner(f"uid-{name}", container, *(("ns", name) if named else ()))
    return allocation(f"{name}/{container}/{more.get('resource', GPU)}", ids or (CARD,), owner=owner, **more)


def moment(
    *in_use: Allocation,
    pods: Iterable[Candidate] = (),
    devices: Iterable[DeviceStatus] = (),
    plan: Iterable[Resource] = (),
    vendor: Vendor = ACME,
    states: Mapping[str, VendorState] | None = None,
) -> Promises:
    snapshot = NodeSnapshot(
        tuple(VendorStatus(*it) for it in (states or {"acme": VendorState.OPEN}).items()),
        tuple(devices) or (device(CARD), device(OTHER_CARD)),
    )
    planned = {it.name: it for it in plan} or {GPU: resource(CARD, OTHER_CARD)}
    known = Scene(planned, snapshot, Topology({}), {"acme": vendor}, candidates=KnownPods.of(pods))
    return Promises(known, grouped(in_use))


def in_pod(name: str, container_id: str = HEX) -> NodeProcess:
    return NodeProcess(CgroupOwner(Kind.POD, f"uid-{name}", container_id), "python3")


ON_HOST = NodeProcess(CgroupOwner(Kind.HOST), "Xorg")
HIDDEN = NodeProcess(CgroupOwner(Kind.UNKNOWN))


def process(
    pid: int, memory: int | None = GIB, utilization: float | None = 0.5, uuid: str = CARD
) -> ProcessUsage:
    return ProcessUsage(uuid, pid, memory, utilization)


def card(used: int | None = None, uuid: str = CARD, total: int | None = 16 * GIB) -> Usage:
    return Usage(uuid, used, total)


def account(
    sample: VendorSample,
    known: Mapping[int, NodeProcess],
    now: Promises,
    *,
    then: Promises | None = None,
    logs: Mapping[str, tuple[str, str]] | None = None,
) -> Accounts:
    """The accounts of a sample that was taken `then`."""
    held_then = holdings("acme", sample, then or now)
    sampled = KnownSample(sample, known, logs or {}, held_then.places)
    return accounts({"acme": sampled}, now, {"acme": holdings("acme", sample, now, held_then)})


def by_name(found: Accounts) -> dict[tuple[str, str, str], ContainerUse]:
    """Pod, container and card to the use."""
    uses = {(it.pod, it.container, it.uuid): it for it in found.containers}
    assert len(uses) == len(found.containers)
    return uses


def by_uuid(found: Accounts) -> dict[str, CardUse]:
    uses = {it.usage.uuid: it for it in found.cards}
    assert len(uses) == len(found.cards)
    return uses


def balanced(found: Accounts) -> bool:
    """Whether each card's memory in use is the sum of what was found."""
    memory = dict.fromkeys(by_uuid(found), 0)
    for use in found.containers:
        if use.uuid in memory:
            memory[use.uuid] += use.memory or 0
    return all(
        it.usage.memory_used is None
        or memory[uuid] + sum(it.unattributed.values()) + it.in_slices - it.overcounted
        == it.usage.memory_used
        for uuid, it in by_uuid(found).items()
    )
