"""Registers HAMi, which writes each container's cards on the pod, in its own annotations or in MetaX's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from agent.scheduler_api import Scheduler
from agent.scheduler_api.hooks import hookimpl
from agent.schedulers.common.node_lock import LOCKS
from agent.vendor_api.exporters import Exporter

from .metax_claims import metax_limits, metax_sgpu
from .pod_annotations import HAMI, METAX

if TYPE_CHECKING:
    from agent.vendor_api.metric_families import MetricFamily
    from agent.vendor_api.node_usage import NodeUsage


#: The attributes of a slice, which a make may be without.
_OF_SLICES = {"profile", "gpu_instance", "compute_instance"}


def _monitor(terms: Mapping[str, str]) -> Exporter:
    """HAMi's monitor for the cards of one make; the term `make` is HAMi's word for the make: NVIDIA.

    The terms `profile`, `gpu_instance` and `compute_instance` are the vendor's names of the attributes of a
    slice.
    """
    if "make" not in terms or not terms.keys() <= {"make"} | _OF_SLICES:
        raise ValueError(
            f"the terms are {sorted(terms)}, needed is make, and allowed are {sorted(_OF_SLICES)}"
        )
    return Exporter("hami", partial(_monitor_families, terms))


def _monitor_families(terms: Mapping[str, str], usage: NodeUsage) -> Iterable[MetricFamily]:
    from .monitor_metrics import monitor_families

    return monitor_families(terms, usage)


#: Heard after Koordinator: koord-scheduler writes MetaX's annotation too, and its own says more.
SCHEDULER = Scheduler(
    "hami",
    after=("koordinator",),
    reads=("metax-tech.com/", "hami.io/"),
    dialects=(METAX, HAMI),
    locks=LOCKS,
    vendor_dialects={"metax-sgpu": metax_sgpu, "metax-limits": metax_limits},
    vendor_exporters={"hami": _monitor},
)


@hookimpl
def register_scheduler() -> Scheduler:
    return SCHEDULER
