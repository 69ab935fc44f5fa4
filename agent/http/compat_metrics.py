"""The series of use under the names of other exporters, so that their boards work without them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from agent.http.dcgm_metrics import dcgm_families
from agent.http.gpu_manager_metrics import gpu_manager_families
from agent.http.hami_metrics import hami_families
from agent.http.metric_families import MetricFamily
from agent.http.usage.joined_usage import JoinedUsage

#: Name of the exporter in the config to its series.
DIALECTS: Mapping[str, Callable[[JoinedUsage], Iterator[MetricFamily]]] = {
    "dcgm": dcgm_families,
    "hami": hami_families,
    "gpu-manager": gpu_manager_families,
}
#: These exporters read NVML. Under their names, a card of another vendor would be taken for NVIDIA's.
_VENDOR = "nvidia"


def compat_families(usage: JoinedUsage) -> Iterator[MetricFamily]:
    """The series of the exporters that the config switches on."""
    if usage.report.compat:
        of_vendor = usage.of_vendor(_VENDOR)
        for name, families in DIALECTS.items():
            if name in usage.report.compat:
                yield from families(of_vendor)
