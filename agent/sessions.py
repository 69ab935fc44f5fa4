"""The sessions with the kubelet: one for each resource of the plan, for as long as its name is planned."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import anyio
import structlog
from anyio.abc import TaskGroup

from agent.core.cell import Cell
from agent.core.model import Resource, SessionStatus
from agent.core.renewal import Registration
from agent.kubelet.deviceplugin import Answers, PluginStats
from agent.kubelet.directory import KubeletDirectory
from agent.kubelet.session import Intervals, KubeletSession
from agent.node import Node

log = structlog.get_logger()


class Sessions:
    """Starts a session when a resource appears, and forgets it when the resource has ended."""

    def __init__(
        self,
        node: Node,
        answers: Answers,
        directory: KubeletDirectory,
        intervals: Intervals,
        clock: Callable[[], float],
        registered: Cell[bool],
    ) -> None:
        self._node = node
        self._answers = answers
        self._directory = directory
        self._intervals = intervals
        self._clock = clock
        #: Set at the first registration: what is heavy and can wait is loaded after that.
        self._registered = registered
        self._sessions: dict[str, KubeletSession] = {}
        self.statuses: dict[str, Cell[SessionStatus]] = {}
        self.stats: dict[str, PluginStats] = {}
        #: When the kubelet of today was last seen to begin anew; None until anything is registered.
        self.registered_since: float | None = None

    async def run(self) -> None:
        """Follow the plan for ever."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._watch_kubelet)
            async for plan in self._node.plan.watch():
                for name in plan.keys() - self.statuses.keys():
                    self._begin(name, group)

    def _begin(self, name: str, group: TaskGroup) -> None:
        self.statuses[name] = Cell(SessionStatus())
        # The cell is taken now: the plan may drop the resource before the task begins.
        group.start_soon(self._serve, name, self._node.resources[name], name=f"session {name}")

    async def _serve(self, name: str, resource: Cell[Resource]) -> None:
        """One resource from its first plan to its last; a resource that comes back begins again."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._watch_status, name, self.statuses[name])
            session = KubeletSession(
                name,
                resource,
                self._answers,
                self._directory,
                status=self.statuses[name],
                pre_start_required=self._node.prepares(resource.value.vendor),
                intervals=self._intervals,
            )
            self._sessions[name] = session
            self.stats[name] = session.stats
            await session.run()
            group.cancel_scope.cancel()
        del self.statuses[name], self._sessions[name]
        self._node.ended(name)

    def repeat(self, resource: str) -> None:
        """Have the kubelet write its checkpoint, by sending it the list of the resource once more."""
        if resource in self._sessions:
            self._sessions[resource].repeat()

    def registrations(self) -> Mapping[str, Registration]:
        """Of the resources that the kubelet has from us now."""
        its = {name: (it, it.status.value) for name, it in self._sessions.items()}
        return {
            name: Registration(status.registrations, it.stats.lists, it.offers)
            for name, (it, status) in its.items()
            if status.state == "registered"
        }

    def renew(self, resource: str) -> None:
        """Register the resource again."""
        if resource in self._sessions:
            self._sessions[resource].renew()

    async def _watch_kubelet(self) -> None:
        """A kubelet that begins anew is not believed at once: it lists less than it has."""
        seen = None
        async for kubelet in self._directory.kubelet.watch():
            # A socket that is gone while its kubelet still listens to us is no new kubelet.
            if kubelet is not None and kubelet != seen:
                seen, self.registered_since = kubelet, None

    async def _watch_status(self, name: str, status: Cell[SessionStatus]) -> None:
        async for it in status.watch():
            if it.state == "waiting" and it.reason:
                log.info("not registered yet", resource=name, reason=it.reason)
            if it.state == "refused":
                log.warning("not registered", resource=name, reason=it.reason)
            if it.state == "registered":
                self._registered.set(True)
                self.registered_since = self.registered_since or self._clock()
