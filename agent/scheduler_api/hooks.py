"""The hook by which a plugin registers a scheduler."""

from __future__ import annotations

from agent.scheduler_api import Scheduler
from agent.vendor_api.hook_markers import PROJECT as PROJECT
from agent.vendor_api.hook_markers import hookimpl as hookimpl
from agent.vendor_api.hook_markers import hookspec

#: Entry-point group of other distributions: each entry names a module with hook implementations.
ENTRY_POINTS = "xpu_agent.schedulers"


class SchedulerHooks:
    @hookspec(firstresult=True)
    def register_scheduler(self) -> Scheduler | None:
        """Return the scheduler, or None to take no part. A registered scheduler is heard on every node."""
