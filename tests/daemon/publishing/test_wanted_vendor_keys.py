"""What vendors want of the Node under keys of their own follows config and devices, whatever sort it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import anyio
import pytest
from support.waiting import eventually

from agent.config import Config, ConfigState, VendorSettings
from agent.core.allocation.known_pods import KnownPods
from agent.core.allocation.ledger import Ledger
from agent.core.cell import Cell
from agent.core.model import Cordon, DeviceStatus, Health, NodeSnapshot, VendorState, VendorStatus
from agent.core.publishing.vendor_key_rules import WantedKeys
from agent.daemon.publishing.wanted_extended_resources import WantedExtendedResources
from agent.daemon.publishing.wanted_node_annotations import WantedNodeAnnotations
from agent.daemon.publishing.wanted_vendor_keys import WantedVendorKeys
from agent.vendor_api.agent import ContainerEdits, Device, Fault, NodeFacts, ResourceRule, State, Vendor

#: Of a vendor that makes it of its rules and devices.
Make = Callable[[Sequence[ResourceRule], Sequence[Device]], Mapping[str, Any]]


def number(rules: Sequence[ResourceRule], devices: Sequence[Device]) -> int:
    """A thousand for each rule, and one for each device."""
    return 1000 * len(rules) + len(devices)


@dataclass(frozen=True)
class Sort:
    """A sort of values: how a vendor makes them, and which part keeps them."""

    vendor: Callable[[Make | None, tuple[str, ...]], Vendor]
    owning: Callable[
        [Cell[ConfigState], Cell[NodeSnapshot], Callable[[], Mapping[str, Vendor]]], WantedVendorKeys[Any]
    ]
    #: How a value is written.
    value: Callable[[Any], Any]
    #: What a vendor may not make, and what is said of it.
    wrong: Mapping[str, Any]
    says: str
    key: str = "acme.com/key"

    def make(self, rules: Sequence[ResourceRule], devices: Sequence[Device]) -> Mapping[str, Any]:
        return {self.key: self.value(number(rules, devices))}


def _vendor(facts: NodeFacts) -> Vendor:
    return Vendor("acme", "x:Y", "acme.com/card", lambda *_: ContainerEdits(), publishes=facts)


def _annotated(make: Make | None, keys: tuple[str, ...]) -> Vendor:
    made = (lambda rules, devices, given: make(rules, devices)) if make else None
    return _vendor(NodeFacts(annotations=made, annotation_keys=keys))


def _extended(make: Make | None, keys: tuple[str, ...]) -> Vendor:
    return _vendor(NodeFacts(extended_resources=make, extended_resource_keys=keys))


ANNOTATIONS = Sort(
    _annotated,
    lambda config, snapshot, vendors: WantedNodeAnnotations(
        config, snapshot, Ledger(), Cell(KnownPods()), vendors, settle=0.001
    ),
    str,
    {"foreign.com/x": "1"},
    "not among its annotation_keys",
)
EXTENDED_RESOURCES = Sort(
    _extended,
    lambda config, snapshot, vendors: WantedExtendedResources(config, snapshot, vendors, settle=0.001),
    int,
    {"acme.com/key": -1},
    "-1 is no count",
)


def snapshot(*uuids: str, state: VendorState = VendorState.OPEN, gone: str = "") -> NodeSnapshot:
    devices = tuple(
        DeviceStatus("acme", Device(it, n), Health(State.UNHEALTHY), False, gone=it == gone)
        for n, it in enumerate(uuids)
    )
    return NodeSnapshot((VendorStatus("acme", state),), devices)


class Here:
    """What keeps the values of one sort, and what it looks at: a vendor with two cards."""

    def __init__(self, sort: Sort, there: NodeSnapshot | None = None) -> None:
        self.sort = sort
        self.config = Cell(ConfigState(Config(), "test"))
        self.snapshot = Cell(snapshot("c0", "c1") if there is None else there)
        self.vendors = {"acme": sort.vendor(sort.make, (sort.key,))}
        self.owning = sort.owning(self.config, self.snapshot, lambda: self.vendors)

    def made(self, count: int) -> WantedKeys[Any]:
        return WantedKeys({self.sort.key: self.sort.value(count)})

    def makes(self, make: Make | None) -> None:
        """From now on the vendor makes this."""
        self.vendors["acme"] = self.sort.vendor(make, (self.sort.key,))

    async def once(self) -> WantedKeys[Any] | None:
        await self.owning.once()
        return self.owning.wanted.value


@pytest.fixture(params=[ANNOTATIONS, EXTENDED_RESOURCES], ids=["annotations", "extended resources"])
def sort(request: pytest.FixtureRequest) -> Sort:
    found: Sort = request.param
    return found


async def test_they_follow_the_devices_and_the_config(sort: Sort) -> None:
    here = Here(sort)
    async with anyio.create_task_group() as group:
        group.start_soon(here.owning.run)
        await eventually(lambda: here.owning.wanted.value == here.made(2))

        here.snapshot.set(snapshot("c1"))
        await eventually(lambda: here.owning.wanted.value == here.made(1))
        rules = VendorSettings(resources=(ResourceRule("acme.com/r"),))
        here.config.set(ConfigState(Config(vendors={"acme": rules}), "test"))
        await eventually(lambda: here.owning.wanted.value == here.made(1001))
        group.cancel_scope.cancel()


async def test_a_vendor_that_makes_none_any_more_has_its_keys_removed(sort: Sort) -> None:
    here = Here(sort)
    here.makes(None)

    assert await here.once() == WantedKeys({sort.key: None})


async def test_a_vendor_that_cannot_make_them_is_told_and_what_stands_there_stays(sort: Sort) -> None:
    here = Here(sort)
    here.makes(lambda rules, devices: sort.wrong)

    assert await here.once() == WantedKeys({}, frozenset({sort.key}))
    assert sort.says in here.owning.error

    here.makes(sort.make)
    assert await here.once() == here.made(2)
    assert here.owning.error == ""


@pytest.mark.parametrize("state", [VendorState.STARTING, VendorState.FAILED, VendorState.UNAVAILABLE])
async def test_of_a_vendor_that_has_not_listed_its_devices_nothing_changes(
    sort: Sort, state: VendorState
) -> None:
    assert await Here(sort, snapshot(state=state)).once() == WantedKeys({}, frozenset({sort.key}))


# What is the same of every sort


async def test_a_vendor_that_was_lost_is_told_with_the_devices_it_had() -> None:
    here = Here(ANNOTATIONS, snapshot("c0", state=VendorState.FAILED))

    assert await here.once() == here.made(1)


async def test_a_vendor_that_left_the_config_wants_nothing() -> None:
    here = Here(ANNOTATIONS)
    assert await here.once() == here.made(2)

    here.snapshot.set(NodeSnapshot())

    assert await here.once() == WantedKeys()


async def test_a_card_that_is_known_to_be_gone_is_left_out_and_a_broken_one_is_not() -> None:
    here = Here(ANNOTATIONS, snapshot("c0", "c1", "c2", gone="c1"))

    assert await here.once() == here.made(2)


@pytest.mark.parametrize(
    ("told_healthy", "health", "cordon", "fault"),
    [
        (True, Health(State.UNKNOWN, "lost-contact"), None, None),
        (False, Health(State.UNHEALTHY, "dbe", "2 errors"), None, Fault("dbe", "2 errors")),
        (False, Health(State.UNKNOWN, "lost-contact"), None, Fault("lost-contact", state=State.UNKNOWN)),
        (True, Health(State.HEALTHY), Cordon("ann", "fans"), Fault("cordoned", "fans")),
    ],
)
async def test_a_device_has_a_fault_exactly_where_new_pods_cannot_get_it(
    told_healthy: bool, health: Health, cordon: Cordon | None, fault: Fault | None
) -> None:
    read = Device("c0", 0, fault=Fault("read-once"))  # what one reading says decides nothing yet
    status = DeviceStatus("acme", read, health, told_healthy, cordon=cordon)
    here = Here(ANNOTATIONS, NodeSnapshot((VendorStatus("acme", VendorState.OPEN),), (status,)))
    seen: list[Fault | None] = []

    def look(rules: Sequence[ResourceRule], devices: Sequence[Device]) -> Mapping[str, Any]:
        seen.extend(it.fault for it in devices)
        return {}

    here.makes(look)
    await here.once()

    assert seen == [fault]


async def test_a_key_of_two_vendors_is_the_first_ones_and_that_is_said() -> None:
    both = VendorStatus("acme", VendorState.OPEN), VendorStatus("brio", VendorState.OPEN)
    here, key = Here(ANNOTATIONS, NodeSnapshot(both)), ANNOTATIONS.key
    brio = ANNOTATIONS.vendor(lambda *_: {key: "brio", "brio.com/own": "brio"}, (key, "brio.com/own"))
    here.vendors["brio"] = replace(brio, name="brio")

    assert await here.once() == WantedKeys({key: "0", "brio.com/own": "brio"})
    assert here.owning.error == f"brio: {key} is acme's, and is not written for brio"

    here.snapshot.set(NodeSnapshot((VendorStatus("acme", VendorState.STARTING), both[1])))
    assert await here.once() == WantedKeys({"brio.com/own": "brio"}, frozenset({key}))

    here.snapshot.set(NodeSnapshot(both[1:]))
    assert await here.once() == WantedKeys({key: "brio", "brio.com/own": "brio"})
    assert here.owning.error == ""


async def test_while_no_config_is_known_nothing_is_known_to_be_wanted() -> None:
    here = Here(ANNOTATIONS)
    here.config.set(replace(here.config.value, waiting=True))

    assert await here.once() is None
