"""A device plugin of a few lines, its protobuf written by hand, to try the peers with."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.const import Cardinality, Handler, Status
from grpclib.encoding.base import CodecBase
from grpclib.exceptions import GRPCError
from grpclib.protocol import H2Protocol
from grpclib.server import Server, Stream

from agent.testing.closed_servers import settled

SERVICE = "/v1beta1.DevicePlugin/"
WATCHED = "/pluginregistration.Registration/"
numbers = itertools.count(1)


class Raw(CodecBase):
    """Messages stay the bytes they are."""

    __content_subtype__ = "proto"

    def encode(self, message: Any, message_type: Any) -> bytes:
        return bytes(message)

    def decode(self, data: bytes, message_type: Any) -> bytes:
        return data


def text(number: int, value: str | bytes) -> bytes:
    """Encode one length-delimited field."""
    data = value.encode() if isinstance(value, str) else value
    return bytes([number << 3 | 2]) + _varint(len(data)) + data


def texts(message: bytes, number: int) -> list[bytes]:
    """Decode the length-delimited fields of that number, skipping varints."""
    found, at = [], 0
    while at < len(message):
        key, at = _read_varint(message, at)
        value, at = _read_varint(message, at)
        if key & 7 == 2:
            if key >> 3 == number:
                found.append(message[at : at + value])
            at += value
    return found


def device_list(devices: Mapping[str, str], numa: Mapping[str, int] | None = None) -> bytes:
    """Encode a ListAndWatchResponse of device ID to health."""
    entries = []
    for device, health in devices.items():
        fields = text(1, device) + text(2, health)
        if numa is not None:
            fields += text(3, text(1, b"\x08" + _varint(numa[device])))
        entries.append(fields)
    return _joined(entries)


class ClosingServer(Server):
    """Closes its connections too, which a grpclib server leaves to the process's end."""

    def __init__(self, handlers: Collection[Any]) -> None:
        super().__init__(handlers, codec=Raw())
        self._protocols: list[H2Protocol] = []

    def _protocol_factory(self) -> H2Protocol:
        self._protocols.append(super()._protocol_factory())
        return self._protocols[-1]

    def close(self) -> None:
        super().close()
        for protocol in self._protocols:
            protocol.connection.close()

    async def shutdown(self) -> None:
        """Close, and leave nobody behind who comes just then."""
        assert isinstance(self._server, asyncio.Server)
        for listener in self._server.sockets:
            await settled(listener)
        self.close()
        await self.wait_closed()


