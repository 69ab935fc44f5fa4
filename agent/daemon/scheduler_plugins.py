"""Loads schedulers' plugins, of the tree and of other distributions, in the order in which they are heard."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TypeVar

import pluggy
import structlog

import agent.schedulers
from agent.core.publishing.receipt_rules import KEYS, wrong_key
from agent.daemon.field_types import wrong_field
from agent.daemon.plugin_discovery import BrokenPlugin, FoundPlugin, found
from agent.scheduler_api import CountedCard, Dialect, DialectOf, Grant, Reserved, Scheduler, SchedulerFacts
from agent.scheduler_api.hooks import ENTRY_POINTS, PROJECT, SchedulerHooks
from agent.vendor_api.agent import CountedCards, Device, Format, FormatOf, NodeFacts, ResourceRule, Vendor
from agent.vendor_api.text import shorten

log = structlog.get_logger()

SITS_OUT = "not in use: it offers nothing"


@dataclass(frozen=True, slots=True)
class SchedulerPlugin:
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


def with_named_parts(vendor: Vendor) -> Vendor:
    """The vendor with the dialects, formats and facts of the Node that it names and schedulers make.

    Raises:
        BrokenPlugin: No scheduler brings a named part, or its scheduler refuses the vendor's terms; a dialect
            of the vendor has the name of a scheduler's dialect; two dialects read a pod's limits; or vendor
            and scheduler both bring annotations or extended resources of the Node.
    """
    formats = (*map(_made_format, vendor.named_formats), *vendor.formats)
    return replace(_with_dialects(vendor), formats=formats, publishes=_with_scheduler_facts(vendor))


def _with_dialects(vendor: Vendor) -> Vendor:
    """The vendor with the dialects that it names, in its order, before the dialects that it brings."""
    made = [(wanted, _made_dialect(wanted)) for wanted in vendor.named_dialects]
    limits = [dialect for wanted, dialect in made if wanted.of_limits]
    limits += [vendor.pod_limits] if vendor.pod_limits is not None else []
    if len(limits) > 1:
        both = " and ".join(repr(dialect.name) for dialect in limits)
        raise BrokenPlugin(f"the dialects {both} read a pod's limits; one dialect works")
    owners = {dialect.name: it.name for it in registered() for dialect in it.dialects}
    if taken := next((it.name for it in vendor.dialects if it.name in owners), ""):
        raise BrokenPlugin(f"the scheduler {owners[taken]} already brings a dialect named {taken!r}")
    dialects = tuple(dialect for wanted, dialect in made if not wanted.of_limits)
    return replace(vendor, dialects=(*dialects, *vendor.dialects), pod_limits=next(iter(limits), None))


def _made_dialect(wanted: DialectOf) -> Dialect:
    what = f"hears {shorten(wanted.dialect)!r} of the scheduler {shorten(wanted.scheduler)!r}"
    name = (wanted.scheduler, wanted.dialect)
    dialect = _made(what, Dialect, lambda it: it.vendor_dialects, name, wanted.terms, registered())
    if wrong := wrong_dialect("dialect", dialect):
        raise BrokenPlugin(f"{what}, which is unusable: {wrong}")
    return replace(dialect, measure=wanted.measure) if wanted.measure is not None else dialect


def _made_format(wanted: FormatOf) -> Format:
    what = f"names the format {shorten(wanted.format)!r} of the scheduler {shorten(wanted.scheduler)!r}"
    return _made(what, Format, lambda it: it.vendor_formats, (wanted.scheduler, wanted.format), wanted.terms)


def _with_scheduler_facts(vendor: Vendor) -> NodeFacts:
    """The facts of the Node, those included that the vendor names and a scheduler makes."""
    wanted, own = vendor.named_node_facts, vendor.publishes
    if wanted is None:
        return own
    what = f"names the node facts {shorten(wanted.facts)!r} of the scheduler {shorten(wanted.scheduler)!r}"
    if own.annotation_keys or own.extended_resource_keys:
        raise BrokenPlugin(f"{what}, and publishes has annotations or extended resources; one works")
    name = (wanted.scheduler, wanted.facts)
    made = _made(what, SchedulerFacts, lambda it: it.vendor_node_facts, name, wanted.terms)
    return replace(
        own,
        annotations=partial(_annotations, wanted.cards, made.annotations) if made.annotations else None,
        annotation_keys=made.annotation_keys,
        extended_resources=(
            partial(_extended_resources, wanted.cards, made.extended_resources)
            if made.extended_resources
            else None
        ),
        extended_resource_keys=made.extended_resource_keys,
    )


def _annotations(
    counted: CountedCards,
    make: Callable[[Sequence[CountedCard], Sequence[Grant]], Mapping[str, str | None]],
    rules: Sequence[ResourceRule],
    devices: Sequence[Device],
    grants: Sequence[Grant],
) -> Mapping[str, str | None]:
    return make(counted(rules, devices), grants)


def _extended_resources(
    counted: CountedCards,
    make: Callable[[Sequence[CountedCard]], Mapping[str, int | None]],
    rules: Sequence[ResourceRule],
    devices: Sequence[Device],
) -> Mapping[str, int | None]:
    return make(counted(rules, devices))


Part = TypeVar("Part", Dialect, Format, SchedulerFacts)


def _made(
    what: str,
    kind: type[Part],
    makers_of: Callable[[Scheduler], Mapping[str, Callable[..., Part]]],
    name: tuple[str, str],
    *arguments: object,
) -> Part:
    """A part of a vendor, made by the function with this name: the scheduler's name, and the part's name.

    `what` begins the sentence of an error. `makers_of` returns the functions of a scheduler.

    Raises:
        BrokenPlugin: There is no such function, or it makes no usable part.
    """
    makers = {(it.name, part): make for it in registered() for part, make in makers_of(it).items()}
    make = makers.get(name)
    if make is None:
        known = ", ".join(f"{part} of {scheduler}" for scheduler, part in sorted(makers)) or "none"
        raise BrokenPlugin(f"{what}, which is not here; there are: {known}")
    try:
        made = make(*arguments)
    except Exception as exc:  # contributors' code
        raise BrokenPlugin(f"{what}, which cannot be made: {type(exc).__name__}: {exc}") from exc
    if not isinstance(made, kind):
        raise BrokenPlugin(f"{what}, which is made as a {type(made).__name__}; a {kind.__name__} is needed")
    if wrong := wrong_field(made):
        raise BrokenPlugin(f"{what}, which is unusable: {wrong}")
    return made


def _loaded(found_plugin: FoundPlugin) -> SchedulerPlugin:
    plugin = SchedulerPlugin(found_plugin.name, found_plugin.origin, found_plugin.version)
    if found_plugin.clash:
        return replace(plugin, reason=found_plugin.clash)
    try:
        scheduler = _offered(found_plugin)
    except BrokenPlugin as exc:
        return replace(plugin, reason=str(exc))
    except (Exception, SystemExit) as exc:  # contributors' code
        return replace(plugin, reason=f"{type(exc).__name__}: {exc}")
    return replace(plugin, scheduler=scheduler, reason=SITS_OUT if scheduler is None else "")


def _offered(plugin: FoundPlugin) -> Scheduler | None:
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(SchedulerHooks)
    module = plugin.load()
    manager.register(module, name=plugin.name)
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
    if trouble := _trouble(plugin.name, offered):
        raise BrokenPlugin(f"register_scheduler returned a bad Scheduler: {trouble}")
    return offered


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
