"""The pods are known before a resource is registered whose cards schedulers choose: they bear the choice."""

from __future__ import annotations

from collections.abc import Mapping

import anyio
import structlog

from agent.cluster.pod_state import PodState
from agent.core.cell import Cell
from agent.core.model import Plan

log = structlog.get_logger(__name__)


class PodSync:
    """Has the pods followed as soon as a plan needs them, and holds up registrations until they are known."""

    def __init__(self, plan: Cell[Plan], scheduled: PodState, within: float) -> None:
        """`within`: seconds after its first plan in which a resource waits, whatever the API server does."""
        self._plan = plan
        self._scheduled = scheduled
        self._within = within
        #: The resources whose cards schedulers choose to when each was planned, on the loop's clock.
        self._planned: Mapping[str, float] = {}

    async def run(self) -> None:
        """Follow the plan for ever."""
        async for plan in self._plan.watch():
            now = anyio.current_time()
            names = [name for name, it in plan.items() if it.rule.placement != "local"]
            self._planned = {name: self._planned.get(name, now) for name in names}
            if names:
                self._scheduled.wanted.set(True)

    async def before(self, resource: str) -> None:
        """Return once the resource may be registered."""
        planned = self._plan.value.get(resource)
        if planned is None or planned.rule.placement == "local" or self._scheduled.unseen:
            return
        since = self._planned.get(resource, anyio.current_time())
        with anyio.CancelScope(deadline=since + self._within):
            await self._scheduled.followed.until(True)
            return
        log.warning(
            "registered before the pods of this node are known",
            resource=resource,
            waited_seconds=self._within,
            remedy="see why the API server does not answer the list of pods",
        )
