"""The metrics of use under the names of other exporters, so that their boards work without them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

import structlog

from agent.http.usage.series_usage import SeriesUsage
from agent.vendor_api.agent import Exporter
from agent.vendor_api.metric_families import MetricFamily
from agent.vendor_api.node_usage import NodeUsage
from agent.vendor_api.text import error_text

log = structlog.get_logger()

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
#: How the agent's own metrics begin.
_OWN = "xpu_"


def exporter_families(usage: SeriesUsage) -> Iterable[MetricFamily]:
    """The metrics of the exporters that the config switches on, each of the cards of the vendors with it.

    What two vendors have under one name is one metric: a page that had the name twice would not be read.
    """
    found: dict[str, MetricFamily] = {}
    for vendor, exporters in usage.exporters.items():
        of_vendor = usage.of_vendor(vendor)
        for family in (family for exporter in exporters for family in _families(exporter, of_vendor)):
            before = found.get(family.name)
            series = family.series if before is None else (*before.series, *family.series)
            found[family.name] = replace(before or family, series=series)
    return found.values()


def _families(exporter: Exporter, usage: NodeUsage) -> Iterable[MetricFamily]:
    """What the exporter has; nothing of an exporter that fails, which must not cost the scrape."""
    try:
        found = [*exporter.families(usage)]
        wrong = next((it for it in found if not _is_usable(it)), None)
        trouble = "" if wrong is None else f"is no metric that a page can have: {wrong!r}"
    except Exception as exc:  # contributors' code
        found, trouble = [], error_text(exc)
    if trouble:
        _complain(exporter.name, trouble)
    return () if trouble else found


def _is_usable(family: object) -> bool:
    return (
        isinstance(family, MetricFamily)
        and _NAME.fullmatch(family.name) is not None
        and not family.name.startswith(_OWN)
        and "\n" not in family.help
        and family.type in ("gauge", "counter")
        and all(isinstance(value, int | float) for _, value in family.series)
    )


@lru_cache(maxsize=64)
def _complain(exporter: str, trouble: str) -> None:
    """Log the trouble once, and not at each scrape."""
    log.warning("the metrics of an exporter are left out", exporter=exporter, error=trouble)
