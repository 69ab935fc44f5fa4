"""The vendors in service: those that the config wants, each with its process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import anyio
import structlog
from anyio.abc import TaskGroup

from agent.config import Config, ConfigState, VendorSettings
from agent.config.validation import overlaps, refuse, shares_as_cards, shares_in_doubt
from agent.core.cell import Cell
from agent.core.devices.inventory import left_out
from agent.core.devices.offers import VendorRules
from agent.core.endless_tasks import for_ever
from agent.core.errors import VendorError
from agent.core.kubernetes_names import reserved_name
from agent.core.model import VendorState, VendorStatus
from agent.daemon.node_state import NodeState
from agent.daemon.scheduler_plugins import registered, reserved
from agent.daemon.vendor_plugins import VendorPlugin, load, names
from agent.isolation.process_memory import MemoryLimit, limits
from agent.isolation.supervisor import VendorSupervisor
from agent.scheduler_api import AnnotationFilter, Scheduler, reads
from agent.vendor_api.agent import Modes, ResourceRule, SettingsError, SettingsWarning, Sharing, Vendor
from agent.vendor_api.config_inputs import Path, nearest
from agent.vendor_api.text import shorten

log = structlog.get_logger(__name__)

#: Warnings about the settings of one vendor.
MAX_WARNINGS = 20

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
        self._group: TaskGroup
        self._scopes: dict[str, anyio.CancelScope] = {}
        #: Vendor to what its process was started with. Other settings take effect without a new process.
        self._hardware: Mapping[str, Hardware] = {}
        #: The last process of each vendor that was taken out of service. The next one waits for its end.
        self._ended: dict[str, VendorSupervisor] = {}
        self.processes: dict[str, VendorSupervisor] = {}
        #: Which annotations of pods the dialects read, those of vendors that served before, too.
        self.reads: Cell[AnnotationFilter] = Cell(reads(node.schedulers))

    async def run(self, config: Cell[ConfigState]) -> None:
        """Apply each config that differs from the last one; runs for ever."""
        applied: Mapping[str, Any] | None = None
        async with anyio.create_task_group() as group:
            async for state in config.watch():
                if state.config.vendors != applied and not state.waiting:
                    applied = state.config.vendors
                    self._apply(state.config, group)

    def _apply(self, config: Config, group: TaskGroup) -> None:
        plugins = {it.name: it for it in in_service(config)}
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
        self.reads.set(_reads(self._node.schedulers, self._node.vendors.values()))
        self._config, self._group = config, group
        for name in vendors:
            self._make(name)
        self._share()

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
        if predecessor is None and name in self._limits:
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


class AllExcept:
    """All names without the vendors that the config has switched off."""

    def __init__(self, off: frozenset[str]) -> None:
        self._off = off

    def __contains__(self, name: object) -> bool:
        return name not in self._off


def wanted(config: Config) -> tuple[VendorPlugin, ...]:
    """The plugins that the config wants, without those that have nothing to offer here."""
    off = frozenset(name for name, it in config.vendors.items() if it.enabled is False)
    found = load(_settings(config), AllExcept(off))
    return tuple(it for it in found if it.vendor or it.broken or config.vendor(it.name).enabled is True)


def in_service(config: Config) -> tuple[VendorPlugin, ...]:
    """The wanted plugins, with one vendor for each resource. A second one is left out, with the reason."""
    return tuple(_without_clashes(wanted(config), config))


def unserved(config: Config) -> tuple[str, ...]:
    """A sentence with its place for each part of the config that no node with the vendors' cards can serve.

    The agent runs with such a config, serves the rest and is not ready.
    """
    able = {it.name for it in wanted(config) if it.vendor is not None}
    found: list[str] = []
    for plugin in in_service(config):
        at: Path = ("vendors", plugin.name, "resources")
        if plugin.vendor is not None:
            found += (config.with_place((*at, *it.path), it.message) for it in _judged(config, plugin.vendor))
        elif plugin.name in able:
            found.append(config.with_place(at, plugin.reason))
    return tuple(found)


def _judged(config: Config, vendor: Vendor) -> Iterator[SettingsWarning]:
    """The vendor's warnings about its rules. Rules that may name the same cards are checked one by one."""
    rules = _rules(config, vendor)
    if vendor.offers.check_rules is None:
        return
    if _modes(config, vendor) != "dynamic":
        yield from vendor.offers.check_rules(rules) or ()
        return
    for index, rule in enumerate(rules):
        for warning in vendor.offers.check_rules((rule,)) or ():
            yield replace(warning, path=(index, *warning.path[1:]) if warning.path else ())


