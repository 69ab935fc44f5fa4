"""The calls that a kubelet makes to one device plugin."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import anyio
from grpclib.client import UnaryStreamMethod, UnaryUnaryMethod

from agent.kubelet.pb.deviceplugin import v1beta1 as pb

from .grpc_errors import as_grpc_go
from .grpc_transport import GoChannel

SERVICE = "/v1beta1.DevicePlugin/"
# grpc-go waits 1 s before its second try within the kubelet's 10 s, and longer before each further one.
FIRST_PAUSE, PAUSE_GROWTH = 0.1, 1.6

Reply = TypeVar("Reply")


class DialError(Exception):
    """Raised when no plugin answered at the socket in time."""

    def __init__(self) -> None:
        super().__init__("failed to dial device plugin: context deadline exceeded")


class Plugin:
    """One connection to a plugin; several can lead to the same socket."""

    def __init__(self, resource: str, socket: Path, receive_limit: int) -> None:
        self.resource = resource
        self.socket = socket
        self._channel = GoChannel(socket, receive_limit)

    async def dial(self, timeout: float) -> None:
        """Wait until the plugin serves its socket.

        Raises:
            DialError: It did not within the time.
        """
        pause = timeout * FIRST_PAUSE
        with anyio.move_on_after(timeout):
            while True:
                try:
                    await self._channel.__connect__()
                    return
                except OSError:
                    await anyio.sleep(pause)
                    pause *= PAUSE_GROWTH
        raise DialError

    async def options(self) -> pb.DevicePluginOptions:
        return await self._call("GetDevicePluginOptions", pb.Empty(), pb.DevicePluginOptions)

    async def lists(self) -> AsyncGenerator[bytes, None]:
        """Every device list as it was sent, until the stream ends.

        Raises:
            RpcError: It ended badly.
        """
        method = UnaryStreamMethod[pb.Empty, bytes](self._channel, f"{SERVICE}ListAndWatch", pb.Empty, bytes)
        with as_grpc_go(self.socket):
            async with method.open() as stream:
                await stream.send_message(pb.Empty(), end=True)
                async for message in stream:
                    yield message

    async def preferred(
        self, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> pb.PreferredAllocationResponse:
        one = pb.ContainerPreferredAllocationRequest(
            available_deviceIDs=list(available),
            must_include_deviceIDs=list(must_include),
            allocation_size=size,
        )
        request = pb.PreferredAllocationRequest(container_requests=[one])
        return await self._call("GetPreferredAllocation", request, pb.PreferredAllocationResponse)

    async def allocate(self, ids: Sequence[str]) -> pb.AllocateResponse:
        one = pb.ContainerAllocateRequest(devices_ids=list(ids))
        return await self._call("Allocate", pb.AllocateRequest(container_requests=[one]), pb.AllocateResponse)

    async def pre_start(self, ids: Sequence[str], timeout: float) -> None:
        request = pb.PreStartContainerRequest(devices_ids=list(ids))
        await self._call("PreStartContainer", request, pb.PreStartContainerResponse, timeout)

    async def _call(self, name: str, request: Any, reply: type[Reply], timeout: float | None = None) -> Reply:
        method = UnaryUnaryMethod[Any, Reply](self._channel, SERVICE + name, type(request), reply)
        with as_grpc_go(self.socket):
            return await method(request, timeout=timeout)

    def drop(self) -> None:
        self._channel.drop()

    def cut(self) -> None:
        self._channel.cut()

    def close(self) -> None:
        self._channel.close()
