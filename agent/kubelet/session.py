"""The session of one resource with the kubelet: serve its socket, register it, hold the registration, repeat.

The rules are those of the kubelet's device manager from 1.20 to 1.37 (pkg/kubelet/cm/devicemanager). A socket
file is used for one registration. The kubelet opens the list stream once for each registration. When an older
stream ends, the kubelet also drops a newer one, so the agent serves one stream at a time.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from enum import StrEnum
from pathlib import Path

import anyio
import structlog
from anyio.abc import TaskGroup
from msgspec import Struct

from agent.core.backoff import Pauses
from agent.core.cell import Cell, first, reaches
from agent.core.model import Resource, SessionStatus

from .device_list import too_long
from .device_plugin import DevicePlugin, PluginLimits, PluginStats, RequestHandler
from .kubelet_directory import KUBELET_SOCKET, FileIdentity, KubeletDirectory, identify
from .kubelet_errors import KubeletError, KubeletRefused
from .pb.deviceplugin.v1beta1 import RegisterRequest
from .pending_calls import PendingCalls
from .plugin_sockets import remove, socket_name
from .registration_gate import RegistrationGate
from .rpc import ServerChannel, SocketServer, call_on
from .session_timing import SessionTiming

log = structlog.get_logger()

VERSION = "v1beta1"
REGISTER = "/v1beta1.Registration/Register"
REMEDY = (
    "start the kubelet; in a container mount the host's directory, not the socket, at the same path; "
    "if it is elsewhere, name it with --kubelet-dir"
)


class RegistrationEnd(StrEnum):
    """Why a registration ended. Where several reasons apply, the first in this order counts."""

    RETIRED = "the resource is retired"
    KUBELET_CHANGED = "the kubelet restarted"
    SOCKET_LOST = "the agent's socket was removed"
    STREAM_ENDED = "the kubelet ended the list stream"
    LAPSED = "the kubelet may have no live endpoint for this resource"


class KubeletSession:
    """Keeps one resource registered for as long as it runs."""

    def __init__(
        self,
        resource: Cell[Resource],
        handler: RequestHandler,
        directory: KubeletDirectory,
        *,
        status: Cell[SessionStatus] | None = None,
        pre_start_required: bool = False,
        timing: SessionTiming | None = None,
        numbers: Iterator[int] | None = None,
        gate: RegistrationGate | None = None,
    ) -> None:
        """`numbers` gives each registration of this process a number of its own."""
        self._gate = gate or RegistrationGate()
        #: Whether `RegistrationGate.before` ran since the gate was last closed.
        self._prepared = False
        self.name = resource.value.name
        self.status = status or Cell(SessionStatus())
        self.stats = PluginStats()
        self._resource = resource
        self._handler = handler
        self._directory = directory
        self._pre_start_required = pre_start_required
        self._timing = timing or SessionTiming()
        self._pauses = Pauses(self._timing.shortest_pause, self._timing.longest_pause)
        self._numbers = itertools.count() if numbers is None else numbers
        #: Number of the latest registration, and the kubelet that it was made with.
        self.number = -1
        self.kubelet: FileIdentity | None = None
        self._logged_error, self._logged_at = "", 0.0
        self._plugin: DevicePlugin | None = None
        #: How often `renew` was called.
        self._renewals: Cell[int] = Cell(0)
        self._log = log.bind(resource=self.name)

    async def run(self) -> None:
        """Register and hold the registration, repeatedly. Return once the resource is retired."""
        async with anyio.create_task_group() as group:
            self._plugin = self._make_plugin(calls := PendingCalls(group))
            session_run = _SessionRun(self._plugin, calls, group)
            try:
                await self._keep_registered(session_run)
            finally:
                await self._drain(session_run)
        self._report(SessionStatus("ended", RegistrationEnd.RETIRED.value))

    def repeat(self) -> None:
        """Send the list again, so that the kubelet writes its checkpoint. A new stream sends it anyway."""
        if self._plugin is not None:
            self._plugin.repeat()

    @property
    def offers(self) -> bool:
        """Whether a healthy device was sent to the kubelet on the open list stream."""
        delivered = self._plugin.delivered.value if self._plugin else None
        return self.status.value.state == "registered" and delivered is not None and delivered.allocatable > 0

    def renew(self) -> None:
        """End the current registration, if there is one, and register again."""
        self._renewals.set(self._renewals.value + 1)

    def _make_plugin(self, calls: PendingCalls) -> DevicePlugin:
        return DevicePlugin(
            self._resource,
            self._handler,
            calls,
            pre_start_required=self._pre_start_required,
            limits=PluginLimits(self._timing.min_list_interval, self._timing.allocate),
            stats=self.stats,
        )

    async def _drain(self, session_run: _SessionRun) -> None:
        """Refuse new calls and let running calls end; works during cancellation too."""
        session_run.plugin.closing = True
        with anyio.CancelScope(shield=True):
            await session_run.calls.drain(self._timing.drain)

    async def _keep_registered(self, session_run: _SessionRun) -> None:
        while (kubelet := await self._ready_kubelet(session_run.plugin)) is not None:
            started = anyio.current_time()
            try:
                ended = await self._registration(session_run, kubelet)
            except KubeletError as exc:
                self._failed(exc)
            else:
                if ended is RegistrationEnd.RETIRED:
                    return
                self._over(ended, anyio.current_time() - started)
            await self._pause(self.kubelet)

    async def _ready_kubelet(self, plugin: DevicePlugin) -> FileIdentity | None:
        """Wait until a kubelet runs, the gate is open and a list fits. None once the resource is retired."""
        began = anyio.current_time()
        while True:
            self._directory.refresh()
            resource, kubelet = self._resource.value, self._directory.kubelet.value
            changes, closed = self._gate.changes.value, self._gate.closed(resource.vendor)
            if _is_over(resource):
                return None
            self._prepared &= closed is None
            if not plugin.can_list():
                self._report(SessionStatus("refused", str(too_long(resource))))
            elif kubelet is None:
                self._report(
                    SessionStatus("waiting", f"no kubelet at {self._directory.path / KUBELET_SOCKET}")
                )
            elif closed is not None:
                self._report(closed)
            elif self._prepared:
                return kubelet
            else:
                await self._gate.before(self.name)
                self._prepared = True
                continue
            with anyio.move_on_after(self._timing.remind) as silence:
                await self._wait_for_change(resource, kubelet, changes)
            if silence.cancelled_caught and kubelet is None:
                self._remind(anyio.current_time() - began)

    def _remind(self, waited: float) -> None:
        socket = str(self._directory.path / KUBELET_SOCKET)
        self._log.info("still no kubelet", socket=socket, waited_seconds=round(waited), remedy=REMEDY)

    async def _wait_for_change(self, resource: Resource, kubelet: FileIdentity | None, changes: int) -> None:
        await first(
            lambda: self._resource.other_than(resource),
            lambda: self._directory.kubelet.other_than(kubelet),
            lambda: self._gate.changes.other_than(changes),
        )

    async def _registration(self, session_run: _SessionRun, kubelet: FileIdentity) -> RegistrationEnd:
        """Make one registration and hold it until it ends.

        The agent connects to the kubelet before it makes its socket. A starting kubelet removes all plugins'
        sockets and then listens (`server.Start`, plugin/v1beta1/server.go), so a kubelet that is connected
        removes no socket any more. A kubelet that gets the name of a removed socket dials for 10 s before it
        refuses. The agent cannot cut that short: when the kubelet gives up, it also drops a plugin that
        registered in between (`connectClient`, 1.25 to 1.36).
        """
        self.number = next(self._numbers)
        path = self._directory.path / socket_name(self.name, self.number)
        with closing(ServerChannel(self._directory.path / KUBELET_SOCKET)) as channel:
            self._directory.refresh()  # the kubelet of the connection, if one began since
            self.kubelet = self._directory.kubelet.value or kubelet
            async with self._serving(session_run, path):
                self._report(SessionStatus("registering"))
                self.kubelet = await self._register(session_run.plugin, path, channel, self.kubelet)
                await self._await_list(session_run.plugin)
                self._log.info("registered", socket=path.name)
                self._logged_error = ""
                self._report(SessionStatus("registered"))
                return await self._hold(session_run.plugin, path, self.kubelet)

    @asynccontextmanager
    async def _serving(self, session_run: _SessionRun, path: Path) -> AsyncIterator[None]:
        server = SocketServer(session_run.plugin.methods())
        with self._directory.owning(path):
            server.listen(path, session_run.tasks)
            try:
                yield
            except anyio.get_cancelled_exc_class():
                await self._drain(session_run)  # running calls still need the connection for their answers
                raise
            finally:
                with anyio.CancelScope(shield=True):
                    remove(path)
                    await server.shutdown()

    async def _register(
        self, plugin: DevicePlugin, path: Path, channel: ServerChannel, kubelet: FileIdentity
    ) -> FileIdentity:
        """Call Register. From 1.25 on the kubelet dials back and reads the options before it answers.

        Returns the kubelet that has the registration now.

        Raises:
            KubeletError: The kubelet refused or did not answer, or another one began since it was connected,
                which has no registration.
        """
        request = RegisterRequest(
            version=VERSION, endpoint=path.name, resource_name=self.name, options=plugin.options
        )
        plugin.kubelet = channel.peer
        await call_on(channel, REGISTER, bytes(request), timeout=self._timing.register)
        channel.close()
        self.status.set(replace(self.status.value, registrations=self.status.value.registrations + 1))
        self._directory.refresh()
        now = self._directory.kubelet.value or kubelet
        if now != kubelet and not self._is_held(path, channel):
            raise KubeletError("the kubelet restarted during Register")
        return now

    def _is_held(self, path: Path, channel: ServerChannel) -> bool:
        """Whether the agent's socket is there, and the process that answered still serves the kubelet's."""
        if identify(path) is None:
            return False
        with closing(ServerChannel(channel.path)) as now:
            return now.peer == channel.peer

    async def _await_list(self, plugin: DevicePlugin) -> None:
        """Wait for the list stream: 1.20 answers Register before it dials, 1.37 may ignore a socket."""
        with anyio.move_on_after(self._timing.stream):
            await plugin.live.until(True)
            return
        raise KubeletError(f"no ListAndWatch within {self._timing.stream:g} s after Register")

    async def _hold(self, plugin: DevicePlugin, path: Path, kubelet: FileIdentity) -> RegistrationEnd:
        renewals = self._renewals.value
        number = await first(  # in the order of RegistrationEnd
            lambda: self._retire(plugin),
            # A missing kubelet.sock proves nothing while the stream is open; another kubelet.sock does.
            lambda: reaches(self._directory.kubelet, lambda now: now not in (None, kubelet)),
            lambda: self._directory.lost(path),
            lambda: plugin.live.until(False),
            lambda: self._renewals.other_than(renewals),
        )
        return tuple(RegistrationEnd)[number]

    async def _retire(self, plugin: DevicePlugin) -> None:
        """Wait until the resource is retired and its empty list is delivered, at most `retire` seconds."""
        await reaches(self._resource, _is_over)
        with anyio.move_on_after(self._timing.retire):
            await reaches(plugin.delivered, lambda sent: sent is not None and _is_over(sent))
            # A client that sees the connection end may discard data that it has not read yet.
            await anyio.sleep(self._timing.min_list_interval)

    async def _pause(self, kubelet: FileIdentity | None) -> None:
        """Wait before the next registration. A new kubelet or the end of the resource ends the pause.

        The kubelet also needs the pause to notice that the old stream ended, before a new one opens.
        """
        with anyio.move_on_after(max(self._pauses.next(), self._timing.shortest_pause)):
            await first(
                lambda: self._directory.kubelet.other_than(kubelet),
                lambda: reaches(self._resource, _is_over),
            )
            self._pauses.reset()

    def _failed(self, error: KubeletError) -> None:
        self.stats.registrations_failed += 1
        now = anyio.current_time()
        if str(error) != self._logged_error or now - self._logged_at >= self._timing.remind:
            self._log.warning("not registered, trying again", error=str(error))
            self._logged_at = now
        self._logged_error = str(error)
        self._report(SessionStatus("refused" if isinstance(error, KubeletRefused) else "waiting", str(error)))

    def _over(self, ended: RegistrationEnd, held: float) -> None:
        self._log.warning("registration over", reason=str(ended))
        self._report(SessionStatus("waiting", ended.value))
        if held >= self._timing.settled:
            self._pauses.reset()

    def _report(self, status: SessionStatus) -> None:
        self.status.set(replace(status, registrations=self.status.value.registrations))


class _SessionRun(Struct, frozen=True):
    """The plugin, calls and tasks of one `run` of a session."""

    plugin: DevicePlugin
    calls: PendingCalls
    tasks: TaskGroup


def _is_over(resource: Resource) -> bool:
    return resource.retired and not resource.cards
