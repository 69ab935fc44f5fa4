"""A state with something of everything, and the file that it goes to."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.core.devices.health_rules import HealthRecord
from agent.core.model import Allocation, AllocationSource, AllocationState, Cordon, FirstList, Owner
from agent.scheduler_api import Claim
from agent.state.checkpoint import CheckpointFile, SavedState
from agent.vendor_api.agent import Device, Fault, Proof

STATE = SavedState(
    boot_id="3f0c",
    allocations=(
        Allocation(
            "one",
            "acme.com/gpu",
            "acme",
            ("a::0",),
            ("a",),
            AllocationState.PREPARED,
            12.5,
            source=AllocationSource.CHECKPOINT,
            owner=Owner("uid-1", "main", "default", "web-0"),
            partitions=("slice-1",),
            claim=Claim("uid-1", "default", "web-0", "main", ("a",), {"cores": "50"}),
        ),
    ),
    health={
        "a": HealthRecord(
            Fault("xid-79", "fell off the bus", cleared_by=(Proof.REBOOT,)), 3.0, told_healthy=False
        )
    },
    devices={"acme": (Device("a", 0, pci="0000:01:00.0", counters={"ecc": 7}),)},
    cordons={"a": Cordon("ops", "smells", 9.0)},
    labels={"pool": "a100", "zone": None},
    config="large",
    first=FirstList(1_700_000_000_123_456_789, ("uid-1", "uid-2")),
)


@pytest.fixture
def file(tmp_path: Path) -> CheckpointFile:
    return CheckpointFile(tmp_path / "state" / "checkpoint.json")


@pytest.fixture
def state() -> SavedState:
    return STATE
