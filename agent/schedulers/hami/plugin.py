"""Registers HAMi, which writes each container's cards on the pod, in its own annotations or in MetaX's."""

from __future__ import annotations

from agent.scheduler_api import Scheduler
from agent.scheduler_api.hooks import hookimpl
from agent.schedulers.common.node_lock import LOCKS

from .metax_claims import metax_limits, metax_sgpu
from .pod_annotations import HAMI, METAX

#: Heard after Koordinator: koord-scheduler writes MetaX's annotation too, and its own says more.
SCHEDULER = Scheduler(
    "hami",
    after=("koordinator",),
    reads=("metax-tech.com/", "hami.io/"),
    dialects=(METAX, HAMI),
    locks=LOCKS,
    vendor_dialects={"metax-sgpu": metax_sgpu, "metax-limits": metax_limits},
)


@hookimpl
def register_scheduler() -> Scheduler:
    return SCHEDULER
