"""Made-up use of cards: one card that two pods share, and a node with many containers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from msgspec import structs

from agent.core.model import (
    AdvertisedDevice,
    Allocation,
    AllocationState,
    DeviceStatus,
    Health,
    IdRange,
    NodeSnapshot,
    Owner,
    Resource,
    VendorState,
    VendorStatus,
)
from agent.core.publishing.agent_status import AgentStatus
from agent.core.usage.usage_report import (
    CardUse,
    ContainerUse,
    ProcessUse,
    SamplingStatus,
    Unattributed,
    UsageReport,
)
from agent.daemon import vendor_plugins
from agent.http.usage.series import usage_page
from agent.vendor_api.agent import Device, ResourceRule, Sharing, State, Usage

NOW = 2_000_000.0
SHARED = "nvidia.com/gpu.shared"


def listed(uuid: str, index: int = 0, **of_device: Any) -> DeviceStatus:
    known: dict[str, Any] = {
        "minor": index,
        "pci": f"0000:{index + 1:02x}:00.0",
        "memory": 85520809984,
        "model": "NVIDIA H100",
        "attributes": {"driver-version": "580.65.06"},
    }
    device = Device(uuid, index, **(known | of_device))
    return DeviceStatus("nvidia", device, Health(State.HEALTHY), told_healthy=True)


def shared(*uuids: str, replicas: int = 4) -> Resource:
    cards = tuple(AdvertisedDevice(uuid, IdRange(uuid, replicas), healthy=True) for uuid in uuids)
    return Resource(
        SHARED, "nvidia", ResourceRule(SHARED, sharing=Sharing("replicas", replicas)), "packed", cards
    )


def allocated(pod: str, namespace: str, container: str, uuid: str = "GPU-a", **more: Any) -> Allocation:
    known: dict[str, Any] = {
        "resource": SHARED,
        "ids": (f"{uuid}::0",),
        "devices": (uuid,),
        "owner": Owner(f"uid-{pod}", container, namespace, pod),
    }
    return Allocation(
        id=f"{pod}-{uuid}", vendor="nvidia", state=AllocationState.DONE, since=1.0, **(known | more)
    )


def used(pod: str, namespace: str, container: str, uuid: str = "GPU-a", **figures: Any) -> ContainerUse:
    known: dict[str, Any] = {"resource": SHARED, "processes": 1}
    return ContainerUse(namespace, pod, f"uid-{pod}", container, "nvidia", uuid, **(known | figures))


CARD = CardUse(
    "nvidia",
    Usage(
        "GPU-a",
        memory_total=85520809984,
        memory_reserved=669515776,
        memory_used=22548578304,
        utilization=0.55,
        memory_utilization=0.2,
        tensor_utilization=0.125,
        encoder_utilization=0.01,
        decoder_utilization=0.02,
        power=301.5,
        energy=1234.5,
        temperature=51,
        memory_temperature=60,
        clock=1_980_000_000,
        memory_clock=2_619_000_000,
        ecc_errors={"corrected": 3, "uncorrected": 0},
        driver_errors={"31": 2},
        last_driver_error=31,
    ),
    unattributed={Unattributed.HOST: 536870912, Unattributed.DRIVER: 536870912},
)
INFER = used(
    "infer-0",
    "a",
    "main",
    memory=12884901888,
    utilization=0.41,
    memory_limit=21474836480,
    compute_limit=0.25,
    active_at=NOW - 1,
    processes=2,
)
NOTEBOOK = used("nb-3", "b", "nb", memory=8589934592, utilization=0.0, active_at=NOW - 3600)
REPORT = UsageReport(
    interval=5.0,
    now=NOW,
    sampling=(SamplingStatus("nvidia", at=NOW - 2, tells_processes=True),),
    cards=(CARD,),
    containers=(INFER, NOTEBOOK),
    processes=(
        ProcessUse(71, "GPU-a", "python3", "a", "infer-0", "main", 12884901888, 0.41),
        ProcessUse(72, "GPU-a", "jupyter", "b", "nb-3", "nb", 8589934592, 0.0),
        ProcessUse(9, "GPU-a", "Xorg", memory=536870912),
    ),
    unknown={"owner": 0, "memory": 0, "utilization": 1},
)
#: One node, one card of 81,559 MiB in 4 replicas, two pods and one process of the host.
WORKED = AgentStatus(
    node="n1",
    version="1.2.3",
    snapshot=NodeSnapshot((VendorStatus("nvidia", VendorState.OPEN),), (listed("GPU-a"),)),
    resources={SHARED: shared("GPU-a")},
    allocations=(
        allocated("infer-0", "a", "main"),
        allocated("nb-3", "b", "nb", ids=("GPU-a::1",)),
    ),
    usage=REPORT,
)


def with_report(status: AgentStatus = WORKED, **changed: Any) -> AgentStatus:
    assert status.usage is not None
    return structs.replace(status, usage=structs.replace(status.usage, **changed))


def with_exporters(status: AgentStatus, *names: str) -> AgentStatus:
    """The status of an agent that serves NVIDIA, with these exporters switched on."""
    plugins = vendor_plugins.load({}, {"nvidia"})
    vendors = {it.name: it.vendor for it in plugins if it.vendor is not None}
    return structs.replace(status, vendors=vendors, exporters=frozenset(names))


def crowded(cards: int, containers: int) -> AgentStatus:
    """A node with so many cards and containers, each on one card, all figures known."""
    uuids = [f"GPU-{number:08}-aaaa-bbbb-cccc-{number:012}" for number in range(cards)]
    uses = tuple(
        structs.replace(
            INFER,
            namespace=f"team-{number % 20}",
            pod=f"trainer-{number:05}-0",
            uuid=uuids[number % cards],
            memory=1 << 20,
        )
        for number in range(containers)
    )
    return structs.replace(
        WORKED,
        snapshot=NodeSnapshot(WORKED.snapshot.vendors, tuple(map(listed, uuids, range(cards)))),
        resources={SHARED: shared(*uuids, replicas=max(1, containers // cards))},
        allocations=tuple(
            allocated(it.pod, it.namespace, it.container, it.uuid, ids=(f"{it.uuid}::{number // cards}",))
            for number, it in enumerate(uses)
        ),
        usage=structs.replace(
            REPORT,
            cards=tuple(
                structs.replace(CARD, usage=_named(CARD.usage, uuid), unattributed={}) for uuid in uuids
            ),
            containers=uses,
        ),
    )


def _named(usage: Usage, uuid: str) -> Usage:
    return replace(usage, uuid=uuid)


def lines(status: AgentStatus, most: int | None = None) -> list[str]:
    """The series of use, line by line."""
    page = usage_page(status) if most is None else usage_page(status, most)
    return [line for line in page.decode().splitlines() if not line.startswith("#")]
