"""Finds schedulers' plugins, in the tree and in other distributions; loads them in the order of hearing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache

import pluggy
import structlog

import agent.schedulers
from agent.core.publishing.receipt_rules import KEYS, wrong_key
from agent.daemon.plugin_discovery import BrokenPlugin, Found, found
from agent.scheduler_api import Dialect, DialectOf, ExternalUse, Reserved, Scheduler
from agent.scheduler_api.hooks import ENTRY_POINTS, PROJECT, Hooks
from agent.vendor_api.agent import Vendor
from agent.vendor_api.text import shorten

log = structlog.get_logger()

SITS_OUT = "not in use: it offers nothing"


@dataclass(frozen=True, slots=True)
class SchedulerPlugin:
    """A scheduler's plugin that was found; without a `scheduler`, the reason says why it is left out."""

    name: str
    origin: str
    version: str
    scheduler: Scheduler | None = None
    reason: str = ""


@cache
def load() -> tuple[SchedulerPlugin, ...]:
    """Every scheduler's plugin. A broken one is left out, and harms no other."""
    return tuple(_without_clashes(map(_loaded, found(agent.schedulers, ENTRY_POINTS, "scheduler"))))


def log_left_out() -> None:
    """Say which plugins are left out, and why."""
    for it in load():
        if it.scheduler is None and it.reason != SITS_OUT:
            log.warning("scheduler plugin left out", scheduler=it.name, origin=it.origin, reason=it.reason)


@cache
def registered() -> tuple[Scheduler, ...]:
    """The schedulers in the order in which they are heard: by name, each after those that it names."""
    return tuple(in_order(it.scheduler for it in load() if it.scheduler is not None))


def reserved() -> tuple[Reserved, ...]:
    """The names of resources that belong to a scheduler."""
    return tuple(name for it in registered() for name in it.reserved)


def in_order(schedulers: Iterable[Scheduler]) -> Iterator[Scheduler]:
    """By name, each after those that it names in `after`; two that name each other stand by name."""
    left = {it.name: it for it in sorted(schedulers, key=lambda it: it.name)}
    while left:
        free = (it for it in left.values() if left.keys().isdisjoint({*it.after} - {it.name}))
        first = next(free, None) or next(iter(left.values()))
        yield left.pop(first.name)


def _without_clashes(plugins: Iterable[SchedulerPlugin]) -> Iterator[SchedulerPlugin]:
    """A claim knows its dialect by name alone: of two dialects of one name the first one counts."""
    owners: dict[str, str] = {}
    for plugin in plugins:
        names = [it.name for it in plugin.scheduler.dialects] if plugin.scheduler is not None else []
        if taken := next((name for name in names if name in owners), ""):
            why = f"{owners[taken]} already brings a dialect named {taken!r}"
            plugin = replace(plugin, scheduler=None, reason=why)
        else:
            owners.update(dict.fromkeys(names, plugin.name))
        yield plugin


def hearing(vendor: Vendor) -> Vendor:
    """The vendor with the dialects that it names, in its order, before those that it brings itself.

    Raises:
        BrokenPlugin: No scheduler here brings such a dialect, or the vendor's terms are none.
    """
    made = [(it, _made(it)) for it in vendor.hears]
    dialects = tuple(dialect for it, dialect in made if not it.of_limits)
    limits = next((dialect for it, dialect in made if it.of_limits), vendor.pod_limits)
    return replace(vendor, schedulers=(*dialects, *vendor.schedulers), pod_limits=limits)


def _made(wanted: DialectOf) -> Dialect:
    whose = f"hears {shorten(wanted.dialect)!r} of the scheduler {shorten(wanted.scheduler)!r}"
    makers = {(it.name, name): make for it in registered() for name, make in it.vendor_dialects.items()}
    make = makers.get((wanted.scheduler, wanted.dialect))
    if make is None:
        there = ", ".join(f"{name} of {scheduler}" for scheduler, name in sorted(makers)) or "none"
        raise BrokenPlugin(f"{whose}, which is not here; there are: {there}")
    try:
        dialect = make(wanted.terms, registered())
    except Exception as exc:  # contributors' code
        raise BrokenPlugin(f"{whose}, which can not be made: {type(exc).__name__}: {exc}") from exc
    if wrong := trouble_of_dialects((dialect,)):
        raise BrokenPlugin(f"{whose}, whose {wrong}")
    return replace(dialect, measure=wanted.measure) if wanted.measure is not None else dialect


def _loaded(it: Found) -> SchedulerPlugin:
    if it.clash:
        return SchedulerPlugin(it.name, it.origin, it.version, None, it.clash)
    try:
        scheduler = _offered(it)
    except BrokenPlugin as exc:
        return SchedulerPlugin(it.name, it.origin, it.version, None, str(exc))
    except (Exception, SystemExit) as exc:  # contributors' code
        return SchedulerPlugin(it.name, it.origin, it.version, None, f"{type(exc).__name__}: {exc}")
    return SchedulerPlugin(it.name, it.origin, it.version, scheduler, SITS_OUT if scheduler is None else "")


