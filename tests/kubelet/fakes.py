"""A small kubelet and a small allocator, both scripted by the test."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import anyio
import pytest
from anyio.abc import TaskGroup
from grpclib.client import Channel, UnaryStreamMethod, UnaryUnaryMethod
from grpclib.const import Cardinality, Handler, Status
from grpclib.encoding.base import CodecBase
from grpclib.exceptions import GRPCError, StreamTerminatedError
from grpclib.server import Server
from support.waiting import eventually

from agent.core.cell import Cell
from agent.core.model import AdvertisedDevice, IdRange, Resource, SessionStatus
from agent.kubelet.kubelet_directory import KubeletDirectory
from agent.kubelet.pb.deviceplugin.v1beta1 import (
    AllocateRequest,
    AllocateResponse,
    ContainerAllocateRequest,
    DevicePluginOptions,
    Empty,
    ListAndWatchResponse,
    PreStartContainerRequest,
    RegisterRequest,
)
from agent.kubelet.rpc import SocketServer
from agent.kubelet.session import KubeletSession
from agent.kubelet.session_timing import SessionTiming
from agent.testing.closed_servers import settled
from agent.vendor_api.agent import ContainerEdits, ResourceRule

T = TypeVar("T")

NAME = "example.com/gpu"
PLUGIN = "/v1beta1.DevicePlugin"

QUICK = SessionTiming(
    register=30.0,
    stream=30.0,
    shortest_pause=0.01,
    longest_pause=0.1,
    settled=30.0,
    drain=30.0,
    retire=30.0,
    min_list_interval=0.02,
    allocate=30.0,
)


class Messages(CodecBase):
    """betterproto2 messages on the wire, independent of the code under test."""

    __content_subtype__ = "proto"

    def encode(self, message: Any, message_type: Any) -> bytes:
        return bytes(message)

    def decode(self, data: bytes, message_type: Any) -> Any:
        return data if message_type is bytes else message_type.parse(data)


async def nobody(listener: socket.socket) -> AsyncIterator[socket.socket]:
    """Everybody who connects to a listener that is at its end."""
    for client in tuple[socket.socket]():
        yield client


@asynccontextmanager
async def listening(path: Path, server: SocketServer, patience: float = 0.2) -> AsyncIterator[SocketServer]:
    """The server at the path, for 120 s at most: hundreds of clients take a busy machine half a minute."""
    with anyio.fail_after(120):
        async with anyio.create_task_group() as group:
            server.listen(path, group)
            try:
                yield server
            finally:
                await server.shutdown(patience)


def card(
    uuid: str, *, healthy: bool = True, numa: int | None = None, count: int | None = None
) -> AdvertisedDevice:
    return AdvertisedDevice(uuid, IdRange(uuid, count), healthy, numa)


def resource(*cards: AdvertisedDevice, name: str = NAME, retired: bool = False) -> Resource:
    return Resource(name, "example", ResourceRule(name), "packed", cards, retired)


@dataclass
class FakeAnswers:
    """Answers as told; `gate` holds allocations back until it is set."""

    gate: asyncio.Event | None = None
    error: Exception | None = None
    asked: list[tuple[tuple[str, ...], ...]] = field(default_factory=list)
    started: list[tuple[str, ...]] = field(default_factory=list)
    finished: int = 0
    cancelled: int = 0
    refusing: str = ""
    choose: Callable[[Sequence[str], Sequence[str], int], Sequence[str]] = lambda free, must, n: free[:n]

    async def allocate(self, resource: str, containers: Sequence[Sequence[str]]) -> Sequence[ContainerEdits]:
        self.asked.append(tuple(tuple(ids) for ids in containers))
        try:
            if self.gate is not None:
                await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.error is not None:
            raise self.error
        self.finished += 1
        return [ContainerEdits(env={"IDS": ",".join(ids)}) for ids in containers]

    async def expect(self, resource: str, count: int) -> None:
        return

    def preferred(
        self, resource: str, available: Sequence[str], required: Sequence[str], size: int
    ) -> Sequence[str]:
        return self.choose(available, required, size)

    async def pre_start(self, resource: str, ids: Sequence[str]) -> None:
        if self.error is not None:
            raise self.error
        self.started.append(tuple(ids))


class Plugin:
    """The kubelet's side of one plugin socket."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.channel = Channel(path=str(path), codec=Messages())
        self.lists: list[ListAndWatchResponse] = []
        self.ended = asyncio.Event()
        #: What the list stream was ended with.
        self.refusal = ""
        self.read = asyncio.Event()
        self.read.set()

    async def call(self, method: str, request: Any, reply: Any = bytes, timeout: float = 30.0) -> Any:
        return await UnaryUnaryMethod(self.channel, f"{PLUGIN}/{method}", type(request), reply)(
            request, timeout=timeout
        )

    async def allocate(self, *containers: Sequence[str]) -> AllocateResponse:
        request = AllocateRequest(
            container_requests=[ContainerAllocateRequest(devices_ids=list(ids)) for ids in containers]
        )
        found: AllocateResponse = await self.call("Allocate", request, AllocateResponse)
        return found

    async def listen(self) -> None:
        """Read the list stream until it ends."""
        method = UnaryStreamMethod(self.channel, f"{PLUGIN}/ListAndWatch", Empty, ListAndWatchResponse)
        try:
            async with method.open() as stream:
                await stream.send_message(Empty(), end=True)
                while (message := await stream.recv_message()) is not None:
                    self.lists.append(message)
                    await self.read.wait()
        except GRPCError as exc:
            self.refusal = exc.message or ""
        except (StreamTerminatedError, OSError):
            pass
        finally:
            self.ended.set()

    def close(self) -> None:
        self.channel.close()

    def healths(self) -> dict[str, str]:
        return {device.id: device.health for device in self.lists[-1].devices} if self.lists else {}


