"""The floor of this stack: a device plugin that only answers, on the packages that the agent needs.

Run as `python bench/spike.py DIRECTORY CARDS [REPLICAS [alike]]`, with the directory of the kubelet's device
plugins. One process, nothing of the agent: no options, one list, an Allocate that answers
NVIDIA_VISIBLE_DEVICES.

With `alike`, the kubelet has the same work with the spike as with the agent: UUIDs of the same length, the
NUMA node of each card, an annotation in each answer, and a preferred allocation, which is the first available
ID.
Messages and service are those of the kubelet's device plugin API v1beta1 (api.proto), as far as needed.
"""

# ruff: noqa: RUF009  so are fields of messages declared

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import dataclass
from typing import Any

import anyio  # noqa: F401  what any agent on these packages imports
import betterproto2
import pluggy  # noqa: F401
import structlog  # noqa: F401
from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.const import Cardinality, Handler
from grpclib.encoding.base import CodecBase
from grpclib.server import Server, Stream

TEXT, MESSAGE = betterproto2.TYPE_STRING, betterproto2.TYPE_MESSAGE
BOOL, MAP = betterproto2.TYPE_BOOL, betterproto2.TYPE_MAP
RESOURCE = "nvidia.com/gpu"
SOCKET = "spike.sock"


@dataclass(eq=False, repr=False)
class Options(betterproto2.Message):
    pre_start: bool = betterproto2.field(1, BOOL)
    preferred: bool = betterproto2.field(2, BOOL)


@dataclass(eq=False, repr=False)
class RegisterRequest(betterproto2.Message):
    version: str = betterproto2.field(1, TEXT)
    endpoint: str = betterproto2.field(2, TEXT)
    resource: str = betterproto2.field(3, TEXT)
    options: Options | None = betterproto2.field(4, MESSAGE, optional=True)


@dataclass(eq=False, repr=False)
class NumaNode(betterproto2.Message):
    id: int = betterproto2.field(1, betterproto2.TYPE_INT64)


@dataclass(eq=False, repr=False)
class Topology(betterproto2.Message):
    nodes: list[NumaNode] = betterproto2.field(1, MESSAGE, repeated=True)


@dataclass(eq=False, repr=False)
class Device(betterproto2.Message):
    id: str = betterproto2.field(1, TEXT)
    health: str = betterproto2.field(2, TEXT)
    topology: Topology | None = betterproto2.field(3, MESSAGE, optional=True)


@dataclass(eq=False, repr=False)
class DeviceList(betterproto2.Message):
    devices: list[Device] = betterproto2.field(1, MESSAGE, repeated=True)


@dataclass(eq=False, repr=False)
class ContainerRequest(betterproto2.Message):
    ids: list[str] = betterproto2.field(1, TEXT, repeated=True)


@dataclass(eq=False, repr=False)
class AllocateRequest(betterproto2.Message):
    containers: list[ContainerRequest] = betterproto2.field(1, MESSAGE, repeated=True)


@dataclass(eq=False, repr=False)
class ContainerResponse(betterproto2.Message):
    envs: dict[str, str] = betterproto2.field(1, MAP, map_meta=betterproto2.map_meta(TEXT, TEXT))
    annotations: dict[str, str] = betterproto2.field(4, MAP, map_meta=betterproto2.map_meta(TEXT, TEXT))


@dataclass(eq=False, repr=False)
class AllocateResponse(betterproto2.Message):
    containers: list[ContainerResponse] = betterproto2.field(1, MESSAGE, repeated=True)


@dataclass(eq=False, repr=False)
class Empty(betterproto2.Message):
    pass


class Undecoded(bytes):
    """A message whose fields are not looked at."""

    parse = bytes


class Codec(CodecBase):
    __content_subtype__ = "proto"

    def encode(self, message: Any, message_type: Any) -> bytes:
        return bytes(message)

    def decode(self, data: bytes, message_type: Any) -> Any:
        return message_type.parse(data)


class Plugin:
    def __init__(self, cards: int, replicas: int, *, alike: bool = False) -> None:
        """`alike`: the kubelet is to have the same work as with the agent."""
        self.alike = alike
        rest = "-0000-0000-0000-000000000000" if alike else ""
        self.list = DeviceList(
            devices=[
                Device(
                    id=f"GPU-{card:08x}{rest}::{replica}",
                    health="Healthy",
                    topology=Topology(nodes=[NumaNode(id=card * 2 // cards)]) if alike else None,
                )
                for card in range(cards)
                for replica in range(replicas)
            ]
        )

    async def options(self, stream: Stream[Any, Any]) -> None:
        await stream.recv_message()
        await stream.send_message(Options(preferred=self.alike))

    async def watch(self, stream: Stream[Any, Any]) -> None:
        await stream.recv_message()
        await stream.send_message(self.list)
        await asyncio.Event().wait()

    async def allocate(self, stream: Stream[Any, Any]) -> None:
        request = await stream.recv_message()
        assert request is not None
        answers = [
            ContainerResponse(envs={"NVIDIA_VISIBLE_DEVICES": _cards(it.ids)}) for it in request.containers
        ]
        if self.alike:
            for answer in answers:
                answer.annotations = {"xpu-agent.io/allocation": os.urandom(8).hex()}
        await stream.send_message(AllocateResponse(containers=answers))

    async def preferred(self, stream: Stream[Any, Any]) -> None:
        """Answer with the first available ID of a request for one: a list of 2,400 is not decoded."""
        request = await stream.recv_message()
        assert request is not None
        at = request.index(b"GPU-")
        chosen = ContainerRequest(ids=[request[at : at + request[at - 1]].decode()])
        await stream.send_message(AllocateRequest(containers=[chosen]))

    def __mapping__(self) -> dict[str, Handler]:
        path, unary = "/v1beta1.DevicePlugin/", Cardinality.UNARY_UNARY
        return {
            path + "GetDevicePluginOptions": Handler(self.options, unary, Empty, Options),
            path + "ListAndWatch": Handler(self.watch, Cardinality.UNARY_STREAM, Empty, DeviceList),
            path + "GetPreferredAllocation": Handler(self.preferred, unary, Undecoded, AllocateRequest),
            path + "Allocate": Handler(self.allocate, unary, AllocateRequest, AllocateResponse),
        }


def _cards(ids: list[str]) -> str:
    return ",".join({device_id.partition("::")[0]: None for device_id in ids})


async def main(directory: str, cards: int, replicas: int, *, alike: bool) -> None:
    server = Server([Plugin(cards, replicas, alike=alike)], codec=Codec())
    await server.start(path=os.path.join(directory, SOCKET))
    async with Channel(path=os.path.join(directory, "kubelet.sock"), codec=Codec()) as kubelet:
        register = UnaryUnaryMethod(kubelet, "/v1beta1.Registration/Register", RegisterRequest, Empty)
        options = Options(preferred=True) if alike else None
        await register(
            RegisterRequest(version="v1beta1", endpoint=SOCKET, resource=RESOURCE, options=options)
        )
    await server.wait_closed()


if __name__ == "__main__":
    replicas = int(sys.argv[3]) if sys.argv[3:] else 4
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), replicas, alike=sys.argv[4:] == ["alike"]))
