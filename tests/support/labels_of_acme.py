"""A vendor whose labels count its cards, and what it sees of a node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agent.core.model import DeviceStatus, Health, NodeSnapshot, VendorState, VendorStatus
from agent.core.publishing.label_rules import NodeStamp
from agent.vendor_api.agent import (
    ContainerEdits,
    Device,
    Labels,
    NodeFacts,
    ResourceRule,
    Settings,
    State,
    Vendor,
)

NOW = 1700000000.9
STAMP = "acme.com/timestamp=1700000000\n"
NOTHING = NodeStamp()


def counting(rules: Sequence[ResourceRule], devices: Sequence[Device]) -> Mapping[str, str]:
    return {"acme.com/card.count": str(len(devices))}


def acme(labels: Labels | None = counting, name: str = "acme", backend: str = "", **settings: Any) -> Vendor:
    backend = backend or "support.faulty_backends:Good"
    edits = ContainerEdits()
    return Vendor(
        name,
        backend,
        f"{name}.com/card",
        lambda *_: edits,
        settings=Settings(settings),
        publishes=NodeFacts(labels=labels, time_label=f"{name}.com/timestamp"),
    )


def snapshot(cards: int, state: VendorState = VendorState.OPEN, name: str = "acme") -> NodeSnapshot:
    health = Health(State.HEALTHY)
    devices = tuple(DeviceStatus(name, Device(f"{name}-{it}", it), health, True) for it in range(cards))
    return NodeSnapshot((VendorStatus(name, state),), devices)
