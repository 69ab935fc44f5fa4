"""A view with one of everything, for the tests of what is made of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from msgspec import structs

from agent.cli import inspect_tables
from agent.core.model import (
    AdvertisedDevice,
    Allocation,
    AllocationState,
    DeviceStatus,
    Health,
    IdRange,
    NodeSnapshot,
    Owner,
    ProcessStatus,
    Resource,
    SessionStatus,
    VendorState,
    VendorStatus,
)
from agent.core.publishing.agent_status import AgentStatus
from agent.host.terminal import PIPE_WIDTH
from agent.http.answer import document
from agent.http.inspect_builder import inspect_document
from agent.http.inspect_document import from_builtins, to_builtins
from agent.scheduler_api import Claim
from agent.vendor_api.agent import Device, Distance, Link, ResourceRule, Sharing, State

GOOD = DeviceStatus(
    "nvidia",
    Device(
        "GPU-0",
        0,
        minor=0,
        pci="0000:01:00.0",
        numa=0,
        memory=80 << 30,
        model="H100",
        paths=("/dev/nvidia0",),
        links=(Link("GPU-1", 18, Distance.SWITCH), Link("GPU-2", 0, Distance.SYSTEM)),
    ),
    Health(State.HEALTHY, since=1000.0),
    told_healthy=True,
)
BAD = DeviceStatus(
    "nvidia",
    Device("GPU-1", 1, numa=None, memory=80 << 30, model="H100"),
    Health(State.UNHEALTHY, "xid-79", "fell off the bus", since=1500.1234567),
    told_healthy=False,
)
RESOURCE = Resource(
    "nvidia.com/gpu",
    "nvidia",
    ResourceRule("nvidia.com/gpu", sharing=Sharing("replicas", 4)),
    "distributed",
    (
        AdvertisedDevice("GPU-0", IdRange("GPU-0", 4), healthy=True),
        AdvertisedDevice("GPU-1", IdRange("GPU-1", 4), healthy=False),
    ),
)
ALLOCATION = Allocation(
    "a1",
    "nvidia.com/gpu",
    "nvidia",
    ("GPU-0::1", "GPU-0::2"),
    ("GPU-0",),
    AllocationState.DONE,
    1200.0,
    owner=Owner("uid-1", "main", "default", "trainer"),
)
VIEW = AgentStatus(
    node="node-1",
    version="1.2.3",
    snapshot=NodeSnapshot((VendorStatus("nvidia", VendorState.OPEN),), (GOOD, BAD)),
    processes={"nvidia": ProcessStatus(77, 60_000_000, 3, "half-open", 1600.1234, 78, 1 << 30)},
    resources={"nvidia.com/gpu": RESOURCE},
    sessions={"nvidia.com/gpu": SessionStatus("registered", registrations=2)},
    allocations=(
        ALLOCATION,
        replace(ALLOCATION, id="a2", owner=None, ids=("GPU-0::2",)),
        replace(ALLOCATION, id="a3", ids=("GPU-0::3",), state=AllocationState.RELEASED),
    ),
    counters={("vendor_restarts", (("vendor", "nvidia"),)): 3, ("checkpoint_saves_total", ()): 7},
    allocate_seconds={("nvidia.com/gpu", "ok"): (4.0, 11.5, 1.0, 0.0, 2.0)},
    pre_start_seconds={("nvidia.com/gpu", "ok"): (4.0, 11.5, 1.0, 0.0, 2.0)},
)
EMPTY = AgentStatus(node="node-1", version="1.2.3")

#: What pods, hardware and vendors may call themselves.
HOSTILE = '\x1b]0;owned\x07\nfake line [red]markup[/red] "quoted" \\ \u202e\udc80'


def hostile() -> AgentStatus:
    """A view in which every text of a stranger is hostile."""
    device = replace(
        GOOD.device, uuid=HOSTILE, model=HOSTILE, attributes={HOSTILE: HOSTILE}, links=(Link(HOSTILE),)
    )
    status = DeviceStatus("nvidia", device, Health(State.UNHEALTHY, HOSTILE, HOSTILE), told_healthy=False)
    resource = replace(RESOURCE, cards=(AdvertisedDevice(HOSTILE, IdRange(HOSTILE), healthy=True),))
    owner = Owner(HOSTILE, HOSTILE, HOSTILE, HOSTILE)
    said = {HOSTILE: HOSTILE}
    claim = Claim(HOSTILE, HOSTILE, HOSTILE, HOSTILE, (HOSTILE,), said, HOSTILE, HOSTILE)
    return structs.replace(
        VIEW,
        snapshot=NodeSnapshot((VendorStatus("nvidia", VendorState.FAILED, HOSTILE),), (status,)),
        resources={"nvidia.com/gpu": resource},
        sessions={"nvidia.com/gpu": SessionStatus("refused", HOSTILE)},
        allocations=(
            replace(ALLOCATION, ids=(HOSTILE,), devices=(HOSTILE,), owner=owner, claim=claim, handed=said),
        ),
        config_error=HOSTILE,
        checkpoint_error=HOSTILE,
        counters={(HOSTILE, ((HOSTILE, HOSTILE),)): 1},
        allocate_seconds={(HOSTILE, HOSTILE): (1.0, 1.0)},
        pre_start_seconds={(HOSTILE, HOSTILE): (1.0, 1.0)},
    )


def document_of(view: AgentStatus) -> dict[str, Any]:
    """The JSON of /inspect."""
    found: dict[str, Any] = json.loads(document(to_builtins(inspect_document(view))).body)
    return found


def as_text(shown: Mapping[str, Any], now: float, width: int = PIPE_WIDTH) -> str:
    """What `inspect` prints of such JSON."""
    return inspect_tables.as_text(from_builtins(shown), now, width)
