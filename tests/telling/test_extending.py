"""The extended resources that vendors want follow config and devices, each soon after it changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import anyio
import pytest
from kubelet.fakes import eventually

from agent.config import Config, ConfigState, VendorSettings
from agent.core.cell import Cell
from agent.core.extended import Extended
from agent.core.model import DeviceStatus, Health, NodeSnapshot, VendorState, VendorStatus
from agent.core.vendor import ContainerEdits, Device, ResourceRule, State, Vendor
from agent.telling.extending import Extending

NAME = "acme.com/card-count"


def counted(rules: Sequence[ResourceRule], devices: Sequence[Device]) -> Mapping[str, int | None]:
    """A thousand for each rule, and one for each device."""
    return {NAME: 1000 * len(rules) + len(devices)}


def acme(counts: Any = counted) -> Vendor:
    return Vendor(
        "acme",
        "x:Y",
        lambda *_: ContainerEdits(),
        "acme.com/card",
        extended_resources=counts,
        extended_resource_keys=(NAME,),
    )


def snapshot(*uuids: str, state: VendorState = VendorState.OPEN, gone: str = "") -> NodeSnapshot:
    devices = tuple(
        DeviceStatus("acme", Device(it, n), Health(State.UNHEALTHY), False, gone=it == gone)
        for n, it in enumerate(uuids)
    )
    return NodeSnapshot((VendorStatus("acme", state),), devices)


class Here:
    """An Extending, and what it looks at."""

    def __init__(self, vendor: Vendor | None = None, there: NodeSnapshot | None = None) -> None:
        self.config = Cell(ConfigState(Config(), "test"))
        self.snapshot = Cell(snapshot("c0", "c1") if there is None else there)
        self.vendors = {"acme": vendor or acme()}
        self.extending = Extending(self.config, self.snapshot, lambda: self.vendors, settle=0.001)

    async def once(self) -> Extended | None:
        await self.extending.once()
        return self.extending.wanted.value


async def test_they_follow_the_devices_and_the_config() -> None:
    here = Here()
    async with anyio.create_task_group() as group:
        group.start_soon(here.extending.run)
        await eventually(lambda: here.extending.wanted.value == Extended({NAME: 2}))

        here.snapshot.set(snapshot("c1"))
        await eventually(lambda: here.extending.wanted.value == Extended({NAME: 1}))
        rules = VendorSettings(resources=(ResourceRule("acme.com/r"),))
        here.config.set(ConfigState(Config(vendors={"acme": rules}), "test"))
        await eventually(lambda: here.extending.wanted.value == Extended({NAME: 1001}))
        group.cancel_scope.cancel()


async def test_a_card_that_is_known_to_be_gone_is_not_counted_and_a_broken_one_is() -> None:
    assert await Here(there=snapshot("c0", "c1", "c2", gone="c1")).once() == Extended({NAME: 2})


async def test_a_vendor_that_left_the_config_wants_nothing() -> None:
    here = Here()
    assert await here.once() == Extended({NAME: 2})

    here.snapshot.set(NodeSnapshot())

    assert await here.once() == Extended()


async def test_a_vendor_that_counts_none_any_more_has_its_names_removed() -> None:
    assert await Here(acme(None)).once() == Extended({NAME: None})


@pytest.mark.parametrize("state", [VendorState.STARTING, VendorState.FAILED, VendorState.UNAVAILABLE])
async def test_of_a_vendor_that_has_not_listed_its_devices_nothing_changes(state: VendorState) -> None:
    assert await Here(there=snapshot(state=state)).once() == Extended({}, frozenset({NAME}))


async def test_a_vendor_that_can_not_count_is_told_and_what_stands_there_stays() -> None:
    here = Here(acme(lambda *_: {NAME: -1}))

    assert await here.once() == Extended({}, frozenset({NAME}))
    assert "-1 is no count" in here.extending.error

    here.vendors["acme"] = acme()
    assert await here.once() == Extended({NAME: 2})
    assert here.extending.error == ""
