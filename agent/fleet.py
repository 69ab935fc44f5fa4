"""The vendors in service: which the config wants, each with its process; a changed one is replaced alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import anyio
import structlog
from anyio.abc import TaskGroup

from agent.config import Config, ConfigState
from agent.core.cell import Cell
from agent.core.errors import VendorError
from agent.core.inventory import left_out
from agent.core.model import ResourceRule, VendorState, VendorStatus
from agent.core.plan import Offer
from agent.core.vendor import Vendor
from agent.isolation.supervisor import VendorProcess
from agent.node import Node
from agent.plugins import Plugin, load

log = structlog.get_logger(__name__)

StartProcess = Callable[[Vendor, Node], VendorProcess]


class Fleet:
    """Follows the config: loads the vendors it wants, runs their processes, tells the node of them."""

    def __init__(self, node: Node, start: StartProcess) -> None:
        self._node = node
        self._start = start
        self._scopes: dict[str, anyio.CancelScope] = {}
        self.processes: dict[str, VendorProcess] = {}

    async def run(self, config: Cell[ConfigState]) -> None:
        """Apply each config that differs from the last one; runs for ever."""
        applied: Mapping[str, Any] | None = None
        async with anyio.create_task_group() as group:
            async for state in config.watch():
                if state.config.vendors != applied:
                    applied = state.config.vendors
                    self._apply(state.config, group)

    def _apply(self, config: Config, group: TaskGroup) -> None:
        plugins = wanted(config)
        vendors = {it.name: it.vendor for it in plugins if it.vendor is not None}
        offers = [Offer(name, rules(config, vendor)) for name, vendor in vendors.items()]
        self._node.configure(vendors, offers, [_status(it) for it in plugins])
        for name in [*self.processes]:
            if self.processes[name].vendor != vendors.get(name):
                self._scopes.pop(name).cancel()
                del self.processes[name]
        for name, vendor in vendors.items():
            if name not in self.processes:
                self._begin(vendor, group)

    def _begin(self, vendor: Vendor, group: TaskGroup) -> None:
        process = self._start(vendor, self._node)
        process.start_early()  # it loads its library while the agent goes on
        scope = anyio.CancelScope()
        self.processes[vendor.name] = process
        self._scopes[vendor.name] = scope

        async def serve() -> None:
            with scope:
                await process.run()

        group.start_soon(serve, name=f"vendor {vendor.name}")

    async def call(self, vendor: str, method: str, *args: Any) -> Any:
        """Ask a vendor's process.

        Raises:
            VendorError: It is not in service, hung or crashed.
        """
        if vendor not in self.processes:
            raise VendorError(f"{vendor}: the vendor is not in service")
        return await self.processes[vendor].call(method, *args)


class AllBut:
    """Every name that the config has not switched off."""

    def __init__(self, off: frozenset[str]) -> None:
        self._off = off

    def __contains__(self, name: object) -> bool:
        return name not in self._off


def wanted(config: Config) -> tuple[Plugin, ...]:
    """The plugins that count: those the config wants, less those that have nothing to offer here."""
    off = frozenset(name for name, it in config.vendors.items() if it.enabled is False)
    settings = {
        name: {**it.settings, **({"library": it.library} if it.library else {})}
        for name, it in config.vendors.items()
    }
    found = load(settings, AllBut(off))
    return tuple(it for it in found if it.vendor or it.broken or config.vendor(it.name).enabled is True)


def rules(config: Config, vendor: Vendor) -> tuple[ResourceRule, ...]:
    """The vendor's resources: what the config says, else its whole cards under its own name."""
    return config.vendor(vendor.name).resources or (ResourceRule(vendor.resource),)


def _status(plugin: Plugin) -> VendorStatus:
    if plugin.vendor is None:
        return left_out(plugin.name, plugin.reason)
    return VendorStatus(plugin.name, VendorState.STARTING)
