"""The sessions with the kubelet: one for each planned resource."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

import anyio
import structlog

from agent.core.cell import Cell
from agent.core.endless_tasks import for_ever
from agent.core.model import Resource, SessionStatus
from agent.core.registration.renewal_rules import Registration
from agent.daemon.node_state import NodeState
from agent.kubelet.device_plugin import PluginStats, RequestHandler
from agent.kubelet.kubelet_directory import FileIdentity, KubeletDirectory
from agent.kubelet.registration_gate import RegistrationGate
from agent.kubelet.session import KubeletSession
from agent.kubelet.session_timing import SessionTiming

log = structlog.get_logger()


class Sessions:
    """Starts a session when a resource is planned, and forgets the session when the resource has ended."""

    def __init__(
        self,
        node: NodeState,
        directory: KubeletDirectory,
        timing: SessionTiming,
        clock: Callable[[], float],
        registered: Cell[bool],
    ) -> None:
        """`registered` is set at the first registration. Heavy modules are loaded after that."""
        self._node = node
        self._directory = directory
        self._timing = timing
        self._clock = clock
        self._registered = registered
        self._sessions: dict[str, KubeletSession] = {}
        self.statuses: dict[str, Cell[SessionStatus]] = {}
        self.stats: dict[str, PluginStats] = {}
        #: Numbers of registrations, over all sessions: a resource that comes back gets a new number.
        self._numbers = itertools.count()
        #: The life of the kubelet of the last new registration, and the time of its first registration.
        self._since: tuple[FileIdentity, float] | None = None

    async def run(self, handler: RequestHandler, gate: RegistrationGate | None = None) -> None:
        """Follow the plan for ever. `handler` answers the kubelet's calls; `gate` delays registrations."""
        async with anyio.create_task_group() as group:
            async for plan in self._node.plan.watch():
                for name in plan.keys() - self.statuses.keys():
                    self.statuses[name] = Cell(SessionStatus())
                    # The cell is taken now: the plan may drop the resource before the task begins.
                    resource = self._node.resources[name]
                    group.start_soon(self._serve, resource, handler, gate, name=f"session {name}")

    async def _serve(
        self, resource: Cell[Resource], handler: RequestHandler, gate: RegistrationGate | None
    ) -> None:
        """Serve one resource from its first plan to its last; one that comes back gets a new session."""
        name = resource.value.name
        async with anyio.create_task_group() as group:
            group.start_soon(for_ever, self._watch_status, name, self.statuses[name])
            session = KubeletSession(
                resource,
                handler,
                self._directory,
                status=self.statuses[name],
                pre_start_required=self._node.makes(resource.value),
                timing=self._timing,
                numbers=self._numbers,
                gate=gate,
            )
            self._sessions[name] = session
            self.stats[name] = session.stats
            await session.run()
            group.cancel_scope.cancel()
        del self.statuses[name], self._sessions[name]
        self._node.ended(name)

    def repeat(self, resource: str) -> None:
        """Have the kubelet write its checkpoint: send it the list of the resource again.

        The kubelet writes all resources at once. Where this agent does not serve the resource, the list of
        any other one will do.
        """
        session = self._sessions.get(resource) or next(iter(self._sessions.values()), None)
        if session is not None:
            session.repeat()

    def registrations(self) -> Mapping[str, Registration]:
        """The registrations that the kubelet has from this agent now, by resource."""
        return {
            name: Registration(session.number, session.stats.lists, session.offers)
            for name, session in self._sessions.items()
            if session.status.value.state == "registered"
        }

    def registered_since(self, life: str) -> float | None:
        """When this life of the kubelet first had a registration of this agent; None where it had none.

        `life` is the identity of the kubelet's socket as text. The caller may know of a new life before the
        sessions do.
        """
        return self._since[1] if self._since is not None and str(self._since[0]) == life else None

    def has_served(self, life: str, seconds: float) -> bool:
        """Whether this life of the kubelet has had a registration of this agent for so long."""
        since = self.registered_since(life)
        return since is not None and self._clock() - since >= seconds

    def renew(self, resource: str) -> None:
        """Register the resource again."""
        if resource in self._sessions:
            self._sessions[resource].renew()

    async def _watch_status(self, name: str, statuses: Cell[SessionStatus]) -> None:
        async for status in statuses.watch():
            if status.state == "waiting" and status.reason:
                log.info("not registered yet", resource=name, reason=status.reason)
            if status.state == "refused":
                log.warning("not registered", resource=name, reason=status.reason)
            if status.state == "yielded":
                log.info("left to another plugin", resource=name, reason=status.reason)
            if status.state == "registered":
                self._registered.set(True)
                self._note_life(self._sessions[name].kubelet)

    def _note_life(self, kubelet: FileIdentity | None) -> None:
        """Keep when a life of the kubelet began to serve: at first it lists fewer pods than it has."""
        if kubelet is not None and (self._since is None or self._since[0] != kubelet):
            self._since = kubelet, self._clock()
