"""Loads schedulers' plugins, of the tree and of other distributions, in the order in which they are heard."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache

import structlog
from msgspec import Struct
from msgspec.structs import replace

import agent.schedulers
from agent.core.publishing.receipt_rules import KEYS, wrong_key
from agent.daemon.field_types import wrong_field
from agent.daemon.guarded_scheduler import guarded
from agent.daemon.plugin_discovery import BrokenPlugin, FoundPlugin, found
from agent.daemon.plugin_functions import contained
from agent.daemon.plugin_hooks import PluginHooks, failure
from agent.scheduler_api import Dialect, Reserved, Scheduler
from agent.scheduler_api.hooks import ENTRY_POINTS, PROJECT, SchedulerHooks
from agent.vendor_api.text import shorten

log = structlog.get_logger()

SITS_OUT = "not in use: it offers nothing"


class SchedulerPlugin(Struct, frozen=True):
    """A scheduler's plugin. Without a `scheduler` the plugin is left out, and `reason` says why."""

    name: str
    origin: str
    version: str
    scheduler: Scheduler | None = None
    reason: str = ""


@cache
def load() -> tuple[SchedulerPlugin, ...]:
    """Every scheduler's plugin. A broken plugin is left out and harms no other."""
    return tuple(_without_clashes(map(_loaded, found(agent.schedulers, ENTRY_POINTS, "scheduler"))))


def log_left_out() -> None:
    """Log which plugins are left out, and why."""
    for plugin in load():
        if plugin.scheduler is None and plugin.reason != SITS_OUT:
            about = {"scheduler": plugin.name, "origin": plugin.origin, "reason": plugin.reason}
            log.warning("scheduler plugin left out", **about)


@cache
def registered() -> tuple[Scheduler, ...]:
    """The schedulers in the order in which they are heard: by name, each after those that it names."""
    return tuple(in_order(it.scheduler for it in load() if it.scheduler is not None))


def reserved() -> tuple[Reserved, ...]:
    """The resource names that schedulers' own programs write to the Node."""
    return tuple(name for it in registered() for name in it.reserved)


def in_order(schedulers: Iterable[Scheduler]) -> Iterator[Scheduler]:
    """By name, each after the schedulers in its `after`. Two schedulers that name each other are by name."""
    left = {it.name: it for it in sorted(schedulers, key=lambda it: it.name)}
    while left:
        free = (it for it in left.values() if left.keys().isdisjoint({*it.after} - {it.name}))
        first = next(free, None) or next(iter(left.values()))
        yield left.pop(first.name)


def _without_clashes(plugins: Iterable[SchedulerPlugin]) -> Iterator[SchedulerPlugin]:
    """The plugins, each left out if an earlier one brings a dialect of the same name, or a report, too.

    A claim knows its dialect by the name alone, and the config has one section `report`.
    """
    owners: dict[str, str] = {}
    for plugin in plugins:
        scheduler = plugin.scheduler
        brought = [f"a dialect named {it.name!r}" for it in scheduler.dialects] if scheduler else []
        brought += ["a report of the node's cards"] if scheduler and scheduler.report else []
        if taken := next((it for it in brought if it in owners), ""):
            why = f"{owners[taken]} already brings {taken}"
            plugin = replace(plugin, scheduler=None, reason=why)
        else:
            owners.update(dict.fromkeys(brought, plugin.name))
        yield plugin


def _loaded(found_plugin: FoundPlugin) -> SchedulerPlugin:
    plugin = SchedulerPlugin(found_plugin.name, found_plugin.origin, found_plugin.version)
    if found_plugin.clash:
        return replace(plugin, reason=found_plugin.clash)
    try:
        scheduler = _offered(found_plugin)
    except Exception as exc:  # contributors' code
        return replace(plugin, reason=failure(exc))
    return replace(plugin, scheduler=scheduler, reason=SITS_OUT if scheduler is None else "")


def _offered(plugin: FoundPlugin) -> Scheduler | None:
    hooks = PluginHooks(plugin, PROJECT, SchedulerHooks)
    hooks.need("register_scheduler", "agent.scheduler_api.hooks.hookimpl")
    offered = hooks.ask("register_scheduler")
    if offered is None:
        return None
    if not isinstance(offered, Scheduler):
        raise BrokenPlugin(f"register_scheduler returned a {type(offered).__name__}, a Scheduler is needed")
    if trouble := _trouble(plugin.name, offered):
        raise BrokenPlugin(f"register_scheduler returned a bad Scheduler: {trouble}")
    return guarded(contained(offered))


def _trouble(name: str, scheduler: Scheduler) -> str:
    """The first field with which the agent cannot work; empty where it can."""
    if trouble := wrong_field(scheduler):
        return trouble
    if scheduler.name != name:
        return f"name is {shorten(scheduler.name)!r}; it is registered as {name!r}"
    if not all(it.prefix and it.why for it in scheduler.reserved):
        return f"reserved is {shorten(repr(scheduler.reserved))}; a prefix and a reason are needed in each"
    if trouble := _wrong_reads("reads", scheduler.reads) or _wrong_locks("locks", scheduler.locks):
        return trouble
    if deaf := next((it.name for it in scheduler.dialects if not (it.reads or scheduler.reads)), ""):
        return f"reads is (); without a prefix of its annotations the dialect {deaf!r} sees none of a pod's"
    numbered = enumerate(scheduler.dialects)
    return next(filter(None, (wrong_dialect(f"dialects[{at}]", it) for at, it in numbered)), "")


def wrong_dialect(path: str, dialect: Dialect) -> str:
    """The first field of a dialect with which the agent cannot work; empty where it can."""
    keys = dialect.receipt_keys
    if trouble := _wrong_reads(f"{path}.reads", dialect.reads) or _wrong_locks(
        f"{path}.locks", dialect.locks
    ):
        return trouble
    if wrong := next(filter(None, map(wrong_key, keys)), ""):
        return f"{path}.receipt_keys cannot be written: {wrong}"
    return f"{path}.receipt_keys has {len(keys)} keys, at most {KEYS} work" if len(keys) > KEYS else ""


def _wrong_reads(path: str, reads: tuple[str, ...]) -> str:
    return f'{path} is {shorten(repr(reads))}; texts such as "acme.com/" are needed' if "" in reads else ""


def _wrong_locks(path: str, locks: tuple[str, ...]) -> str:
    if all("/" in it for it in locks):
        return ""
    return f'{path} is {shorten(repr(locks))}; keys such as "acme.com/mutex.lock" are needed'
