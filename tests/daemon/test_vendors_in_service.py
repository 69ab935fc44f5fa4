"""Vendors in service: which processes run, and how much memory each may use."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import structlog.testing
from support.waiting import eventually

from agent.config import Config, ConfigState, UsageSettings, VendorSettings
from agent.core.allocation.ledger import Ledger
from agent.core.cell import Cell
from agent.core.devices.inventory import Inventory
from agent.daemon import vendor_config, vendors_in_service
from agent.daemon.early_processes import EarlyProcesses
from agent.daemon.node_state import NodeState
from agent.daemon.vendor_plugins import VendorPlugin
from agent.isolation.vendor_memory_limit import MemoryLimit
from agent.scheduler_api import Dialect
from agent.scheduler_api.candidate import OWN
from agent.scheduler_api.scheduler import AnnotationFilter
from agent.vendor_api.agent import (
    ResourceRule,
    Settings,
    Vendor,
)

from .made_plugins import plugin, vendor


def reading(name: str) -> Vendor:
    """One whose dialect reads annotations of its own."""
    dialect = Dialect(
        name, lambda pod, resource, devices: (), reads=(f"{name}.com/",), receipt_keys=(f"{name}-given",)
    )
    return replace(vendor(name, f"{name}.com/x"), dialects=(dialect,))


async def test_what_dialects_read_of_pods_follows_the_config_and_a_vendor_that_is_off_is_not_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def load(settings: Mapping[str, Any], wanted: Container[str]) -> tuple[VendorPlugin, ...]:
        """Each sits out unless it has settings."""
        here = [it for it in ("acme", "copy") if it in wanted]
        asked.extend(here)
        sitting = plugin("none", reason="ImportError: no module named none")
        return (
            sitting,
            *(VendorPlugin(it, "here", "1", reading(it) if settings.get(it) else None) for it in here),
        )

    monkeypatch.setattr(vendor_config, "load", load)
    off = VendorSettings(enabled=False, settings={"n": 1})
    placeholder = ConfigState(Config(), "awaited", waiting=True)
    config = Cell(placeholder)
    fleet_ = vendors_in_service.VendorsInService(NodeState(Inventory(), Ledger(), lambda: 0.0), FakeProcess)  # type: ignore[arg-type]

    async def applied(vendors: Mapping[str, VendorSettings], *own: str) -> None:
        config.set(ConfigState(Config(vendors=vendors), "file"))
        with anyio.fail_after(30):
            await fleet_.reads.until(AnnotationFilter((OWN, *own)))

    async with anyio.create_task_group() as group:
        group.start_soon(fleet_.run, config)
        await anyio.wait_all_tasks_blocked()
        assert (asked, fleet_.reads.value) == ([], AnnotationFilter())

        await applied({"acme": VendorSettings(settings={"n": 1}), "copy": off}, "acme.com/", "acme-given")
        assert asked == ["acme"]
        both = ("acme.com/", "acme-given", "copy.com/", "copy-given")
        await applied({"copy": VendorSettings(settings={"n": 1})}, *both)
        sampled = replace(config.value.config, usage=UsageSettings(enabled=True))
        config.set(ConfigState(sampled, "file"))
        with anyio.fail_after(30):
            await fleet_.reads.until(AnnotationFilter((OWN, *both), container_ids=True))
        group.cancel_scope.cancel()


class FakeProcess:
    """Stands for a vendor's process; remembers how many there were."""

    started = 0
    away: frozenset[str] = frozenset()

    def __init__(self, vendor: Vendor, node: NodeState, memory_limit: Callable[[], MemoryLimit]) -> None:
        FakeProcess.started += 1
        self._ask = memory_limit
        self.memory_limit = MemoryLimit()
        self.waits = vendor.name in FakeProcess.away
        self.sign = anyio.Event()
        self.after: FakeProcess | None = None
        self.early = False
        self.adopted: object = None
        self.required = False
        self.settings = VendorSettings()
        self.sought = self.sought_when_early = True

    def configure(self, *, required: bool, sought: bool, settings: VendorSettings) -> None:
        self.required, self.sought, self.settings = required, sought, settings

    def adopt(self, started: Started) -> None:
        self.adopted, self.memory_limit = started, started.limit

    def start_early(self) -> None:
        self.early, self.sought_when_early = True, self.sought
        self.memory_limit = self._ask()

    async def run(self, after: FakeProcess | None = None) -> None:
        self.after = after
        if self.waits:
            await self.sign.wait()
            self.waits = False
        self.memory_limit = self._ask()
        await anyio.sleep_forever()


