"""The annotations that vendors want follow config, devices and allocations, each soon after it changes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
import pytest
from core.values import allocation
from kubelet.fakes import eventually

from agent.config import Config, ConfigState, VendorSettings
from agent.core.annotations import Annotated
from agent.core.cell import Cell
from agent.core.ledger import Ledger
from agent.core.model import Cordon, DeviceStatus, Health, NodeSnapshot, VendorState, VendorStatus
from agent.core.vendor import ContainerEdits, Device, Fault, Grant, ResourceRule, State, Vendor
from agent.telling.annotating import Annotating

KEY = "acme.com/devices"


def told(
    rules: Sequence[ResourceRule], devices: Sequence[Device], given: Sequence[Grant]
) -> Mapping[str, str | None]:
    """The rules' names, the devices, and the cards of each allocation."""
    names, cards = (
        (it.name for it in rules),
        (f"{it.request.allocation}={'+'.join(it.uuids)}" for it in given),
    )
    return {KEY: " ".join([*names, *(it.uuid for it in devices), *cards])}


def acme(annotations: Any = told, keys: tuple[str, ...] = (KEY,)) -> Vendor:
    edits = ContainerEdits()
    return Vendor(
        "acme", "x:Y", lambda *_: edits, "acme.com/card", annotations=annotations, annotation_keys=keys
    )


def snapshot(*uuids: str, state: VendorState = VendorState.OPEN) -> NodeSnapshot:
    health = Health(State.HEALTHY)
    devices = tuple(DeviceStatus("acme", Device(it, n), health, True) for n, it in enumerate(uuids))
    return NodeSnapshot((VendorStatus("acme", state),), devices)


class Here:
    """An Annotating, and what it looks at."""

    def __init__(self, vendor: Vendor | None = None, there: NodeSnapshot | None = None) -> None:
        self.config = Cell(ConfigState(Config(), "test"))
        self.snapshot = Cell(snapshot("c0", "c1") if there is None else there)
        self.ledger = Ledger()
        self.vendors = {"acme": vendor or acme()}
        self.annotating = Annotating(
            self.config, self.snapshot, self.ledger, lambda: self.vendors, settle=0.001
        )

    def texts(self) -> Mapping[str, str | None]:
        wanted = self.annotating.wanted.value
        return {} if wanted is None else wanted.values

    async def once(self) -> Annotated | None:
        await self.annotating.once()
        return self.annotating.wanted.value

    @asynccontextmanager
    async def runs(self) -> AsyncIterator[None]:
        async with anyio.create_task_group() as group:
            group.start_soon(self.annotating.run)
            yield
            group.cancel_scope.cancel()


async def test_they_follow_what_is_given_out_the_devices_and_the_config() -> None:
    here = Here()
    async with here.runs():
        await eventually(lambda: here.texts() == {KEY: "c0 c1"})

        here.ledger.record(allocation("a1", ["c0"]))
        await eventually(lambda: here.texts() == {KEY: "c0 c1 a1=c0"})
        here.ledger.record(allocation("a2", ["c1"]))
        await eventually(lambda: here.texts() == {KEY: "c0 c1 a1=c0 a2=c1"})
        here.ledger.release("a1", "over", 1.0)
        await eventually(lambda: here.texts() == {KEY: "c0 c1 a2=c1"})
        here.ledger.forget("a2")
        await eventually(lambda: here.texts() == {KEY: "c0 c1"})

        here.snapshot.set(snapshot("c1"))
        await eventually(lambda: here.texts() == {KEY: "c1"})
        rules = VendorSettings(resources=(ResourceRule("acme.com/r"),))
        here.config.set(ConfigState(Config(vendors={"acme": rules}), "test"))
        await eventually(lambda: here.texts() == {KEY: "acme.com/r c1"})


@pytest.mark.parametrize(
    ("told_healthy", "health", "cordon", "fault"),
    [
        (True, Health(State.UNKNOWN, "lost-contact"), None, None),
        (False, Health(State.UNHEALTHY, "dbe", "2 errors"), None, Fault("dbe", "2 errors")),
        (False, Health(State.UNKNOWN, "lost-contact"), None, Fault("lost-contact", state=State.UNKNOWN)),
        (True, Health(State.HEALTHY), Cordon("ann", "fans"), Fault("cordoned", "fans")),
    ],
)
async def test_a_device_has_a_fault_where_nobody_new_gets_it(
    told_healthy: bool, health: Health, cordon: Cordon | None, fault: Fault | None
) -> None:
    read = Device("c0", 0, fault=Fault("read-once"))  # what one reading says decides nothing yet
    status = DeviceStatus("acme", read, health, told_healthy, cordon=cordon)
    seen: list[Fault | None] = []

    def look(rules: object, devices: Sequence[Device], given: object) -> Mapping[str, str | None]:
        seen.extend(it.fault for it in devices)
        return {}

    await Here(acme(look), NodeSnapshot((VendorStatus("acme", VendorState.OPEN),), (status,))).once()

    assert seen == [fault]


async def test_a_key_of_two_vendors_is_the_first_ones_and_that_is_said() -> None:
    both = VendorStatus("acme", VendorState.OPEN), VendorStatus("brio", VendorState.OPEN)
    here = Here(there=NodeSnapshot(both))
    brio = acme(lambda *_: {KEY: "brio", "brio.com/own": "brio"}, keys=(KEY, "brio.com/own"))
    here.vendors["brio"] = replace(brio, name="brio")

    assert await here.once() == Annotated({KEY: "", "brio.com/own": "brio"})
    assert here.annotating.error == f"brio: {KEY} is acme's, and is not written for brio"

    here.snapshot.set(NodeSnapshot((VendorStatus("acme", VendorState.STARTING), both[1])))
    assert await here.once() == Annotated({"brio.com/own": "brio"}, frozenset({KEY}))

    here.snapshot.set(NodeSnapshot(both[1:]))
    assert await here.once() == Annotated({KEY: "brio", "brio.com/own": "brio"})
    assert here.annotating.error == ""


async def test_a_vendor_that_left_the_config_wants_nothing() -> None:
    here = Here()
    assert await here.once() == Annotated({KEY: "c0 c1"})

    here.snapshot.set(NodeSnapshot())

    assert await here.once() == Annotated()


async def test_a_vendor_that_makes_none_any_more_has_its_keys_removed() -> None:
    assert await Here(acme(None)).once() == Annotated({KEY: None})


@pytest.mark.parametrize("state", [VendorState.STARTING, VendorState.FAILED, VendorState.UNAVAILABLE])
async def test_of_a_vendor_that_has_not_listed_its_devices_nothing_changes(state: VendorState) -> None:
    assert await Here(there=snapshot(state=state)).once() == Annotated({}, frozenset({KEY}))


async def test_a_vendor_that_was_lost_is_told_with_the_devices_it_had() -> None:
    assert await Here(there=snapshot("c0", state=VendorState.FAILED)).once() == Annotated({KEY: "c0"})


async def test_a_vendor_that_can_not_make_them_is_told_and_what_stands_there_stays() -> None:
    here = Here(acme(lambda *_: {"foreign.com/x": "1"}))

    assert await here.once() == Annotated({}, frozenset({KEY}))
    assert "not among its annotation_keys" in here.annotating.error

    here.vendors["acme"] = acme()
    assert await here.once() == Annotated({KEY: "c0 c1"})
    assert here.annotating.error == ""


async def test_while_no_config_is_known_nobody_knows_what_is_wanted() -> None:
    here = Here()
    here.config.set(replace(here.config.value, waiting=True))

    assert await here.once() is None
