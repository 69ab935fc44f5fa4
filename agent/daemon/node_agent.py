"""One node's agent: takes the lock of the node, then builds and runs the parts that serve it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import structlog

from agent.cluster.pod_state import PodState
from agent.config import ConfigState
from agent.core.allocation.known_pods import KnownPods
from agent.core.cell import Cell
from agent.core.endless_tasks import for_ever, sleep_in_step
from agent.core.errors import NotServing
from agent.core.model import Command
from agent.daemon.agent_locks import AgentLocks
from agent.daemon.agent_timing import AgentTiming
from agent.daemon.early_processes import EarlyProcesses, start_early
from agent.host.version import version
from agent.kubelet.kubelet_directory_lock import UNKNOWN, DirectoryRemoved
from agent.logs import file_error
from agent.state.state_directory_lock import LockLost, StateDirectoryLock

if TYPE_CHECKING:  # loaded only once the vendors' processes run, or the kubelet is served
    from agent.cluster.api_connection import ApiConnection
    from agent.core.publishing.agent_status import AgentStatus
    from agent.daemon.composition import Composition

log = structlog.get_logger()

#: Why no pod of this node is seen.
NO_SERVER = (
    "no API server is known here; give the agent's pod a token (in the chart api.enabled) or --kubeconfig"
)
NOT_WATCHED = "agent.watchPods is false (in the chart pods.enabled); it is read at the start"


class NodeAgent:
    """One node's agent: a standby until it holds the lock, then the agent that serves."""

    def __init__(
        self,
        config: Cell[ConfigState],
        node_name: str,
        timing: AgentTiming | None = None,
        *,
        in_process: bool = False,
        api: bool = True,
        recall: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`in_process`: vendors' backends run in this process, for tests. `api`: there is an API server.

        `recall`: called when this agent takes over from another one; it brings the config up to what that
        agent knew.
        """
        self._api = api
        self._recall = recall
        self._config = config
        self._node_name = node_name
        self._timing = timing or AgentTiming()
        self._in_process = in_process
        #: The agent's own settings, as of its start. They hold until it ends: its lock lies where they say.
        self.settings = config.value.config.agent
        self._state = StateDirectoryLock(self.settings.state_dir / "agent.lock")
        self._lock = AgentLocks(self.settings.kubelet_dir, self._state)
        #: Which agent serves the node, where this one does not; empty once this one serves.
        self._standby = "starting"
        #: Whether this is the node's one agent, and whether the kubelet has taken a resource of it.
        self.serving = Cell(False)
        self.registered = Cell(False)
        #: How often a new state directory, or a new kubelet's directory, was locked. It may be empty.
        self.moves = Cell(0)
        #: The pods bound to this node. The API connection sets them.
        self.pods: Cell[KnownPods] = Cell(KnownPods())
        #: What the pods and the schedulers' locks mean for answers to the kubelet.
        self.pod_state = PodState(self.pods, lists_after=self._timing.lists_after)
        if not api:
            self.pod_state.unseen = NO_SERVER
        elif not self.settings.watch_pods:
            self.pod_state.unseen = NOT_WATCHED
        self._parts: Composition | None = None
        #: Where there is an API server, once the agent serves.
        self.api_connection: ApiConnection | None = None

    async def run(self) -> None:
        """Serve until cancelled."""
        with self._lock:
            if await self._take_lock() and self._recall is not None:
                await self._recall()
            early = self._early_processes()
            try:
                await self._serve(early)
            finally:
                if early is not None:
                    await early.end()

    def _early_processes(self) -> EarlyProcesses | None:
        if self._in_process:
            return None
        return start_early(self._config.value, self.settings.state_dir, self._timing.deadlines.events)

    async def _serve(self, early: EarlyProcesses | None) -> None:
        # While this is imported, a third of the whole agent, the vendors' processes discover their cards.
        from agent.daemon.composition import Composition

        self._parts = Composition(
            self._config,
            self.settings,
            self._timing,
            self.registered,
            self.pod_state,
            in_process=self._in_process,
            api=self._api,
            holds_directory_lock=self._lock.directory.hold,
        )
        self._standby = ""
        self.serving.set(True)
        async with anyio.create_task_group() as group:
            group.start_soon(for_ever, self._keep_lock, self._parts)
            group.start_soon(for_ever, partial(self._parts.run, early))

    async def _take_lock(self) -> bool:
        """Wait until this is the node's one agent; returns whether another one served before."""
        stood_by, began = False, anyio.current_time()
        while holder := self._lock.take():
            if holder != self._standby:
                log.info(
                    "standing by, another agent serves this node",
                    lock=str(self._state.path),
                    kubelet_dir=str(self.settings.kubelet_dir),
                    holder=holder,
                )
            self._standby = holder
            if not stood_by:  # a takeover must not wait for imports
                await anyio.to_thread.run_sync(import_module, "agent.daemon.composition")
            stood_by = True
            await anyio.sleep(self._timing.standby)
        if stood_by:
            waited = round(anyio.current_time() - began, 1)
            log.info(
                "taking over, the previous agent has ended", holder=self._standby, stood_by_seconds=waited
            )
        return stood_by

    async def _keep_lock(self, parts: Composition) -> None:
        """Check now and then that the locked directories lie at their paths.

        Where a new directory was locked, the files of the state directory are written again.
        """
        while True:
            await sleep_in_step(self._timing.directory)
            if await self._locks_new_directory():
                log.warning(
                    "state directory locked again, its files are written again", lock=str(self._state.path)
                )
                await parts.write_again()
                self.moves.set(self.moves.value + 1)

    async def _locks_new_directory(self) -> bool:
        """Whether a new directory was locked. Several tries: a standby agent may hold it for a moment.

        Raises:
            LockLost: Another agent has it for good.
            DirectoryRemoved: The kubelet's directory was removed, and no other one can be seen.
        """
        tries = 10
        while True:
            tries -= 1
            try:
                if not self._lock.directory.hold():
                    raise LockLost(self.settings.kubelet_dir, self._lock.directory.server() or UNKNOWN)
                self._lock.directory.look()
                return await anyio.to_thread.run_sync(self._state.keep, abandon_on_cancel=True)
            except (LockLost, DirectoryRemoved):
                if not tries:
                    raise
            await anyio.sleep(self._timing.standby)

    @property
    def parts(self) -> Composition:
        """The parts of an agent that serves."""
        assert self._parts is not None, "it does not serve yet"
        return self._parts

    async def apply(self, command: Command) -> str:
        """Do what an operator commands of a device, and save it; returns what came of it.

        Raises:
            NotServing: Another agent serves the node.
            NoSuchDevice: No device has this name, or several have.
            NotOnDisk: The command holds, and could not be saved.
        """
        if self._parts is None:
            raise NotServing(self._standby)
        return await self._parts.apply(command)

    def view(self) -> AgentStatus:
        """The status of the agent, as of now, without the use of the cards."""
        from agent.daemon.running_status import running_status

        return self._status(running_status)

    def with_use(self, status: AgentStatus) -> AgentStatus:
        """The status with the use of the cards as of now."""
        from agent.daemon.running_status import with_use

        return with_use(self._parts, status) if self._parts is not None else status

    def prepare_use(self) -> Awaitable[object] | None:
        """Makes in threads what takes long of `with_use`; None where use is not sampled."""
        return self._parts.usage.prepare() if self._parts is not None else None

    def serving_view(self) -> AgentStatus | None:
        """The status without figures, for comparisons; None while another agent serves the node."""
        from agent.daemon.running_status import status_without_figures

        return self._status(status_without_figures) if self._parts is not None else None

    def _status(self, complete: Callable[[Composition, AgentStatus], AgentStatus]) -> AgentStatus:
        """The status. `complete` adds what the parts of an agent that serves know."""
        from agent.core.publishing.agent_status import AgentStatus

        state = self._config.value
        status = AgentStatus(
            node=self._node_name,
            version=version(),
            required_vendors=frozenset(name for name, it in state.config.vendors.items() if it.required),
            config_source=state.source,
            config_error=state.error,
            config_awaited=state.waiting,
            standby=self._standby,
            log_error=file_error(),
        )
        if self._parts is not None:
            status = complete(self._parts, status)
        return self.api_connection.seen(status) if self.api_connection else status