async def test_a_process_is_replaced_only_when_it_would_be_started_otherwise(
    found: list[VendorPlugin],
) -> None:
    """Functions and resources are the agent's: to share a card in another way costs no driver session."""
    FakeProcess.started = 0
    state = ConfigState(Config(), "defaults")
    cell = Cell(state)
    node = NodeState(Inventory(), Ledger(), lambda: 0.0)
    fleet_ = vendors_in_service.VendorsInService(node, FakeProcess)  # type: ignore[arg-type]

    async def apply(offered: Vendor, number: int) -> None:
        found[:] = [VendorPlugin("acme", "here", "1", offered)]
        cell.set(replace(state, config=Config(vendors={"acme": VendorSettings(settings={"n": number})})))
        await eventually(lambda: node.vendors.get("acme") is offered)

    async with anyio.create_task_group() as group:
        group.start_soon(fleet_.run, cell)
        await apply(vendor("acme", "acme.com/x"), 1)
        assert FakeProcess.started == 1
        await apply(vendor("acme", "acme.com/y"), 2)
        assert FakeProcess.started == 1
        await apply(replace(vendor("acme", "acme.com/y"), settings=Settings({"library": "/other"})), 3)
        assert FakeProcess.started == 2
        group.cancel_scope.cancel()


class Started:
    """Stands for a process that was started before the supervisors were made."""

    limit = MemoryLimit(1 << 30)
    dropped = False

    def drop(self) -> None:
        self.dropped = True


async def test_a_process_that_was_started_early_is_served_and_no_second_one_is_started() -> None:
    offered = plugin("acme", "acme.com/x")
    config = Config(vendors={"acme": VendorSettings()})
    started = Started()
    early = EarlyProcesses(config, (offered,), {"acme": started})  # type: ignore[dict-item]
    fleet_ = vendors_in_service.VendorsInService(NodeState(Inventory(), Ledger(), lambda: 0.0), FakeProcess)  # type: ignore[arg-type]

    async with anyio.create_task_group() as group:
        group.start_soon(fleet_.run, Cell(ConfigState(config, "file")), early)
        await eventually(lambda: fleet_.processes and process_of(fleet_).adopted)
        assert process_of(fleet_).adopted is started
        assert not process_of(fleet_).early
        group.cancel_scope.cancel()

    assert early.take("acme") is None
    assert not started.dropped


async def test_a_process_that_was_started_early_with_more_memory_than_its_share_is_replaced() -> None:
    """Another vendor may have appeared since: all vendors' processes must fit into the container."""
    offered = plugin("acme", "acme.com/x")
    config = Config(vendors={"acme": VendorSettings(memory_limit=1 << 30)})
    early = EarlyProcesses(config, (offered,), {"acme": Started()})  # type: ignore[dict-item]
    node = NodeState(Inventory(), Ledger(), lambda: 0.0)
    fleet_ = vendors_in_service.VendorsInService(node, FakeProcess, memory=768 << 20)  # type: ignore[arg-type]

    async with anyio.create_task_group() as group:
        group.start_soon(fleet_.run, Cell(ConfigState(config, "file")), early)
        await eventually(lambda: fleet_.processes and process_of(fleet_).after)
        predecessor = process_of(fleet_).after
        assert predecessor is not None
        assert predecessor.adopted is not None
        assert process_of(fleet_).memory_limit.bound < Started.limit.bound
        group.cancel_scope.cancel()


