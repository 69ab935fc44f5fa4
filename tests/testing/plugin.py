"""A device plugin of a few lines, independent of ours, to try the simulated kubelet with."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio
from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError
from grpclib.protocol import H2Protocol
from grpclib.server import Server, Stream

from agent.kubelet.pb.deviceplugin import v1beta1 as pb

TOY = "example.com/toy"
SERVICE = "/v1beta1.DevicePlugin/"
numbers = itertools.count(1)


def device(id: str, health: str = "Healthy", *nodes: int, topology: bool = False) -> pb.Device:
    info = pb.TopologyInfo(nodes=[pb.NumaNode(id=node) for node in nodes]) if nodes or topology else None
    return pb.Device(id=id, health=health, topology=info)


def devices(ids: str) -> list[pb.Device]:
    return [device(id) for id in ids]


class ClosingServer(Server):
    """Closes its connections too, which a grpclib server leaves to the process's end."""

    def __init__(self, handlers: Sequence[Any]) -> None:
        super().__init__(handlers)
        self.protocols: list[H2Protocol] = []

    def _protocol_factory(self) -> H2Protocol:
        self.protocols.append(super()._protocol_factory())
        return self.protocols[-1]

    async def shutdown(self) -> None:
        self.close()
        for protocol in self.protocols:
            protocol.processor.close()
        await asyncio.sleep(0)
        await self.wait_closed()


@dataclass
class ToyPlugin:
    """Serves one resource; answers Allocate with DEVICES=<the IDs, sorted>."""

    directory: Path
    resource: str = TOY
    options: pb.DevicePluginOptions = field(default_factory=pb.DevicePluginOptions)
    #: What the calls answer instead, where a test says so.
    prefer: Callable[[pb.ContainerPreferredAllocationRequest], Sequence[str]] | None = None
    answer: Callable[[Sequence[str]], pb.AllocateResponse] | None = None
    fail: dict[str, GRPCError | Exception] = field(default_factory=dict)
    #: Calls that wait for an event before they answer.
    holds: dict[str, asyncio.Event] = field(default_factory=dict)
    calls: list[tuple[str, Any]] = field(default_factory=list)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    #: The seconds left that each call came with, None without a deadline.
    deadlines: dict[str, float | None] = field(default_factory=dict)

    endpoint: str = ""

    def __post_init__(self) -> None:
        self.list: list[pb.Device] = []
        self._called = asyncio.Event()
        self.changed = asyncio.Event()
        self.servers: list[ClosingServer] = []
        self.ending = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self.serve()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def serve(self, endpoint: str | None = None) -> None:
        self.ending = asyncio.Event()
        self.endpoint = endpoint or f"toy-{next(numbers)}.sock"
        self.servers.append(ClosingServer([self]))
        await self.servers[-1].start(path=str(self.socket))

    @property
    def socket(self) -> Path:
        return self.directory / self.endpoint

    async def close(self) -> None:
        servers, self.servers = self.servers, []
        for server in servers:
            await server.shutdown()

    async def register(self, version: str = "v1beta1", **changes: Any) -> None:
        request = pb.RegisterRequest(
            version=version,
            endpoint=changes.get("endpoint", self.endpoint),
            resource_name=changes.get("resource", self.resource),
            options=changes.get("options", self.options),
        )
        await register(self.directory / "kubelet.sock", request)

    def publish(self, listed: list[pb.Device]) -> None:
        self.list = listed
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    async def was_called(self, name: str) -> None:
        with anyio.fail_after(30):
            while not self.of(name):
                self._called.clear()
                await self._called.wait()

    def of(self, name: str) -> list[Any]:
        return [request for called, request in self.calls if called == name]

    def __mapping__(self) -> dict[str, Handler]:
        unary = Cardinality.UNARY_UNARY
        return {
            SERVICE + "GetDevicePluginOptions": Handler(
                self._serve("GetDevicePluginOptions", self._options), unary, pb.Empty, pb.DevicePluginOptions
            ),
            SERVICE + "ListAndWatch": Handler(
                self._watch, Cardinality.UNARY_STREAM, pb.Empty, pb.ListAndWatchResponse
            ),
            SERVICE + "GetPreferredAllocation": Handler(
                self._serve("GetPreferredAllocation", self._preferred),
                unary,
                pb.PreferredAllocationRequest,
                pb.PreferredAllocationResponse,
            ),
            SERVICE + "Allocate": Handler(
                self._serve("Allocate", self._allocate), unary, pb.AllocateRequest, pb.AllocateResponse
            ),
            SERVICE + "PreStartContainer": Handler(
                self._serve("PreStartContainer", self._pre_start),
                unary,
                pb.PreStartContainerRequest,
                pb.PreStartContainerResponse,
            ),
        }

    def _serve(
        self, name: str, answer: Callable[[Any], Awaitable[Any]]
    ) -> Callable[[Stream[Any, Any]], Awaitable[None]]:
        async def serve(stream: Stream[Any, Any]) -> None:
            request = await stream.recv_message()
            self.calls.append((name, request))
            self._called.set()
            self.deadlines[name] = stream.deadline.time_remaining() if stream.deadline else None
            if name in self.holds:
                await self.holds[name].wait()
            if name in self.fail:
                raise self.fail[name]
            await stream.send_message(await answer(request))

        return serve

    async def _options(self, request: pb.Empty) -> pb.DevicePluginOptions:
        return self.options

    async def _watch(self, stream: Stream[pb.Empty, pb.ListAndWatchResponse]) -> None:
        await stream.recv_message()
        self.calls.append(("ListAndWatch", None))
        if "ListAndWatch" in self.fail:
            raise self.fail["ListAndWatch"]
        ending = self.ending
        try:
            while not ending.is_set():
                changed = self.changed
                await stream.send_message(pb.ListAndWatchResponse(devices=self.list))
                await changed.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    def end_streams(self) -> None:
        """Let ListAndWatch return, as a plugin never should."""
        self.ending.set()
        self.publish(self.list)

    async def _preferred(self, request: pb.PreferredAllocationRequest) -> pb.PreferredAllocationResponse:
        if self.prefer is None:
            return pb.PreferredAllocationResponse()
        ids = list(self.prefer(request.container_requests[0]))
        answer = pb.ContainerPreferredAllocationResponse(device_i_ds=ids)
        return pb.PreferredAllocationResponse(container_responses=[answer])

    async def _allocate(self, request: pb.AllocateRequest) -> pb.AllocateResponse:
        ids = request.container_requests[0].devices_ids
        if self.answer is not None:
            return self.answer(ids)
        answer = pb.ContainerAllocateResponse(envs={"DEVICES": ",".join(sorted(ids))})
        return pb.AllocateResponse(container_responses=[answer])

    async def _pre_start(self, request: pb.PreStartContainerRequest) -> pb.PreStartContainerResponse:
        return pb.PreStartContainerResponse()


def refusal(text: str) -> GRPCError:
    return GRPCError(Status.INVALID_ARGUMENT, text)


async def register(socket: Path, request: pb.RegisterRequest) -> None:
    async with Channel(path=str(socket)) as channel:
        await UnaryUnaryMethod[pb.RegisterRequest, pb.Empty](
            channel, "/v1beta1.Registration/Register", pb.RegisterRequest, pb.Empty
        )(request)