class FakeKubelet:
    """Registers as the device manager from 1.25 on does: dials back, asks for the options, then the list."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.requests: list[RegisterRequest] = []
        self.options: list[DevicePluginOptions] = []
        self.plugins: list[Plugin] = []
        #: What the wire looked like at each Register: were older streams of the same life still open?
        self.open_at_register: list[int] = []
        self.refusal: str | None = None
        self.asks_for_list = True
        self.answers = True
        self.registering = 0
        self.most_registering = 0
        self._server: Server | None = None
        self._group: TaskGroup | None = None

    def __mapping__(self) -> dict[str, Handler]:
        register = Handler(self._register, Cardinality.UNARY_UNARY, RegisterRequest, Empty)
        return {"/v1beta1.Registration/Register": register}

    @property
    def socket(self) -> Path:
        return self.directory / "kubelet.sock"

    @property
    def plugin(self) -> Plugin:
        return self.plugins[-1]

    async def _register(self, stream: Any) -> None:
        request = await stream.recv_message()
        self.registering += 1
        self.most_registering = max(self.most_registering, self.registering)
        try:
            await self.connect(request)
        finally:
            self.registering -= 1
        await stream.send_message(Empty())

    async def connect(self, request: RegisterRequest) -> None:
        """Call the plugin that registers."""
        self.open_at_register.append(sum(not one.ended.is_set() for one in self.plugins))
        self.requests.append(request)
        if self.refusal:
            raise GRPCError(Status.UNKNOWN, self.refusal)
        if not self.answers:
            await asyncio.Event().wait()
        plugin = Plugin(self.directory / request.endpoint)
        self.options.append(await plugin.call("GetDevicePluginOptions", Empty(), DevicePluginOptions))
        assert self._group is not None
        if self.asks_for_list:
            self.plugins.append(plugin)
            self._group.start_soon(plugin.listen)
        else:
            plugin.close()

    async def start(self) -> None:
        """Wipe every socket in the directory, as a starting kubelet does, and listen."""
        for path in self.directory.iterdir():
            if path.is_socket():
                path.unlink()
        await self.listen()

    async def listen(self) -> None:
        # Bound here: from 3.13 on asyncio removes what it has bound, a killed kubelet removes nothing.
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self.socket))
        self._listener = listener
        self._server = Server([self], codec=Messages())
        await self._server.start(sock=listener)

    async def stop(self) -> None:
        """Close every connection; the socket files stay."""
        for plugin in self.plugins:
            plugin.close()
        if self._server is not None:
            await settled(self._listener)
            self._server.close()
            self._server = None

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[FakeKubelet]:
        async with anyio.create_task_group() as self._group:
            await self.start()
            try:
                yield self
            finally:
                await self.stop()
                self._group.cancel_scope.cancel()

    @asynccontextmanager
    async def running_beside(self) -> AsyncIterator[FakeKubelet]:
        """Like `running`, but what lies in the directory stays."""
        async with anyio.create_task_group() as self._group:
            await self.listen()
            try:
                yield self
            finally:
                await self.stop()
                self._group.cancel_scope.cancel()


@dataclass
class Bench:
    """A session, its kubelet and everything between."""

    kubelet: FakeKubelet
    directory: KubeletDirectory
    cell: Cell[Resource]
    answers: FakeAnswers
    session: KubeletSession
    scope: anyio.CancelScope
    over: bool = False

    async def run(self) -> None:
        with self.scope:
            await self.session.run()
        self.over = True

    def stop(self) -> None:
        """Cancel the session, as a shutdown does."""
        self.scope.cancel()

    @property
    def status(self) -> SessionStatus:
        return self.session.status.value

    async def registered(self, times: int = 1) -> Plugin:
        """Wait until the resource has registered so often, and its list has arrived."""
        await eventually(
            lambda: (
                self.status.state == "registered"
                and self.status.registrations >= times
                and self.kubelet.plugins
                and self.kubelet.plugin.lists
                and not self.kubelet.plugin.ended.is_set()
            )
        )
        return self.kubelet.plugin

    async def try_pre_start(self) -> None:
        """Call PreStartContainer; note the text where it is refused."""
        try:
            await self.kubelet.plugin.call("PreStartContainer", PreStartContainerRequest(devices_ids=["a"]))
        except GRPCError as exc:
            self.answers.refusing = exc.message or ""

    def background(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin it in a task of the test's own, which must be awaited."""
        return asyncio.get_running_loop().create_task(work)

    def change(self, *cards: AdvertisedDevice, retired: bool = False) -> None:
        self.cell.set(replace(self.cell.value, cards=cards, retired=retired))

    def sockets(self) -> list[str]:
        return sorted(path.name for path in self.directory.path.glob("xpu-*.sock"))