class TinyPlugin:
    """Serves one resource and answers Allocate with DEVICES=<the IDs>."""

    def __init__(self, directory: Path, resource: str = "example.com/toy", socket: str = "") -> None:
        """`socket` is its name in every life; empty makes a new one for each."""
        self._socket = socket
        self.directory = directory
        self.resource = resource
        self.allocated: list[list[str]] = []
        self.pre_started: list[list[str]] = []
        self.variables: Mapping[str, str] = {}  # of each answer, beside DEVICES
        self.refuse = ""  # when set: the text that Allocate fails with
        self.hold = asyncio.Event()  # while cleared, Allocate hangs
        self.hold.set()
        self.held = asyncio.Event()
        self.streams_ended = asyncio.Event()
        self.notified: asyncio.Queue[bytes] = asyncio.Queue()  # RegistrationStatus from the watcher
        self._list = b""
        self._changed = asyncio.Condition()
        self._servers: list[ClosingServer] = []

    async def __aenter__(self) -> Self:
        await self.serve()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in self._servers:
            await server.shutdown()

    async def serve(self) -> None:
        """Listen on a socket with a new name, as a kubelet wipes the one before."""
        self.endpoint = self._socket or f"toy-{next(numbers)}.sock"
        self._servers.append(ClosingServer([self]))
        await self._servers[-1].start(path=str(self.directory / self.endpoint))

    async def register(self, version: str = "v1beta1") -> None:
        request = text(1, version) + text(2, self.endpoint) + text(3, self.resource)
        await call(self.directory / "kubelet.sock", "/v1beta1.Registration/Register", request)

    async def publish(self, devices: Mapping[str, str], numa: Mapping[str, int] | None = None) -> None:
        async with self._changed:
            self._list = device_list(devices, numa)
            self._changed.notify_all()

    def __mapping__(self) -> dict[str, Handler]:
        unary, stream = Cardinality.UNARY_UNARY, Cardinality.UNARY_STREAM
        return {
            SERVICE + "GetDevicePluginOptions": Handler(self._options, unary, bytes, bytes),
            SERVICE + "ListAndWatch": Handler(self._watch, stream, bytes, bytes),
            SERVICE + "GetPreferredAllocation": Handler(self._preferred, unary, bytes, bytes),
            SERVICE + "Allocate": Handler(self._allocate, unary, bytes, bytes),
            SERVICE + "PreStartContainer": Handler(self._pre_start, unary, bytes, bytes),
            WATCHED + "GetInfo": Handler(self._info, unary, bytes, bytes),
            WATCHED + "NotifyRegistrationStatus": Handler(self._notify, unary, bytes, bytes),
        }

    async def _options(self, stream: Stream[bytes, bytes]) -> None:
        await stream.recv_message()
        await stream.send_message(b"\x08\x01\x10\x01")  # both calls are wanted

    async def _watch(self, stream: Stream[bytes, bytes]) -> None:
        await stream.recv_message()
        sent = b""
        try:
            while True:
                async with self._changed:
                    while sent is self._list:
                        await self._changed.wait()
                    sent = self._list
                await stream.send_message(sent)
        finally:
            self.streams_ended.set()

    async def _preferred(self, stream: Stream[bytes, bytes]) -> None:
        asked = texts(await message_of(stream), 1)[0]
        size = asked[-1]  # allocation_size comes last and is small
        chosen = sorted(texts(asked, 1))[:size]
        await stream.send_message(text(1, _joined(chosen)))

    async def _allocate(self, stream: Stream[bytes, bytes]) -> None:
        ids = sorted(value.decode() for value in texts(texts(await message_of(stream), 1)[0], 1))
        if self.refuse:
            raise GRPCError(Status.INVALID_ARGUMENT, self.refuse)
        self.held.set()
        await self.hold.wait()
        self.allocated.append(ids)
        env = {"DEVICES": ",".join(ids), **self.variables}
        node = text(1, "/dev/toy") + text(2, "/dev/null") + text(3, "rw")
        mount = text(1, "/toy") + text(2, "/etc") + b"\x18\x01"
        note = text(1, "toy") + text(2, "yes")
        container = _joined(text(1, name) + text(2, value) for name, value in env.items())
        container += text(2, mount) + text(3, node) + text(4, note)
        container += text(5, text(1, "example.com/toy=0"))
        await stream.send_message(text(1, container))

    async def _pre_start(self, stream: Stream[bytes, bytes]) -> None:
        self.pre_started.append(sorted(value.decode() for value in texts(await message_of(stream), 1)))
        await stream.send_message(b"")

    async def _info(self, stream: Stream[bytes, bytes]) -> None:
        await stream.recv_message()
        await stream.send_message(text(1, "DevicePlugin") + text(2, self.resource) + text(4, "v1beta1"))

    async def _notify(self, stream: Stream[bytes, bytes]) -> None:
        self.notified.put_nowait(await message_of(stream))
        await stream.send_message(b"")


async def call(socket: Path, path: str, request: bytes = b"") -> bytes:
    """Make one unary call to a unix socket."""
    async with Channel(path=str(socket), codec=Raw()) as channel:
        return await UnaryUnaryMethod[bytes, bytes](channel, path, bytes, bytes)(request)


async def message_of(stream: Stream[bytes, bytes]) -> bytes:
    """Take the one message of a unary call."""
    message = await stream.recv_message()
    assert message is not None
    return message


def _joined(values: Iterable[bytes]) -> bytes:
    return b"".join(text(1, value) for value in values)


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
