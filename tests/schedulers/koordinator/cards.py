"""Short ways to say a node's cards, and what is told of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent.core.model import (
    AbsentDevice,
    Cordon,
    DeviceStatus,
    Health,
    NodeSnapshot,
    VendorState,
    VendorStatus,
)
from agent.core.publishing.node_cards import node_cards
from agent.scheduler_api.node_report import Report
from agent.schedulers.koordinator import reported_cards as reports
from agent.schedulers.koordinator.device_object import device
from agent.vendor_api.agent import Device, Link, State

NODE, UID, NOW = "n1", "6f1b", 1_700_000_000.0
GIB = 1 << 30


def report(snapshot: NodeSnapshot, *args: Any, **more: Any) -> Report | None:
    """What is told of the devices of this snapshot."""
    return reports.report(node_cards(snapshot), *args, **more)


RECORDED: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "data/koordlet-device-infos.json").read_text()
)["cases"]


def card(index: int, /, vendor: str = "metax", health: Health | None = None, **changes: Any) -> DeviceStatus:
    """A card as the recorded koordlet was told of: two under a root, four of a NUMA node."""
    told = Device(
        uuid=f"GPU-{index:08x}-{vendor}",
        index=index,
        minor=index,
        pci=f"0000:{0x10 + index:02x}:00.0",
        numa=index // 4,
        memory=64 * GIB,
        model="MXC500" if vendor == "metax" else f"{vendor} X1",
        attributes={"pcie-root": f"pci0000:{0x10 + index // 2:02x}", "driver-version": "2.32.0"},
    )
    how = health or Health(State.HEALTHY)
    return DeviceStatus(vendor, replace(told, **changes), how, how.state is not State.UNHEALTHY)


def cards(count: int, vendor: str = "metax") -> list[DeviceStatus]:
    return [card(index, vendor=vendor) for index in range(count)]


def node(
    devices: Sequence[DeviceStatus] = (), *, absent: Sequence[AbsentDevice] = (), **states: VendorState
) -> NodeSnapshot:
    """A node whose vendors are open where they have devices, or are as it is said."""
    named = {it.vendor: VendorState.OPEN for it in devices} | states
    vendors = tuple(VendorStatus(name, named[name], _WHY[named[name]]) for name in sorted(named))
    return NodeSnapshot(vendors, tuple(devices), tuple(absent))


_WHY = {VendorState.OPEN: "", VendorState.STARTING: "", VendorState.FAILED: "it crashed"} | {
    VendorState.UNAVAILABLE: "driver-not-loaded",
    VendorState.LEFT_OUT: "its plugin is broken",
}


def broken(index: int, reason: str = "ecc error", message: str = "2 uncorrectable errors") -> DeviceStatus:
    return card(index, health=Health(State.UNHEALTHY, reason, message))


def lost(it: DeviceStatus, *, told_healthy: bool) -> DeviceStatus:
    return replace(it, health=Health(State.UNKNOWN, "lost-contact", "it crashed"), told_healthy=told_healthy)


def cordoned(it: DeviceStatus) -> DeviceStatus:
    return replace(it, cordon=Cordon("ann", "fan noise"))


def linked(pairs: dict[tuple[int, int], int], size: int, **changes: Any) -> list[DeviceStatus]:
    """Cards with lanes between them; each has a link, be it one without lanes."""
    links: dict[int, list[Link]] = {index: [] for index in range(size)}
    for index in range(size):
        for peer in range(size):
            lanes = pairs.get((index, peer), pairs.get((peer, index), 0))
            if peer != index:
                links[index].append(Link(f"GPU-{peer:08x}-metax", lanes))
    return [card(index, links=tuple(links[index]), **changes) for index in range(size)]


def told(snapshot: NodeSnapshot, **known: Any) -> Report:
    """What is told of a node that has something to tell."""
    found = report(snapshot, **known)
    assert found is not None
    return found


def written(found: Report, existing: Any = None, now: float = NOW) -> dict[str, Any]:
    """The Device of a report that says something new; as JSON has it."""
    fresh = device(NODE, UID, found, existing, now)
    assert fresh is not None
    again: dict[str, Any] = json.loads(json.dumps(fresh))
    return again
