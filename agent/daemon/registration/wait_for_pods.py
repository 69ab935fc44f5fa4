"""Where schedulers choose the cards of a resource, its registration waits for the pods of the node.

The pods' annotations carry the choice.
"""

from __future__ import annotations

from collections.abc import Mapping

import anyio
import structlog

from agent.cluster.pod_state import PodState
from agent.core.cell import Cell
from agent.core.model import Plan
from agent.kubelet.kubelet_directory import FileIdentity

log = structlog.get_logger(__name__)


class PodSync:
    """Has the pods followed as soon as a planned resource needs them, and delays its registration."""

    def __init__(self, plan: Cell[Plan], pod_state: PodState, within: float) -> None:
        """`within`: seconds after its first plan in which a resource waits, whatever the API server does."""
        self._plan = plan
        self._pod_state = pod_state
        self._within = within
        #: Resources with cards that schedulers choose, to the time of their first plan on the loop's clock.
        self._planned: Mapping[str, float] = {}

    async def run(self) -> None:
        """Follow the plan for ever."""
        async for plan in self._plan.watch():
            now = anyio.current_time()
            names = [name for name, it in plan.items() if it.rule.placement != "local"]
            self._planned = {name: self._planned.get(name, now) for name in names}
            if names:
                self._pod_state.wanted.set(True)

    async def follow_lives(self, kubelet: Cell[FileIdentity | None]) -> None:
        """Report each life of the kubelet that begins: at its start it lists the pods of the node."""
        async for socket in kubelet.watch():
            if socket is not None:
                await self._pod_state.kubelet_began(socket.changed_ns)

    async def before(self, resource: str) -> None:
        """Return once the resource may be registered."""
        planned = self._plan.value.get(resource)
        if planned is None or planned.rule.placement == "local" or self._pod_state.unseen:
            return
        since = self._planned.get(resource, anyio.current_time())
        with anyio.CancelScope(deadline=since + self._within):
            await self._pod_state.followed.until(True)
            return
        log.warning(
            "registered before the pods of this node are known",
            resource=resource,
            waited_seconds=self._within,
            remedy="see why the API server does not answer the list of pods",
        )