def vendor_rules(vendor: Vendor, config: Config) -> VendorRules:
    """The rules that the config has for the vendor."""
    resources = config.vendor(vendor.name).resources
    return VendorRules(vendor, resources, dynamic=_modes(config, vendor) == "dynamic")


def rules_by_vendor(config: Config) -> Mapping[str, VendorRules]:
    """The rules that the config has for each of its vendors."""
    return {it.name: vendor_rules(it.vendor, config) for it in wanted(config) if it.vendor is not None}


def _modes(config: Config, vendor: Vendor) -> Modes:
    """Whether the vendor's resources may name the same cards, by the config or else by the vendor."""
    return config.vendor(vendor.name).modes or vendor.offers.modes


def _configure(process: VendorSupervisor, settings: VendorSettings) -> None:
    """A vendor with a library or settings in the config is taken to be on this node."""
    required = settings.enabled is True
    process.configure(required=required, sought=required or bool(settings.library or settings.settings))


def _reads(schedulers: Iterable[Scheduler], vendors: Iterable[Vendor]) -> AnnotationFilter:
    dialects = (
        dialect
        for vendor in vendors
        for dialect in (*vendor.dialects, vendor.pod_limits)
        if dialect is not None
    )
    return reads(schedulers, dialects)


def _settings(config: Config) -> dict[str, dict[str, Any]]:
    return {
        name: {**own.settings, **({"library": own.library} if own.library else {})}
        for name, own in config.vendors.items()
    }


def check(config: Config) -> Config:
    """Have the vendors check their settings and rules; returns the config with their warnings.

    Raises:
        ConfigError: With the place of a setting that its vendor refuses, or of a resource that takes the
            cards of another. A broken plugin is no fault of the config: its vendor is left out.
    """
    if config.report.vendor and config.report.vendor not in (known := names()):
        why = f"no vendor of this name is installed; {nearest(config.report.vendor, known)}"
        raise config.refused(("report", "vendor"), why)
    for path, wrong in _reserved(config):
        raise config.refused(path, wrong)
    warnings = [*config.warnings]
    for scheduler in registered():
        refuse(config, shares_as_cards(config, scheduler))
        warnings += (config.with_place(it.path, it.message) for it in shares_in_doubt(config, scheduler))
    for plugin in wanted(config):
        if plugin.refusal is not None and plugin.name in config.vendors:
            raise config.refused(_setting(config, plugin.name, plugin.refusal.path), str(plugin.refusal))
        if plugin.vendor is not None:
            _check_overlap(config, plugin.vendor)
            _check_rules(config, plugin.vendor)
            found = islice(plugin.vendor.settings.warnings, MAX_WARNINGS)
            for warning in found:
                place = _setting(config, plugin.name, warning.path)
                warnings.append(config.with_place(place, warning.message))
    return replace(config, warnings=tuple(warnings))


def _reserved(config: Config) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Places of resources with a name that belongs to a scheduler, each with a sentence on that."""
    for vendor, settings in config.vendors.items():
        for index, rule in enumerate(settings.resources):
            if wrong := reserved_name(rule.name, reserved()):
                yield ("vendors", vendor, "resources", index, "name"), wrong


def complete(config: Config) -> Config:
    """The configuration with the vendors' values in place of all that it leaves out, for people to read."""
    vendors = {it.name: it.vendor for it in wanted(config) if it.vendor is not None}
    filled = {
        name: replace(
            own,
            settings={**_defaults(vendors[name]), **own.settings},
            resources=_rules(config, vendors[name]),
            modes=_modes(config, vendors[name]),
        )
        for name, own in config.vendors.items()
        if name in vendors
    }
    return replace(config, vendors={**config.vendors, **filled})


