"""The annotations that vendors want follow what is given out, soon after it changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import anyio
from core.values import allocation
from support.waiting import eventually

from agent.config import Config, ConfigState
from agent.core.allocation.known_pods import KnownPods
from agent.core.allocation.ledger import Ledger
from agent.core.cell import Cell
from agent.core.model import DeviceStatus, Health, NodeSnapshot, VendorState, VendorStatus
from agent.daemon.publishing.wanted_node_annotations import WantedNodeAnnotations
from agent.vendor_api.agent import ContainerEdits, Device, Grant, NodeFacts, ResourceRule, State, Vendor

KEY = "acme.com/devices"
HEALTHY = Health(State.HEALTHY)


def told(
    rules: Sequence[ResourceRule], devices: Sequence[Device], given: Sequence[Grant]
) -> Mapping[str, str | None]:
    """The devices, and the cards of each allocation."""
    cards = (f"{it.request.allocation}={'+'.join(it.uuids)}" for it in given)
    return {KEY: " ".join([*(it.uuid for it in devices), *cards])}


async def test_they_follow_what_is_given_out() -> None:
    devices = tuple(DeviceStatus("acme", Device(f"c{n}", n), HEALTHY, True) for n in range(2))
    snapshot = NodeSnapshot((VendorStatus("acme", VendorState.OPEN),), devices)
    edits = ContainerEdits()
    vendor = Vendor(
        "acme",
        "x:Y",
        "acme.com/card",
        lambda *_: edits,
        publishes=NodeFacts(annotations=told, annotation_keys=(KEY,)),
    )
    config, ledger = Cell(ConfigState(Config(), "test")), Ledger()
    annotating = WantedNodeAnnotations(
        config, Cell(snapshot), ledger, Cell(KnownPods()), lambda: {"acme": vendor}, settle=0.001
    )

    def texts() -> Mapping[str, str | None]:
        wanted = annotating.wanted.value
        return {} if wanted is None else wanted.values

    async with anyio.create_task_group() as group:
        group.start_soon(annotating.run)
        await eventually(lambda: texts() == {KEY: "c0 c1"})
        ledger.record(allocation("a1", ["c0"]))
        await eventually(lambda: texts() == {KEY: "c0 c1 a1=c0"})
        ledger.record(allocation("a2", ["c1"]))
        await eventually(lambda: texts() == {KEY: "c0 c1 a1=c0 a2=c1"})
        ledger.release("a1", "over", 1.0)
        await eventually(lambda: texts() == {KEY: "c0 c1 a2=c1"})
        ledger.drop("a2")
        await eventually(lambda: texts() == {KEY: "c0 c1"})
        group.cancel_scope.cancel()
