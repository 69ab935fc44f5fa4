"""The programs whose metrics of use stand for NVIDIA's cards. All of them read NVML."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from agent.vendor_api.agent import Exporter, ExporterOf

from ..shared.constants import CI, GI, MIG_PROFILE

if TYPE_CHECKING:
    from agent.vendor_api.metric_families import MetricFamily
    from agent.vendor_api.node_usage import NodeUsage


def _dcgm(usage: NodeUsage) -> Iterable[MetricFamily]:
    from .dcgm_metrics import dcgm_families

    return dcgm_families(usage)


def _gpu_manager(usage: NodeUsage) -> Iterable[MetricFamily]:
    from .gpu_manager_metrics import gpu_manager_families

    return gpu_manager_families(usage)


#: HAMi's word for the make, and the attributes of a slice that HAMi's monitor shows.
_HAMI = {"make": "NVIDIA", "profile": MIG_PROFILE, "gpu_instance": GI, "compute_instance": CI}
EXPORTERS = (
    Exporter("dcgm", _dcgm),
    ExporterOf("hami", "hami", _HAMI),
    Exporter("gpu-manager", _gpu_manager),
)
