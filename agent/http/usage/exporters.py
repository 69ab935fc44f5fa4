"""The metrics of use under the names of other exporters, so that their boards work without them.

Loaded while the config switches an exporter on.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import structlog

from agent.core.usage.usage_report import ContainerUse
from agent.http.usage.series_usage import SeriesUsage
from agent.vendor_api.agent import Exporter
from agent.vendor_api.metric_families import MetricFamily
from agent.vendor_api.node_usage import ContainerUsage, NodeUsage
from agent.vendor_api.text import error_text, shorten

log = structlog.get_logger()

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
#: A label's value with its quotes, as Prometheus' text format has it.
_VALUE = re.compile(r'"[^"\\\n]*(?:\\[\\"n][^"\\\n]*)*"')
#: Labels without their values. Names with two underscores at the beginning belong to Prometheus.
_NAMES = re.compile(r'(?!__)[a-zA-Z_][a-zA-Z0-9_]*=""(?:,(?!__)[a-zA-Z_][a-zA-Z0-9_]*="")*')
#: How the names of the page's other metrics begin: the agent's own ones, and those of its process.
_TAKEN = ("xpu_", "process_")
#: No figure of a card comes near; an integer beyond has hundreds of digits.
_MOST = 1e30
#: Complaints that are remembered. With more, nothing is logged any longer.
_MOST_COMPLAINTS = 64


class UnfitMetric(ValueError):
    """Raised for a metric that a page cannot have."""


class Complaint(NamedTuple):
    """Whose metrics are left out, and the type of the error: the text may be another at each scrape."""

    vendor: str
    exporter: str
    error: str


class _Metric(NamedTuple):
    """One metric in Prometheus' text format. Series without labels come last."""

    name: str
    #: The lines of help and type.
    head: bytes
    labelled: bytes
    plain: bytes
    series: int


def exporter_page(usage: SeriesUsage) -> tuple[int, bytes]:
    """The series of the exporters that the config switches on, each of the cards of the vendors with it.

    Returns the number of series, and their text in Prometheus' format. What two vendors have under one name
    is one metric: a page that had the name twice would not be read.
    """
    found: dict[str, list[_Metric]] = {}
    for vendor, exporters in _switched_on(usage):
        of_vendor = node_usage(usage, vendor)
        for exporter in exporters:
            for metric in _metrics(vendor, exporter, of_vendor):
                same = found.setdefault(metric.name, [])
                if same and same[0].head != metric.head:
                    why = f"{metric.name} has another type or help before: {shorten(repr(same[0].head))}"
                    _complain(vendor, exporter.name, UnfitMetric(why))
                else:
                    same.append(metric)
    text = b"".join(part for metrics in found.values() for part in _parts(metrics))
    return sum(it.series for metrics in found.values() for it in metrics), text


def _parts(metrics: Sequence[_Metric]) -> Iterator[bytes]:
    yield metrics[0].head
    yield from (it.labelled for it in metrics)
    yield from (it.plain for it in metrics)


def _switched_on(usage: SeriesUsage) -> Iterator[tuple[str, Sequence[Exporter]]]:
    """Each vendor with the exporters that the config switches on for its cards."""
    wanted = usage.joined.status.exporters
    for name, vendor in usage.joined.status.vendors.items():
        if here := [it for it in vendor.exporters if isinstance(it, Exporter) and it.name in wanted]:
            yield name, here


def node_usage(usage: SeriesUsage, vendor: str) -> NodeUsage:
    """The use of this vendor's cards alone."""
    containers = tuple(_container(use) for use in usage.containers if use.vendor == vendor)
    return NodeUsage(
        node=usage.joined.status.node,
        now=usage.report.now,
        devices={uuid: it.device for uuid, it in usage.joined.devices.items() if it.vendor == vendor},
        cards=tuple(card.usage for card in usage.report.cards if card.vendor == vendor),
        containers=containers,
        shared=_shared(usage, containers),
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


def _metrics(vendor: str, exporter: Exporter, usage: NodeUsage) -> Sequence[_Metric]:
    """What the exporter has; nothing of an exporter that fails, which must not cost the scrape."""
    try:
        checked = {""}
        found = [_metric(family, checked) for family in exporter.families(usage)]
        return [it for it in found if it.series]
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise
    except BaseException as exc:  # contributors' code, which may exit in the body of a generator
        _complain(vendor, exporter.name, exc)
        return ()


def _metric(family: object, checked: set[str]) -> _Metric:
    """The family as text. `checked` has labels that were found good, since many series have the same.

    Raises:
        UnfitMetric: A page with the family could not be read.
        UnicodeEncodeError: A text has a lone surrogate.
    """
    if type(family) is not MetricFamily:
        raise UnfitMetric(f"no metric: a {type(family).__name__}")
    name, help_, kind, series = family.name, family.help, family.type, family.series
    if type(name) is not str or not _NAME.fullmatch(name) or name.startswith(_TAKEN):
        raise UnfitMetric(f"a metric cannot have this name: {_shown(name)}")
    if type(help_) is not str or "\n" in help_:
        raise UnfitMetric(f"the help of {name} is no line of text: {_shown(help_)}")
    if type(kind) is not str or kind not in ("gauge", "counter"):
        raise UnfitMetric(f"the type of {name} is no gauge and no counter: {_shown(kind)}")
    if type(series) not in (list, tuple):
        raise UnfitMetric(f"the series of {name} are no list: {_shown(series)}")
    pairs = [(named, value) for named, value in series]  # read once: what is checked is written
    figures = [value for _, value in pairs]
    if not {*map(type, figures)} <= {int, float} or [it for it in figures if not -_MOST < it < _MOST]:
        raise UnfitMetric(f"a value of {name} is no finite number of a usual size")
    texts = [named for named, _ in pairs]
    if not {*map(type, texts)} <= {str}:
        raise UnfitMetric(f"the labels of {name} are no text")
    new = {*texts} - checked
    if (wrong := next((it for it in new if not _are_labels(it)), None)) is not None:
        raise UnfitMetric(f"a series of {name} has wrong labels: {_shown(wrong)}")
    checked |= new
    labelled = "".join([f"{name}{{{named}}} {value}\n" for named, value in pairs if named])
    plain = "".join([f"{name} {value}\n" for named, value in pairs if not named])
    head = f"# HELP {name} {help_}\n# TYPE {name} {kind}\n"
    return _Metric(name, head.encode(), labelled.encode(), plain.encode(), len(pairs))


def _are_labels(text: str) -> bool:
    if "\\" in text or "\n" in text:
        return _are_names(_VALUE.sub('""', text))
    parts = text.split('"')  # nearly all: without an escape, and this is quicker
    return len(parts) % 2 == 1 and _are_names('""'.join(parts[::2]))


@lru_cache(maxsize=256)
def _are_names(names: str) -> bool:
    """Whether these are labels, whose values are cut out. A page with a label twice would not be read."""
    found = names.split(",")
    return _NAMES.fullmatch(names) is not None and len({*found}) == len(found)


def _shown(wrong: object) -> str:
    return shorten(repr(wrong))


_complaints: set[Complaint] = set()


def _complain(vendor: str, exporter: str, exc: BaseException) -> None:
    """Log the trouble once, and not at each scrape."""
    complaint = Complaint(vendor, exporter, type(exc).__name__)
    if complaint not in _complaints and len(_complaints) < _MOST_COMPLAINTS:
        _complaints.add(complaint)
        log.warning(
            "metrics of an exporter are left out", vendor=vendor, exporter=exporter, error=error_text(exc)
        )