async def test_a_process_that_was_started_early_ends_before_that_of_a_config_that_came_meanwhile(
    found: list[VendorPlugin],
) -> None:
    """Two libraries of one vendor at once could damage its hardware."""
    changed = replace(vendor("acme", "acme.com/x"), settings=Settings({"library": "/other"}))
    found[:] = [VendorPlugin("acme", "here", "1", changed)]
    before = Config(vendors={"acme": VendorSettings()})
    now = Config(vendors={"acme": VendorSettings(library="/other")})
    early = EarlyProcesses(before, (plugin("acme", "acme.com/x"),), {"acme": Started()})  # type: ignore[dict-item]
    fleet_ = vendors_in_service.VendorsInService(NodeState(Inventory(), Ledger(), lambda: 0.0), FakeProcess)  # type: ignore[arg-type]

    async with anyio.create_task_group() as group:
        group.start_soon(fleet_.run, Cell(ConfigState(now, "file")), early)
        await eventually(lambda: fleet_.processes and process_of(fleet_).after)
        assert process_of(fleet_).adopted is None
        predecessor = process_of(fleet_).after
        assert predecessor is not None
        assert predecessor.adopted is not None
        group.cancel_scope.cancel()


async def test_a_process_knows_whether_the_config_insists_on_its_vendor_also_after_a_change(
    found: list[VendorPlugin],
) -> None:
    found[:] = [plugin("acme", "acme.com/x")]
    state = ConfigState(Config(), "defaults")
    cell = Cell(state)
    fleet_ = vendors_in_service.VendorsInService(NodeState(Inventory(), Ledger(), lambda: 0.0), FakeProcess)  # type: ignore[arg-type]
    seen = []

    async with anyio.create_task_group() as group:
        group.start_soon(fleet_.run, cell)
        for enabled in ("auto", True, "auto"):
            settings = VendorSettings(enabled=enabled)
            cell.set(replace(state, config=Config(vendors={"acme": settings})))
            await anyio.wait_all_tasks_blocked()
            seen.append(process_of(fleet_).required)
            assert process_of(fleet_).settings == settings
        group.cancel_scope.cancel()

    assert seen == [False, True, False]


def process_of(fleet_: vendors_in_service.VendorsInService, name: str = "acme") -> FakeProcess:
    process = fleet_.processes[name]
    assert isinstance(process, FakeProcess)
    return process


@pytest.mark.parametrize(
    ("its", "sought"),
    [
        (VendorSettings(), False),
        (VendorSettings(resources=(ResourceRule("acme.com/y"),)), False),
        (VendorSettings(enabled=True), True),
        (VendorSettings(library="/opt/libacme.so"), True),
        (VendorSettings(settings={"mode": "whole"}), True),
    ],
)
async def test_a_process_is_started_without_a_sign_where_the_config_speaks_of_the_vendor(
    its: VendorSettings, sought: bool, found: list[VendorPlugin]
) -> None:
    found[:] = [plugin("acme", "acme.com/x")]
    cell = Cell(ConfigState(Config(vendors={"acme": its}), "file"))
    fleet_ = vendors_in_service.VendorsInService(NodeState(Inventory(), Ledger(), lambda: 0.0), FakeProcess)  # type: ignore[arg-type]

    async with anyio.create_task_group() as group:
        group.start_soon(fleet_.run, cell)
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()

    process = process_of(fleet_)
    assert (process.early, process.sought_when_early) == (True, sought)


