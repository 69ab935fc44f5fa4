"""The metrics of use under the names of other exporters, so that their boards work without them.

Loaded while the config switches an exporter on.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

import structlog

from agent.core.usage.usage_report import ContainerUse
from agent.http.usage.series_usage import SeriesUsage
from agent.vendor_api.agent import Exporter
from agent.vendor_api.metric_families import MetricFamily
from agent.vendor_api.node_usage import ContainerUsage, NodeUsage
from agent.vendor_api.text import error_text, shorten

log = structlog.get_logger()

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
#: How the names of the page's other metrics begin: the agent's own ones, and those of its process.
_TAKEN = ("xpu_", "process_")


def exporter_families(usage: SeriesUsage) -> Iterable[MetricFamily]:
    """The metrics of the exporters that the config switches on, each of the cards of the vendors with it.

    What two vendors have under one name is one metric: a page that had the name twice would not be read.
    """
    found: dict[str, MetricFamily] = {}
    for vendor, exporters in _switched_on(usage):
        of_vendor = _node_usage(usage, vendor)
        for family in (family for exporter in exporters for family in _families(exporter, of_vendor)):
            before = found.get(family.name)
            series = family.series if before is None else (*before.series, *family.series)
            found[family.name] = replace(before or family, series=series)
    return found.values()


def _switched_on(usage: SeriesUsage) -> Iterator[tuple[str, Sequence[Exporter]]]:
    """Each vendor with the exporters that the config switches on for its cards."""
    wanted = usage.joined.status.exporters
    for name, vendor in usage.joined.status.vendors.items():
        if here := [it for it in vendor.exporters if isinstance(it, Exporter) and it.name in wanted]:
            yield name, here


def _node_usage(usage: SeriesUsage, vendor: str) -> NodeUsage:
    """The use of this vendor's cards alone."""
    containers = tuple(_container(use) for use in usage.containers if use.vendor == vendor)
    return NodeUsage(
        node=usage.joined.status.node,
        now=usage.report.now,
        devices={uuid: it.device for uuid, it in usage.joined.devices.items() if it.vendor == vendor},
        cards=tuple(card.usage for card in usage.report.cards if card.vendor == vendor),
        containers=containers,
        shared=_shared(usage, containers),
        labels=usage.labels,
    )


def _container(use: ContainerUse) -> ContainerUsage:
    return ContainerUsage(
        namespace=use.namespace,
        pod=use.pod,
        container=use.container,
        uuid=use.uuid,
        resource=use.resource,
        processes=use.processes,
        memory=use.memory,
        utilization=use.utilization,
        memory_limit=use.memory_limit,
        compute_limit=use.compute_limit,
        active_at=use.active_at,
    )


def _shared(usage: SeriesUsage, containers: Sequence[ContainerUsage]) -> frozenset[str]:
    """The cards that several containers can have: some have, or a resource shares the card."""
    resources = usage.joined.status.resources
    is_shared = {name for name, it in resources.items() if it.rule.sharing.kind != "exclusive"}
    by_resource = {use.uuid for use in containers if use.resource in is_shared}
    counts = Counter(use.uuid for use in containers)
    return frozenset(by_resource | {uuid for uuid, count in counts.items() if count > 1})


def _families(exporter: Exporter, usage: NodeUsage) -> Iterable[MetricFamily]:
    """What the exporter has; nothing of an exporter that fails, which must not cost the scrape."""
    try:
        found = [*exporter.families(usage)]
        wrong = next((it for it in found if not _is_usable(it)), None)
        trouble = "" if wrong is None else f"no metric that a page can have: {shorten(repr(wrong))}"
    except Exception as exc:  # contributors' code
        found, trouble = [], error_text(exc)
    if trouble:
        _complain(exporter.name, trouble)
    return () if trouble else found


def _is_usable(family: object) -> bool:
    return (
        isinstance(family, MetricFamily)
        and _NAME.fullmatch(family.name) is not None
        and not family.name.startswith(_TAKEN)
        and "\n" not in family.help
        and family.type in ("gauge", "counter")
        and {type(named) for named, _ in family.series} <= {str}
        and {type(value) for _, value in family.series} <= {int, float, bool}
    )


@lru_cache(maxsize=64)
def _complain(exporter: str, trouble: str) -> None:
    """Log the trouble once, and not at each scrape."""
    log.warning("the metrics of an exporter are left out", exporter=exporter, error=trouble)