@asynccontextmanager
async def bench(
    path: Path,
    *cards: AdvertisedDevice,
    timing: SessionTiming = QUICK,
    kubelet: FakeKubelet | None = None,
    started: bool = True,
    pre_start_required: bool = False,
) -> AsyncIterator[Bench]:
    """Everything running; ends by cancelling the session, as a shutdown does."""
    kubelet = kubelet or FakeKubelet(path)
    directory = KubeletDirectory(path, poll=0.05, inotify_after=0.0, poll_until_then=0.01, retry=0.01)
    cell = Cell(resource(*(cards or (card("a"), card("b")))))
    answers = FakeAnswers()
    session = KubeletSession(cell, answers, directory, pre_start_required=pre_start_required, timing=timing)
    node = Bench(kubelet, directory, cell, answers, session, anyio.CancelScope())
    async with kubelet.running(), anyio.create_task_group() as group:
        if not started:
            await kubelet.stop()
            kubelet.socket.unlink()
        group.start_soon(directory.run)
        group.start_soon(node.run)
        with anyio.fail_after(120):
            yield node
            node.stop()
            await eventually(lambda: node.over)
        group.cancel_scope.cancel()


@contextlib.contextmanager
def refused(status: Status) -> Iterator[list[str]]:
    """Expect a gRPC error of this status; collects its text."""
    words: list[str] = []
    with pytest.raises(GRPCError) as refusal:
        yield words
    assert refusal.value.status is status, refusal.value
    words.append(refusal.value.message or "")
