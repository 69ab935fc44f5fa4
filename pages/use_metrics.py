"""The metrics of use and those of other exporters, from made-up use with one of everything."""

from __future__ import annotations

import re
from collections.abc import Iterator

from agent.core.model import Allocation, AllocationState, DeviceStatus, Health, NodeSnapshot, Owner
from agent.core.publishing.agent_status import AgentStatus
from agent.core.usage.usage_report import CardUse, ContainerUse, SamplingStatus, Unattributed, UsageReport
from agent.daemon import vendor_plugins
from agent.http.usage.exporters import node_usage
from agent.http.usage.joined_usage import JoinedUsage
from agent.http.usage.series import usage_families
from agent.http.usage.series_usage import SeriesUsage
from agent.vendor_api.agent import Device, Exporter, State, Usage
from agent.vendor_api.metric_families import MetricFamily
from pages.table import code, table

_HEALTHY = Health(State.HEALTHY)
_FIGURES = Usage(
    "A",
    *(1, 4, 1),
    *(0.5, 0.5, 0.5, 0.5, 0.5),
    *(1.0, 1.0, 1.0, 1.0, 1.0, 1.0),
    ecc_errors={"corrected": 1, "uncorrected": 1},
    driver_errors={"31": 1},
    last_driver_error=31,
)


def _container(uuid: str) -> ContainerUse:
    return ContainerUse("a", "b", "1", "c", "nvidia", uuid, "a.com/b", 1, 1, 0.5, 1, 0.5, 1.0)


def _usage(exporter: str) -> SeriesUsage:
    """A card, and another one with a slice; a container on each."""
    devices = (Device("A", 0), Device("B", 1), Device("C", 1, parent="B", slice=0))
    report = UsageReport(
        *(5.0, 1.0),
        (SamplingStatus("nvidia", 1.0),),
        tuple(
            CardUse("nvidia", usage, parent, {Unattributed.HOST: 1})
            for usage, parent in ((_FIGURES, None), (Usage("B"), None), (Usage("C", memory_used=1), "B"))
        ),
        (_container("A"), _container("C")),
        unknown={"owner": 0},
    )
    status = AgentStatus(
        "node",
        "1",
        vendors={it.name: it.vendor for it in vendor_plugins.load({}) if it.vendor is not None},
        exporters=frozenset({exporter}),
        snapshot=NodeSnapshot(devices=tuple(DeviceStatus("nvidia", it, _HEALTHY, True) for it in devices)),
        allocations=(
            Allocation(
                *("1", "a.com/b", "nvidia", ("A",), ("A",), AllocationState.DONE, 1.0),
                owner=Owner("1", "c", "a", "b"),
            ),
        ),
    )
    return SeriesUsage.of(JoinedUsage(status, report))


def _families_of(exporter: str, usage: SeriesUsage) -> Iterator[MetricFamily]:
    for known in usage.joined.status.vendors["nvidia"].exporters:
        if isinstance(known, Exporter) and known.name == exporter:
            yield from known.families(node_usage(usage, "nvidia"))


def use_metric_table(exporter: str = "") -> Iterator[str]:
    """The metrics of use, or those of an exporter."""
    usage = _usage(exporter)
    families = _families_of(exporter, usage) if exporter else usage_families(usage)
    rows = []
    for family in families:
        if not family.series:
            raise ValueError(f"{family.name}: the made-up use has no series of it")
        names = dict.fromkeys(name for named, _ in family.series for name in re.findall(r'(\w+)="', named))
        rows.append((code(family.name), family.type, ", ".join(map(code, names)), family.help))
    yield from table(("metric", "type", "labels", "meaning"), sorted(rows))