def _defaults(vendor: Vendor) -> Mapping[str, Any]:
    """The defaults of the vendor's settings, without the library, which has a key of its own."""
    return {key: value for key, value in vendor.settings.defaults.items() if key != "library"}


def _rules(config: Config, vendor: Vendor) -> tuple[ResourceRule, ...]:
    """The configured rules. A rule without sharing or placement gets the vendor's."""
    filled = []
    for index, rule in enumerate(config.vendor(vendor.name).resources):
        at = ("vendors", vendor.name, "resources", index)
        own = vendor.offers.rule(rule.name)
        if rule.sharing == Sharing() and not config.is_set((*at, "sharing")):
            rule = replace(rule, sharing=own.sharing)
        if rule.placement == "local" and not config.is_set((*at, "placement")):
            rule = replace(rule, placement=own.placement)
        filled.append(replace(rule, policy=rule.policy or own.policy, ids=rule.ids or own.ids))
    return tuple(filled)


def _check_rules(config: Config, vendor: Vendor) -> None:
    """Have the vendor check the rules that the config asks of it."""
    if vendor.offers.check_rules is None:
        return
    try:
        vendor.offers.check_rules(_rules(config, vendor))
    except SettingsError as refusal:
        at = ("vendors", vendor.name, "resources", *refusal.path)
        raise config.refused(at, str(refusal)) from None


def _setting(config: Config, vendor: str, path: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """The place of a vendor's setting in the config. The library has a key of its own."""
    if path[:1] == ("library",) and config.vendor(vendor).library:
        return ("vendors", vendor, *path)
    return ("vendors", vendor, "settings", *path)


def _check_overlap(config: Config, vendor: Vendor) -> None:
    """Refuse rules that name the same cards.

    A vendor with rules of its own for resources decides itself which cards `all` means for each of them.

    Raises:
        ConfigError: With the place of the rule.
    """
    rules, dynamic = config.vendor(vendor.name).resources, _modes(config, vendor) == "dynamic"
    for overlap in overlaps(_rules(config, vendor), ("vendors", vendor.name, "resources"), dynamic=dynamic):
        raise config.refused(overlap.path, overlap.message)
    if vendor.offers.resources is not None or len(rules) < 2 or dynamic:
        return
    for index, rule in enumerate(rules):
        if rule.devices == "all":
            others = ", ".join(shorten(it.name) for it in rules if it is not rule)
            message = f"'{shorten(rule.name)}' takes all cards, also those of {others}; set 'devices'"
            raise config.refused(("vendors", vendor.name, "resources", index, "devices"), message)


def _without_clashes(plugins: Iterable[VendorPlugin], config: Config) -> Iterator[VendorPlugin]:
    names: set[str] = set()
    takers: dict[str, str] = {}
    for plugin in sorted(plugins, key=lambda it: it.vendor is None):
        if plugin.name in names:
            continue
        names.add(plugin.name)
        if plugin.vendor is not None:
            served = _names(config, plugin.vendor)
            taken = next((name for name in served if name in takers), None)
            if taken is not None:
                why = (
                    f"{takers[taken]} already serves {taken}; name another in vendors.{plugin.name}.resources"
                )
                plugin = replace(plugin, vendor=None, reason=why, broken=True)
            else:
                takers.update(dict.fromkeys(served, plugin.name))
        yield plugin


def _names(config: Config, vendor: Vendor) -> list[str]:
    """The names of the vendor's resources, as far as they are known without its devices."""
    return [rule.name for rule in config.vendor(vendor.name).resources] or [vendor.resource]


def _status(plugin: VendorPlugin) -> VendorStatus:
    if plugin.vendor is None:
        return left_out(plugin.name, plugin.reason)
    return VendorStatus(plugin.name, VendorState.STARTING)
