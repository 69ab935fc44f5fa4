"""The session of one resource with the kubelet: serve, register, hold, and begin anew when it is over.

The rules are those of the device manager from 1.20 to 1.37 (pkg/kubelet/cm/devicemanager): a socket file is
used for one registration; the kubelet asks for the list once per registration and never again; the end of an
older stream disconnects a newer one, so there is never a second.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

import anyio
import structlog
from anyio.abc import TaskGroup

from agent.core.backoff import Pauses
from agent.core.cell import Cell
from agent.core.model import Resource, SessionStatus

from .device_list import too_long
from .device_plugin import DevicePlugin, PluginLimits, PluginStats, RequestHandler
from .directory import KUBELET_SOCKET, FileIdentity, KubeletDirectory, identify
from .kubelet_errors import KubeletError, KubeletRefused
from .pb.deviceplugin.v1beta1 import RegisterRequest
from .peer_process import peer_at
from .pending_calls import PendingCalls
from .plugin_sockets import remove, socket_name, sweep
from .rpc import SocketServer, call

__all__ = ["RegistrationGate", "RegistrationEnd", "SessionIntervals", "KubeletSession", "sweep"]

log = structlog.get_logger()

T = TypeVar("T")

VERSION = "v1beta1"
REGISTER = "/v1beta1.Registration/Register"
REMEDY = (
    "start the kubelet; in a container mount the host's directory, not the socket, at the same path; "
    "where it lies elsewhere name it with --kubelet-dir"
)


@dataclass(frozen=True, slots=True)
class SessionIntervals:
    """Seconds of patience; tests pass small ones."""

    #: The kubelet dials back for up to 10 s before it answers Register.
    register: float = 15.0
    #: Between the answer to Register and the ListAndWatch that must follow.
    stream: float = 5.0
    shortest_pause: float = 0.1
    longest_pause: float = 30.0
    #: A registration that held this long makes the next pause the shortest again.
    settled: float = 30.0
    #: What running calls get at shutdown.
    drain: float = 1.5
    #: How long a retired resource tries to deliver its empty list.
    retire: float = 5.0
    min_list_interval: float = 0.1
    #: Between two log lines that say the same of a kubelet that is not there, or does not answer.
    remind: float = 60.0
    allocate: float = 10.0


async def _nothing(resource: str) -> None: ...


@dataclass(frozen=True, slots=True)
class RegistrationGate:
    """What stands before a registration."""

    #: Why the resources of a vendor are not to be registered now; None where they may be.
    closed: Callable[[str], SessionStatus | None] = lambda vendor: None
    #: Another value whenever that may have changed.
    changes: Cell[int] = field(default_factory=lambda: Cell(0))
    #: Done before the kubelet is told of a resource that others may have served until now.
    before: Callable[[str], Awaitable[None]] = _nothing


class RegistrationEnd(StrEnum):
    """Why a registration is over; the first of several counts."""

    RETIRED = "the resource is retired"
    KUBELET_CHANGED = "the kubelet restarted"
    SOCKET_LOST = "our socket was removed"
    STREAM_ENDED = "the kubelet ended the list stream"
    LAPSED = "the kubelet may ask nobody for its devices"


class KubeletSession:
    """Keeps one resource registered for as long as it runs."""

    def __init__(
        self,
        cell: Cell[Resource],
        answers: RequestHandler,
        directory: KubeletDirectory,
        *,
        status: Cell[SessionStatus] | None = None,
        pre_start_required: bool = False,
        intervals: SessionIntervals | None = None,
        numbers: Iterator[int] | None = None,
        gate: RegistrationGate | None = None,
    ) -> None:
        """`numbers` are those of registrations, none of which comes twice in this process."""
        self._gate = gate or RegistrationGate()
        #: Whether it is known what others gave out of the resource.
        self._prepared = False
        self.name = cell.value.name
        self.status = status or Cell(SessionStatus())
        self.stats = PluginStats()
        self._cell = cell
        self._answers = answers
        self._directory = directory
        self._pre_start_required = pre_start_required
        self._intervals = intervals or SessionIntervals()
        self._pauses = Pauses(self._intervals.shortest_pause, self._intervals.longest_pause)
        self._numbers = itertools.count() if numbers is None else numbers
        #: The number of the last registration that was begun, and the life of the kubelet that it is with.
        self.number = -1
        self.kubelet: FileIdentity | None = None
        self._complaint, self._complained = "", 0.0
        self._plugin: DevicePlugin | None = None
        #: How often somebody has asked for a new registration.
        self._renewals: Cell[int] = Cell(0)
        self._log = log.bind(resource=self.name)

    async def run(self) -> None:
        """Register and hold, again and again; return when the resource is retired and the kubelet knows."""
        async with anyio.create_task_group() as group:
            self._plugin = self._made(calls := PendingCalls(group))
            life = _Life(self._plugin, calls, group)
            try:
                await self._keep_registered(life)
            finally:
                await self._drain(life)
        self._report(SessionStatus("ended", RegistrationEnd.RETIRED.value))

    def repeat(self) -> None:
        """Have the kubelet write its checkpoint; without a stream it does so at the next registration."""
        if self._plugin is not None:
            self._plugin.repeat()

    @property
    def offers(self) -> bool:
        """Whether the kubelet was told of a healthy device, on the stream that is open."""
        told = self._plugin.delivered.value if self._plugin else None
        return self.status.value.state == "registered" and told is not None and told.allocatable > 0

    def renew(self) -> None:
        """End the registration that holds, if one does, and make another one."""
        self._renewals.set(self._renewals.value + 1)

    def _made(self, calls: PendingCalls) -> DevicePlugin:
        return DevicePlugin(
            self._cell,
            self._answers,
            calls,
            pre_start_required=self._pre_start_required,
            limits=PluginLimits(self._intervals.min_list_interval, self._intervals.allocate),
            stats=self.stats,
        )

    async def _drain(self, life: _Life) -> None:
        """Refuse new calls, give running ones their time; also when everything is being cancelled."""
        life.plugin.closing = True
        with anyio.CancelScope(shield=True):
            await life.calls.drain(self._intervals.drain)

    async def _keep_registered(self, life: _Life) -> None:
        while (kubelet := await self._ready_kubelet(life.plugin)) is not None:
            started = anyio.current_time()
            try:
                ended = await self._registration(life, kubelet)
            except KubeletError as exc:
                self._failed(exc)
            else:
                if ended is RegistrationEnd.RETIRED:
                    return
                self._over(ended, anyio.current_time() - started)
            await self._pause(self.kubelet)

    async def _ready_kubelet(self, plugin: DevicePlugin) -> FileIdentity | None:
        """Wait for a kubelet and for a list that fits; None once the resource is retired."""
        began = anyio.current_time()
        while True:
            self._directory.refresh()
            resource, kubelet = self._cell.value, self._directory.kubelet.value
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
            with anyio.move_on_after(self._intervals.remind) as silence:
                await self._news(resource, kubelet, changes)
            if silence.cancelled_caught and kubelet is None:
                self._remind(anyio.current_time() - began)

    def _remind(self, waited: float) -> None:
        socket = str(self._directory.path / KUBELET_SOCKET)
        self._log.info("still no kubelet", socket=socket, waited_seconds=round(waited), remedy=REMEDY)

    async def _news(self, resource: Resource, kubelet: FileIdentity | None, changes: int) -> None:
        await first(
            lambda: differs(self._cell, resource),
            lambda: differs(self._directory.kubelet, kubelet),
            lambda: differs(self._gate.changes, changes),
        )

    async def _registration(self, life: _Life, kubelet: FileIdentity) -> RegistrationEnd:
        """One registration from its socket to its end."""
        self.number, self.kubelet = next(self._numbers), kubelet
        path = self._directory.path / socket_name(self.name, self.number)
        async with self._serving(life, path):
            self._report(SessionStatus("registering"))
            self.kubelet = await self._register(life.plugin, path, kubelet)
            await self._await_list(life.plugin)
            self._log.info("registered", socket=path.name)
            self._complaint = ""
            self._report(SessionStatus("registered"))
            return await self._hold(life.plugin, path, self.kubelet)

    @asynccontextmanager
    async def _serving(self, life: _Life, path: Path) -> AsyncIterator[None]:
        server = SocketServer(life.plugin.methods())
        with self._directory.owning(path):
            server.listen(path, life.tasks)
            try:
                yield
            except anyio.get_cancelled_exc_class():
                await self._drain(life)  # the answers still need the connection
                raise
            finally:
                with anyio.CancelScope(shield=True):
                    remove(path)
                    await server.shutdown()

    async def _register(self, plugin: DevicePlugin, path: Path, kubelet: FileIdentity) -> FileIdentity:
        """Register; the kubelet dials back and asks for the options before it answers (from 1.25 on).

        Returns which life of it to hold on to. One that began meanwhile has taken the registration, or has
        removed our socket: it does that before it listens (CleanupPluginDirectory, plugin/v1beta1/server.go).
        """
        request = RegisterRequest(
            version=VERSION, endpoint=path.name, resource_name=self.name, options=plugin.options
        )
        at = self._directory.path / KUBELET_SOCKET
        plugin.kubelet = peer_at(at)
        await call(at, REGISTER, bytes(request), timeout=self._intervals.register)
        self.status.set(replace(self.status.value, registrations=self.status.value.registrations + 1))
        self._directory.refresh()
        now = self._directory.kubelet.value or kubelet
        if now != kubelet and identify(path) is None:
            raise KubeletError("the kubelet restarted during Register")
        return now

    async def _await_list(self, plugin: DevicePlugin) -> None:
        """An answer to Register proves nothing: 1.20 answers before it dials, 1.37 may ignore a socket."""
        with anyio.move_on_after(self._intervals.stream):
            await plugin.live.until(True)
            return
        raise KubeletError(f"no ListAndWatch within {self._intervals.stream:g} s after Register")

    async def _hold(self, plugin: DevicePlugin, path: Path, kubelet: FileIdentity) -> RegistrationEnd:
        renewals = self._renewals.value
        over = await first(  # in the order of Ended
            lambda: self._retired(plugin),
            # A kubelet.sock that is gone proves nothing while the stream lives; another one does.
            lambda: reaches(self._directory.kubelet, lambda now: now not in (None, kubelet)),
            lambda: self._directory.lost(path),
            lambda: plugin.live.until(False),
            lambda: differs(self._renewals, renewals),
        )
        return tuple(RegistrationEnd)[over]

    async def _retired(self, plugin: DevicePlugin) -> None:
        """Wait until the resource is retired and its empty list is sent, or cannot be."""
        await reaches(self._cell, _is_over)
        with anyio.move_on_after(self._intervals.retire):
            await reaches(plugin.delivered, lambda told: told is not None and _is_over(told))
            # A client that sees the end of the connection may throw away what it has not read yet.
            await anyio.sleep(self._intervals.min_list_interval)

    async def _pause(self, kubelet: FileIdentity | None) -> None:
        """Wait before the next registration; a new kubelet, or the end of the resource, waits for nothing.

        The pause is also what the kubelet needs to notice that the old stream ended, before a new one opens.
        """
        with anyio.move_on_after(max(self._pauses.next(), self._intervals.shortest_pause)):
            await first(
                lambda: differs(self._directory.kubelet, kubelet),
                lambda: reaches(self._cell, _is_over),
            )
            self._pauses.reset()

    def _failed(self, error: KubeletError) -> None:
        self.stats.registrations_failed += 1
        now = anyio.current_time()
        if str(error) != self._complaint or now - self._complained >= self._intervals.remind:
            self._log.warning("not registered, trying again", error=str(error))
            self._complained = now
        self._complaint = str(error)
        self._report(SessionStatus("refused" if isinstance(error, KubeletRefused) else "waiting", str(error)))

    def _over(self, ended: RegistrationEnd, held: float) -> None:
        self._log.warning("registration over", reason=str(ended))
        self._report(SessionStatus("waiting", ended.value))
        if held >= self._intervals.settled:
            self._pauses.reset()

    def _report(self, status: SessionStatus) -> None:
        self.status.set(replace(status, registrations=self.status.value.registrations))


@dataclass(frozen=True, slots=True)
class _Life:
    """What serves the calls of one run."""

    plugin: DevicePlugin
    calls: PendingCalls
    tasks: TaskGroup


def _is_over(resource: Resource) -> bool:
    return resource.retired and not resource.cards


async def reaches(cell: Cell[T], wanted: Callable[[T], bool]) -> None:
    """Return once the cell's value is as wanted."""
    async with aclosing(cell.watch()) as values:  # type: ignore[type-var]
        async for value in values:
            if wanted(value):
                return


async def differs(cell: Cell[T], from_value: T) -> None:
    """Return once the cell holds another value."""
    await reaches(cell, lambda value: value != from_value)


async def first(*waits: Callable[[], Awaitable[None]]) -> int:
    """Wait until one of them returns; which, the first one where several did."""
    done: list[int] = []
    async with anyio.create_task_group() as group:

        async def wait(number: int, until: Callable[[], Awaitable[None]]) -> None:
            await until()
            done.append(number)
            group.cancel_scope.cancel()

        for number, until in enumerate(waits):
            group.start_soon(wait, number, until)
    return min(done)
