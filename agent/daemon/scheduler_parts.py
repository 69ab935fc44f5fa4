"""Makes a vendor's parts that schedulers bring: dialects, formats, exporters, and facts of the Node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from agent.daemon.field_types import wrong_field
from agent.daemon.plugin_discovery import BrokenPlugin
from agent.daemon.scheduler_plugins import registered, wrong_dialect
from agent.scheduler_api import CountedCard, Dialect, DialectOf, Grant, Scheduler, SchedulerFacts
from agent.vendor_api.agent import (
    CountedCards,
    Device,
    Exporter,
    ExporterOf,
    Format,
    FormatOf,
    NodeFacts,
    ResourceRule,
    Vendor,
)
from agent.vendor_api.text import shorten

if TYPE_CHECKING:
    from agent.vendor_api.metric_families import MetricFamily
    from agent.vendor_api.node_usage import NodeUsage


def with_named_parts(vendor: Vendor) -> Vendor:
    """The vendor with the dialects, formats, exporters and facts of the Node that schedulers make for it.

    Raises:
        BrokenPlugin: No scheduler brings a named part, or its scheduler refuses the vendor's terms; a dialect
            of the vendor has the name of a scheduler's dialect; two dialects read a pod's limits; or vendor
            and scheduler both bring annotations or extended resources of the Node.
    """
    formats = (*map(_made_format, vendor.named_formats), *vendor.formats)
    exporters = tuple(it if isinstance(it, Exporter) else _made_exporter(it) for it in vendor.exporters)
    facts = _with_scheduler_facts(vendor)
    return replace(_with_dialects(vendor), formats=formats, exporters=exporters, publishes=facts)


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


def _made_exporter(wanted: ExporterOf) -> Exporter:
    """The exporter; where it cannot be made, one that says so, since cards are served without metrics."""
    what = f"names the exporter {shorten(wanted.exporter)!r} of the scheduler {shorten(wanted.scheduler)!r}"
    name = (wanted.scheduler, wanted.exporter)
    try:
        made = _made(what, Exporter, lambda it: it.vendor_exporters, name, wanted.terms)
        return replace(made, name=wanted.exporter)  # the config knows the name that the vendor has
    except BrokenPlugin as exc:
        return Exporter(wanted.exporter, partial(_failing, str(exc)))


def _failing(why: str, usage: NodeUsage) -> Iterable[MetricFamily]:
    raise BrokenPlugin(why)


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


Part = TypeVar("Part", Dialect, Exporter, Format, SchedulerFacts)


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
