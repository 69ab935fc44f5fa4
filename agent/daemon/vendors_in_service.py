"""The vendors in service: those that the config wants, each with its process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
import structlog
from anyio.abc import TaskGroup

from agent.config import Config, ConfigState, VendorSettings
from agent.core.cell import Cell
from agent.core.devices.inventory import left_out
from agent.core.endless_tasks import for_ever
from agent.core.errors import VendorError
from agent.core.model import VendorState, VendorStatus
from agent.daemon.early_processes import EarlyProcesses
from agent.daemon.node_state import NodeState
from agent.daemon.vendor_config import plugins_in_service, vendor_rules
from agent.daemon.vendor_plugins import VendorPlugin
from agent.isolation.vendor_memory_limit import MemoryLimit, limits
from agent.isolation.vendor_supervisor import VendorSupervisor
from agent.scheduler_api import Scheduler, reads
from agent.scheduler_api.scheduler import AnnotationFilter
from agent.vendor_api.agent import Vendor

log = structlog.get_logger(__name__)

#: Makes a vendor's process. The last argument is called before each start, for the memory that it may use.
StartProcess = Callable[[Vendor, NodeState, Callable[[], MemoryLimit]], VendorSupervisor]

#: Backend, settings and memory limit in bytes: what a process is started with.
Hardware = tuple[str, Mapping[str, Any], int]


class VendorsInService:
    """Follows the config: loads its vendors, runs their processes and configures the node state.

    A vendor with changed hardware settings gets a new process; other vendors keep their processes.
    """

    def __init__(self, node: NodeState, start: StartProcess, memory: int = 0) -> None:
        """`memory`: bytes that the agent and all vendors' processes together may use; 0 for no limit."""
        self._node = node
        self._start = start
        self._memory = memory
        #: Vendor to the bytes that the config allows its process; 0 for no limit.
        self._sizes: Mapping[str, int] = {}
        #: Vendor to what its process may use; only of vendors that are on this node.
        self._limits: dict[str, MemoryLimit] = {}
        self._config = Config()
        self._early: EarlyProcesses | None = None
        self._group: TaskGroup
        self._scopes: dict[str, anyio.CancelScope] = {}
        #: Vendor to what its process was started with. Other settings take effect without a new process.
        self._hardware: Mapping[str, Hardware] = {}
        #: The last process of each vendor that was taken out of service. The next one waits for its end.
        self._ended: dict[str, VendorSupervisor] = {}
        self.processes: dict[str, VendorSupervisor] = {}
        #: Which annotations of pods the dialects read, those of vendors that served before, too.
        self.reads: Cell[AnnotationFilter] = Cell(reads(node.schedulers))

    async def run(self, config: Cell[ConfigState], early: EarlyProcesses | None = None) -> None:
        """Apply each config that differs from the last one; runs for ever.

        The config of the early processes is the first: a later one replaces them as it does any process.
        """
        applied: Mapping[str, Any] | None = None
        async with anyio.create_task_group() as group:
            if early is not None:
                applied, self._early = early.config.vendors, early
                self._apply(early.config, early.plugins, group)
                self._share()  # more vendors may be here than when the early processes got their limits
            async for state in config.watch():
                if state.config.vendors != applied and not state.waiting:
                    applied = state.config.vendors
                    self._apply(state.config, plugins_in_service(state.config), group)
                elif not state.waiting:
                    self._read(state.config)

    def _apply(self, config: Config, wanted: Iterable[VendorPlugin], group: TaskGroup) -> None:
        plugins = {it.name: it for it in wanted}
        vendors = {name: it.vendor for name, it in plugins.items() if it.vendor is not None}
        rules = [vendor_rules(it, config) for it in vendors.values()]
        self._sizes = {name: config.vendor(name).memory_limit for name in vendors}
        hardware = {
            name: (vendor.backend, vendor.settings.for_backend, self._sizes[name])
            for name, vendor in vendors.items()
        }
        for name in [*self.processes]:
            if self._hardware[name] != hardware.get(name):
                self._end(name)
        self._hardware = hardware
        self._node.configure(vendors, rules, [_status(it) for it in plugins.values()])
        self._read(config)
        self._config, self._group = config, group
        for name in vendors:
            self._make(name)
        self._share()

    def _read(self, config: Config) -> None:
        """Set what is kept of pods."""
        found = _annotation_filter(self._node.schedulers, self._node.vendors.values())
        self.reads.set(replace(found, container_ids=config.usage.enabled))

    def _end(self, name: str) -> None:
        """Take a process out of service; the vendor's next one waits for its end."""
        self._scopes.pop(name).cancel()
        self._ended[name] = self.processes.pop(name)
        self._limits.pop(name, None)

    def _make(self, name: str) -> None:
        """Configure the vendor's process; where there is none, make one that does not run yet."""
        if name not in self.processes:
            vendor = self._node.vendors[name]
            self.processes[name] = self._start(vendor, self._node, partial(self._limit_of, name))
        _configure(self.processes[name], self._config.vendor(name))

    def _limit_of(self, name: str) -> MemoryLimit:
        """What a starting process may use. Where its vendor was not here before, others must use less."""
        if name not in self._limits:
            self._share(name)
        return self._limits[name]

    def _share(self, *more: str) -> None:
        """Divide the memory between the vendors that are here, and start the processes that are new.

        `more`: vendors that count as here. A process that must use less than it was started with is replaced.
        """
        here = [name for name, it in self.processes.items() if name in more or not it.waits]
        new = limits({name: self._sizes[name] for name in here}, self._memory, self._limits)
        for name in [it for it, limit in self._limits.items() if new.get(it, limit) != limit]:
            self._end(name)
            self._make(name)
        for name, limit in new.items():
            if limit.bound != limit.size and self._limits.get(name) != limit:
                log.info("memory of the vendor's process is bounded", vendor=name, limit=str(limit))
        self._limits = {**new}
        for name in [vendor for vendor in self.processes if vendor not in self._scopes]:
            self._begin(name)

    def _begin(self, name: str) -> None:
        process = self.processes[name]
        predecessor = self._ended.pop(name, None)
        started = self._early.take(name) if self._early is not None else None
        if started is not None:
            process.adopt(started)
            self._limits[name] = started.limit
        elif predecessor is None and name in self._limits:
            process.start_early()  # the process loads its library while the agent goes on
        scope = self._scopes[name] = anyio.CancelScope()

        async def serve() -> None:
            with scope:
                await for_ever(process.run, predecessor)

        self._group.start_soon(serve, name=f"vendor {name}")

    async def call(self, vendor: str, method: str, *args: Any) -> Any:
        """Call a method of the vendor's backend; returns its answer.

        Raises:
            VendorError: The vendor is not in service, or its process hung or crashed.
        """
        if vendor not in self.processes:
            raise VendorError(
                f"{vendor}: the vendor is not in service; enable it in the config to have this done"
            )
        return await self.processes[vendor].call(method, *args)


def _configure(process: VendorSupervisor, settings: VendorSettings) -> None:
    process.configure(required=settings.required, sought=settings.sought, settings=settings)


def _annotation_filter(schedulers: Iterable[Scheduler], vendors: Iterable[Vendor]) -> AnnotationFilter:
    dialects = (
        dialect
        for vendor in vendors
        for dialect in (*vendor.dialects, vendor.pod_limits)
        if dialect is not None
    )
    return reads(schedulers, dialects)


def _status(plugin: VendorPlugin) -> VendorStatus:
    if plugin.vendor is None:
        return left_out(plugin.name, plugin.reason)
    return VendorStatus(plugin.name, VendorState.STARTING)
