"""The sessions with the kubelet: one for each resource of the plan, for as long as its name is planned."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

import anyio
import structlog
from anyio.abc import TaskGroup

from agent.core.cell import Cell
from agent.core.endless_tasks import for_ever
from agent.core.model import Resource, SessionStatus
from agent.core.renewal_rules import Registration
from agent.daemon.node_state import NodeState
from agent.kubelet.device_plugin import PluginStats, RequestHandler
from agent.kubelet.directory import FileIdentity, KubeletDirectory
from agent.kubelet.registration import KubeletSession, RegistrationGate, SessionIntervals

log = structlog.get_logger()


class Sessions:
    """Starts a session when a resource appears, and forgets it when the resource has ended."""

    def __init__(
        self,
        node: NodeState,
        answers: RequestHandler,
        directory: KubeletDirectory,
        intervals: SessionIntervals,
        clock: Callable[[], float],
        registered: Cell[bool],
        door: RegistrationGate | None = None,
    ) -> None:
        """`door` is what each registration passes through."""
        self._node = node
        self._answers = answers
        self._directory = directory
        self._intervals = intervals
        self._clock = clock
        #: Set at the first registration: what is heavy and can wait is loaded after that.
        self._registered = registered
        self._door = door
        self._sessions: dict[str, KubeletSession] = {}
        self.statuses: dict[str, Cell[SessionStatus]] = {}
        self.stats: dict[str, PluginStats] = {}
        #: Of registrations in any session: a resource that comes back is not taken for what it was.
        self._numbers = itertools.count()
        #: The life of the kubelet that last registered anything anew, and when it first did.
        self._since: tuple[FileIdentity, float] | None = None

    async def run(self) -> None:
        """Follow the plan for ever."""
        async with anyio.create_task_group() as group:
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
            group.start_soon(for_ever, self._watch_status, name, self.statuses[name])
            session = KubeletSession(
                name,
                resource,
                self._answers,
                self._directory,
                status=self.statuses[name],
                pre_start_required=self._node.makes(resource.value),
                intervals=self._intervals,
                numbers=self._numbers,
                door=self._door,
            )
            self._sessions[name] = session
            self.stats[name] = session.stats
            await session.run()
            group.cancel_scope.cancel()
        del self.statuses[name], self._sessions[name]
        self._node.ended(name)

    def repeat(self, resource: str) -> None:
        """Have the kubelet write its checkpoint, by sending it the list of the resource once more.

        It writes of all resources at once: for one that is another's any of ours will do.
        """
        its = self._sessions.get(resource) or next(iter(self._sessions.values()), None)
        if its is not None:
            its.repeat()

    def registrations(self) -> Mapping[str, Registration]:
        """Of the resources that the kubelet has from us now."""
        return {
            name: Registration(it.number, it.stats.lists, it.offers)
            for name, it in self._sessions.items()
            if it.status.value.state == "registered"
        }

    def registered_since(self, life: str) -> float | None:
        """When this life of the kubelet first had anything registered from us; None: nothing yet.

        `life` is its socket's identity as text. It is compared, for who looks may see a new one before we do.
        """
        return self._since[1] if self._since is not None and str(self._since[0]) == life else None

    def renew(self, resource: str) -> None:
        """Register the resource again."""
        if resource in self._sessions:
            self._sessions[resource].renew()

    async def _watch_status(self, name: str, status: Cell[SessionStatus]) -> None:
        async for it in status.watch():
            if it.state == "waiting" and it.reason:
                log.info("not registered yet", resource=name, reason=it.reason)
            if it.state == "refused":
                log.warning("not registered", resource=name, reason=it.reason)
            if it.state == "yielded":
                log.info("left to another plugin", resource=name, reason=it.reason)
            if it.state == "registered":
                self._registered.set(True)
                self._note_life(self._sessions[name].kubelet)

    def _note_life(self, kubelet: FileIdentity | None) -> None:
        """A kubelet that begins anew is not believed at once: it lists less than it has."""
        if kubelet is not None and (self._since is None or self._since[0] != kubelet):
            self._since = kubelet, self._clock()