def _offered(it: Found) -> Scheduler | None:
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(Hooks)
    module = it.load()
    manager.register(module, name=it.name)
    manager.check_pending()
    if not manager.get_hookcallers(module):
        raise BrokenPlugin(
            "implements no hook; decorate register_scheduler with agent.scheduler_api.hooks.hookimpl"
        )
    offered: object = manager.hook.register_scheduler()
    if offered is None:
        return None
    if not isinstance(offered, Scheduler):
        raise BrokenPlugin(f"register_scheduler returned a {type(offered).__name__}, a Scheduler is needed")
    if trouble := _trouble(it.name, offered):
        raise BrokenPlugin(f"register_scheduler returned a Scheduler whose {trouble}")
    return offered


def _trouble(name: str, its: Scheduler) -> str:
    """What of the Scheduler the agent cannot work with; empty where it can."""
    if its.name != name:
        return f"name is {shorten(str(its.name))!r}; it is registered as {name!r}"
    for key in ("program", "writes"):
        if not isinstance(getattr(its, key), str):
            return f"{key} is {shorten(repr(getattr(its, key)))}; a text is needed"
    if not (isinstance(its.after, tuple) and all(isinstance(it, str) for it in its.after)):
        return f"after is {shorten(repr(its.after))}; a tuple of schedulers' names is needed"
    if not (isinstance(its.reads, tuple) and all(isinstance(it, str) and it for it in its.reads)):
        return f'reads {shorten(repr(its.reads))}; a tuple of texts such as "acme.com/" is needed'
    if not (its.asks is None or callable(its.asks)):
        return "asks can not be called"
    if not (its.external is None or _is_external(its.external)):
        return f"external is {shorten(repr(its.external))}; an ExternalUse is needed"
    if not (isinstance(its.reserved, tuple) and all(_is_reserved(it) for it in its.reserved)):
        return f"reserved is {shorten(repr(its.reserved))}; a tuple of Reserved is needed"
    if wrong := _trouble_of_locks(its.locks):
        return wrong
    makers = its.vendor_dialects
    if not (isinstance(makers, Mapping) and all(map(callable, makers.values()))):
        return f"vendor_dialects are {shorten(repr(makers))}; functions by name are needed"
    return trouble_of_dialects(its.dialects)


def _is_external(its: object) -> bool:
    return isinstance(its, ExternalUse) and isinstance(its.resource, str) and callable(its.claim)


def _is_reserved(its: object) -> bool:
    texts = (its.prefix, its.why) if isinstance(its, Reserved) else ()
    return len(texts) == 2 and all(isinstance(it, str) and it for it in texts)


def trouble_of_dialects(dialects: object) -> str:
    """What of a vendor's or a scheduler's dialects the agent cannot work with; empty where it can."""
    if not (isinstance(dialects, tuple) and all(isinstance(it, Dialect) for it in dialects)):
        return "dialects are no tuple of Dialect"
    for it in dialects:
        if not isinstance(it.name, str):
            return f"dialect has the name {shorten(repr(it.name))}; a text is needed"
        whose = f"dialect {shorten(it.name)!r}"
        if not callable(it.claims):
            return f"{whose} has claims that can not be called"
        if not (callable(it.measure) or it.measure is None):
            return f"{whose} has a measure that can not be called"
        if not (isinstance(it.reads, tuple) and all(isinstance(one, str) and one for one in it.reads)):
            return f'{whose} reads {shorten(repr(it.reads))}; a tuple of texts such as "acme.com/" is needed'
        if wrong := _trouble_of_locks(it.locks):
            return f"{whose} {wrong}"
        if wrong := _trouble_of_receipt(it):
            return f"{whose} {wrong}"
    return ""


def _trouble_of_locks(locks: object) -> str:
    if isinstance(locks, tuple) and all(isinstance(it, str) and "/" in it for it in locks):
        return ""
    return f'locks {shorten(repr(locks))}; a tuple of keys such as "acme.com/mutex.lock" is needed'


def _trouble_of_receipt(dialect: Dialect) -> str:
    if not (callable(dialect.receipt) or dialect.receipt is None):
        return "has a receipt that can not be called"
    keys = dialect.receipt_keys
    if not (isinstance(keys, tuple) and all(isinstance(it, str) for it in keys)):
        its = shorten(repr(keys))
        return f'has receipt_keys {its}; a tuple of keys such as "acme.com/assigned" is needed'
    if wrong := next(filter(None, map(wrong_key, keys)), ""):
        return f"has receipt_keys that can not be written: {wrong}"
    return f"has {len(keys)} receipt_keys, at most {KEYS} work" if len(keys) > KEYS else ""