async def test_vendors_in_a_container_share_what_it_may_have_and_it_is_said(
    found: list[VendorPlugin],
) -> None:
    found[:] = [plugin("acme", "acme.com/x"), plugin("beta", "beta.com/x")]
    cell = Cell(ConfigState(Config(), "defaults"))
    node = NodeState(Inventory(), Ledger(), lambda: 0.0)
    fleet_ = vendors_in_service.VendorsInService(node, FakeProcess, 1 << 30)  # type: ignore[arg-type]

    with structlog.testing.capture_logs() as logs:
        async with anyio.create_task_group() as group:
            group.start_soon(fleet_.run, cell)
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()

    walls = [it.memory_limit.wall for it in fleet_.processes.values()]  # type: ignore[attr-defined]
    assert walls == [(768 << 20) // 2] * 2
    of = "its part of the container's limit of 1024 MiB is 307 MiB"
    assert [(it["vendor"], it["limit"]) for it in logs if "bounded" in it["event"]] == [
        (name, f"{of} (vendors.{name}.memoryLimit is 1024 MiB)") for name in ("acme", "beta")
    ]


async def test_a_process_is_replaced_for_another_vendor_only_where_it_must_have_less_memory(
    found: list[VendorPlugin],
) -> None:
    cell = Cell(ConfigState(Config(), "defaults"))
    node = NodeState(Inventory(), Ledger(), lambda: 0.0)
    fleet_ = vendors_in_service.VendorsInService(node, FakeProcess, 1 << 30)  # type: ignore[arg-type]

    async def serving(*names: str, n: int = 0) -> dict[str, FakeProcess]:
        found[:] = [plugin(it, f"{it}.com/x") for it in names]
        vendors = {it: VendorSettings(settings={"n": n}) for it in names}
        cell.set(replace(cell.value, config=Config(vendors=vendors)))
        for _ in range(10):
            await anyio.lowlevel.checkpoint()
        return dict(fleet_.processes)  # type: ignore[arg-type]

    async with anyio.create_task_group() as group:
        group.start_soon(fleet_.run, cell)
        alone = await serving("acme")
        both = await serving("acme", "beta")
        assert both["acme"] is not alone["acme"]  # it had all
        assert both["acme"].after is alone["acme"]
        assert await serving("acme", "beta", n=1) == both
        less = await serving("beta")
        assert less == {"beta": both["beta"]}
        again = await serving("beta", "core")
        assert again["beta"] is both["beta"]
        assert {it.memory_limit.wall for it in again.values()} == {(768 << 20) // 2}
        group.cancel_scope.cancel()


async def test_a_vendor_that_is_not_here_takes_no_memory_of_others_until_there_is_a_sign_of_it(
    found: list[VendorPlugin], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeProcess, "away", frozenset({"beta", "core"}))
    found[:] = [plugin(it, f"{it}.com/x") for it in ("acme", "beta", "core")]
    cell = Cell(ConfigState(Config(), "defaults"))
    node = NodeState(Inventory(), Ledger(), lambda: 0.0)
    fleet_ = vendors_in_service.VendorsInService(node, FakeProcess, 1 << 30)  # type: ignore[arg-type]

    async with anyio.create_task_group() as group:
        group.start_soon(fleet_.run, cell)
        await anyio.wait_all_tasks_blocked()
        first, beta = process_of(fleet_), process_of(fleet_, "beta")
        assert (first.memory_limit.wall, beta.early) == (768 << 20, False)

        beta.sign.set()
        await anyio.wait_all_tasks_blocked()

        second = process_of(fleet_)
        assert second.after is first
        assert process_of(fleet_, "beta") is beta
        assert second.memory_limit.wall == beta.memory_limit.wall == (768 << 20) // 2
        group.cancel_scope.cancel()


async def test_another_memory_limit_is_another_process_that_waits_for_the_end_of_the_first(
    found: list[VendorPlugin],
) -> None:
    found[:] = [plugin("acme", "acme.com/x")]
    cell = Cell(ConfigState(Config(), "defaults"))
    fleet_ = vendors_in_service.VendorsInService(NodeState(Inventory(), Ledger(), lambda: 0.0), FakeProcess)  # type: ignore[arg-type]

    async def serving(limit: int, enabled: bool = True) -> FakeProcess | None:
        settings = VendorSettings(enabled=enabled or False, memory_limit=limit)
        found[:] = [plugin("acme", "acme.com/x")] if enabled else []
        cell.set(replace(cell.value, config=Config(vendors={"acme": settings})))
        for _ in range(10):
            await anyio.lowlevel.checkpoint()
        return fleet_.processes.get("acme")  # type: ignore[return-value]

    async with anyio.create_task_group() as group:
        group.start_soon(fleet_.run, cell)
        first = await serving(1 << 30)
        second = await serving(2 << 30)
        assert first is not None
        assert second is not None
        assert [it.memory_limit.size for it in (first, second)] == [1 << 30, 2 << 30]
        assert (first.after, first.early) == (None, True)
        assert (second.after, second.early) == (first, False)
        assert await serving(2 << 30, enabled=False) is None
        third = await serving(2 << 30)
        assert third is not None
        assert (third.after, third.early) == (second, False)
        group.cancel_scope.cancel()
