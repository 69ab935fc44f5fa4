"""Registers Koordinator: koord-scheduler chooses cards of every vendor and writes them on pods."""

from __future__ import annotations

from agent.scheduler_api import Scheduler
from agent.scheduler_api.hooks import hookimpl
from agent.schedulers.common.node_lock import LOCKS
from agent.schedulers.common.resource_names import RESERVED

from .allocated_annotation import ALLOCATED
from .dialect import KOORDINATOR, asks
from .doctor.checks import CHECKS
from .external_pods import EXTERNAL
from .node_report import NODE_REPORT

SCHEDULER = Scheduler(
    "koordinator",
    program="koord-scheduler",
    writes=ALLOCATED,
    reads=("koordinator.sh/", "scheduling.koordinator.sh/"),
    dialects=(KOORDINATOR,),
    asks=asks,
    external=EXTERNAL,
    locks=LOCKS,
    reserved=(RESERVED,),
    report=NODE_REPORT,
    checks=CHECKS,
)


@hookimpl
def register_scheduler() -> Scheduler:
    return SCHEDULER
