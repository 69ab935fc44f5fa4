"""gRPC over a unix socket, with grpclib's sharp edges mended; the only file that knows grpclib's insides.

Mended: connections are told goodbye and closed on shutdown (grpclib leaves them open, and from Python 3.12
on then waits for ever); exceptions keep their text; messages stay bytes and have a limit; closed streams are
forgotten; a frame of an unknown kind is ignored; the frames of an answer leave together.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NoReturn, cast

import structlog
from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.const import Cardinality, Handler, Status
from grpclib.encoding.base import CodecBase
from grpclib.exceptions import GRPCError, ProtocolError, StreamTerminatedError
from grpclib.protocol import H2Protocol
from grpclib.server import Server, Stream
from h2.connection import H2Connection
from h2.events import UnknownFrameReceived
from hyperframe.frame import Frame

from agent.core.errors import AllocationError, InvalidRequest, UnknownDevice, VendorError

from .corked import Corked
from .errors import KubeletError, KubeletRefused, Undecodable

log = structlog.get_logger()

#: sun_path of Linux without its closing zero.
MAX_SOCKET_PATH = 107
#: No request of a kubelet comes near: the longest device list has 4 MiB.
MAX_REQUEST = 64 * 1024 * 1024
#: What is sent before others have their turn: some 2 ms.
PIECE = 256 * 1024

# h2 remembers 65,536 closed streams per connection: 12 MB for nothing.
H2Connection.MAX_CLOSED_STREAMS = 256
# h2 words each frame that comes for a log that nobody keeps: a twentieth of what an Allocate costs.
Frame.__repr__ = object.__repr__  # type: ignore[method-assign]

ByteStream = Stream[bytes, bytes]


class Bytes(CodecBase):
    """Passes messages through: what is sent and received is encoded and decoded elsewhere."""

    __content_subtype__ = "proto"

    def encode(self, message: Any, message_type: Any) -> bytes:
        return bytes(message)

    def decode(self, data: bytes, message_type: Any) -> bytes:
        return data


def unary(answer: Callable[[bytes], Awaitable[bytes]]) -> Handler:
    """Serve a call with one request and one reply."""

    async def serve(stream: ByteStream) -> None:
        try:
            reply = await answer(await receive(stream))
        except GRPCError:
            raise
        except Exception as exc:
            raise as_status(exc) from exc
        await stream.send_message(reply)

    return Handler(serve, Cardinality.UNARY_UNARY, bytes, bytes)


def streaming(feed: Callable[[ByteStream], Awaitable[None]]) -> Handler:
    """Serve a call with one request and any number of replies."""

    async def serve(stream: ByteStream) -> None:
        try:
            await receive(stream)
        except Undecodable as exc:
            raise as_status(exc) from exc
        await feed(stream)

    return Handler(serve, Cardinality.UNARY_STREAM, bytes, bytes)


async def receive(stream: ByteStream) -> bytes:
    """Take the request off the stream; grpclib alone would buffer any length."""
    raw = stream._stream
    try:
        head = await raw.recv_data(5)
        size = int.from_bytes(head[1:], "big")
        if len(head) < 5 or head[0] or size > MAX_REQUEST:
            _refuse(head, size)
        return await raw.recv_data(size)
    except AssertionError as exc:  # grpclib's way of saying that the client sent less than it announced
        raise Undecodable("request", "ends early") from exc


async def send(stream: ByteStream, message: bytes) -> None:
    """Send one message of several; grpclib alone would hold the loop until a long one has left."""
    if not stream._send_initial_metadata_done:
        await stream.send_initial_metadata()
    framed = bytes(1) + len(message).to_bytes(4, "big") + message
    for at in range(0, len(framed), PIECE):
        await stream._stream.send_data(framed[at : at + PIECE])
        await asyncio.sleep(0)


def _refuse(head: bytes, size: int) -> NoReturn:
    if len(head) < 5:
        raise Undecodable("request", "there is none")
    if head[0]:
        raise GRPCError(Status.UNIMPLEMENTED, "compressed requests are not supported")
    raise GRPCError(Status.RESOURCE_EXHAUSTED, f"a request of {size} bytes, more than {MAX_REQUEST}")


def as_status(exc: Exception) -> GRPCError:
    """The gRPC status of an exception, with its text: the kubelet shows it on the pod."""
    for kinds, status in _STATUSES:
        if isinstance(exc, kinds):
            return GRPCError(status, str(exc) or type(exc).__name__)
    log.error("call failed", error=repr(exc), exc_info=exc)
    return GRPCError(Status.INTERNAL, f"{type(exc).__name__}: {exc}")


_STATUSES: tuple[tuple[type[Exception] | tuple[type[Exception], ...], Status], ...] = (
    (UnknownDevice, Status.NOT_FOUND),
    ((InvalidRequest, Undecodable), Status.INVALID_ARGUMENT),
    (AllocationError, Status.FAILED_PRECONDITION),
    (VendorError, Status.UNAVAILABLE),
    (TimeoutError, Status.DEADLINE_EXCEEDED),
)


class _Protocol(H2Protocol):
    """A connection that survives HTTP/2 extension frames and can say goodbye."""

    transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        super().connection_made(cast("asyncio.Transport", Corked(transport)))
        self.transport = transport
        self.processor.processors[UnknownFrameReceived] = lambda event: None

    def say_goodbye(self) -> None:
        if self.transport is None or self.connection.is_closing():
            return
        self.connection._connection.close_connection()
        self.connection.flush()
        self.processor.close(reason="Server closed")

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


class SocketServer(Server):
    """A gRPC server on a unix socket of its own."""

    def __init__(self, methods: dict[str, Handler]) -> None:
        super().__init__([_Methods(methods)], codec=Bytes())
        self._protocols: list[_Protocol] = []

    def _protocol_factory(self) -> H2Protocol:
        handler = super()._protocol_factory().handler
        self._protocols = [one for one in self._protocols if one.transport is None or not _closed(one)]
        self._protocols.append(_Protocol(handler, self._config, self._h2_config))
        return self._protocols[-1]

    async def listen(self, path: Path) -> None:
        """Serve at the path, for this user and root only.

        Raises:
            KubeletError: The path is too long, taken, or can not be made.
        """
        check_socket_path(path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # asyncio would unlink a socket that is in its way, even one that somebody serves.
            listener.bind(str(path))
            os.chmod(path, 0o600)
        except OSError as exc:
            listener.close()
            raise KubeletError(f"can not serve in {path.parent}: {exc.strerror}") from exc
        try:
            await self.start(sock=listener)
        except BaseException:
            abandon(listener, path)
            raise
        self._listener = listener

    async def shutdown(self, patience: float = 1.0) -> None:
        """End every call, tell every client, close; a client that does not read is cut off."""
        await settled(self._listener)
        self.close()
        await asyncio.sleep(0)  # the cancelled calls end first
        for protocol in self._protocols:
            protocol.say_goodbye()
        try:
            async with asyncio.timeout(patience):
                await self.wait_closed()
        except TimeoutError:
            for protocol in self._protocols:
                protocol.abort()
            await self.wait_closed()


async def settled(listener: socket.socket) -> None:
    """Take nobody in any more, and let who was just taken in become a connection that can be closed.

    asyncio leaks a client that it accepted in the moment before its server is closed.
    """
    if listener.fileno() < 0:
        return  # closed by an earlier end of the same server
    asyncio.get_running_loop().remove_reader(listener)
    for _ in range(3):  # accepted, made a transport, told its protocol
        await asyncio.sleep(0)


def abandon(listener: socket.socket, path: Path) -> None:
    """Close and remove the socket of a server whose start was cancelled.

    asyncio listens before its last await, and then nothing but the loop knows of the server.
    """
    asyncio.get_running_loop().remove_reader(listener)
    listener.close()
    path.unlink(missing_ok=True)


def _closed(protocol: _Protocol) -> bool:
    return protocol.connection.is_closing()


def check_socket_path(path: Path) -> None:
    size = len(os.fsencode(path))
    if size > MAX_SOCKET_PATH:
        raise KubeletError(f"{path} has {size} bytes, a socket path can have {MAX_SOCKET_PATH}")


class _Methods:
    """Handlers in the form in which grpclib takes them."""

    def __init__(self, methods: dict[str, Handler]) -> None:
        self._methods = methods

    def __mapping__(self) -> dict[str, Handler]:
        return self._methods


async def call(path: Path, method: str, request: bytes, *, timeout: float) -> bytes:
    """Call once, on a connection of its own: behind the path may be another kubelet than last time.

    Raises:
        KubeletRefused: The kubelet answered with an error.
        KubeletError: There was no answer.
    """
    name = method.rpartition("/")[2]
    channel = Channel(path=str(path), codec=Bytes())
    try:
        return await UnaryUnaryMethod(channel, method, bytes, bytes)(request, timeout=timeout)
    except GRPCError as exc:
        if exc.status is Status.DEADLINE_EXCEEDED:  # the peer's clock may be ahead of ours
            raise _silent(name, path, timeout) from exc
        raise KubeletRefused(name, exc.status.name, exc.message or "") from exc
    except TimeoutError as exc:
        raise _silent(name, path, timeout) from exc
    except OSError as exc:
        raise KubeletError(f"{name}: nobody answers at {path}: {exc.strerror or exc}") from exc
    except (StreamTerminatedError, ProtocolError, AssertionError, NotImplementedError) as exc:
        raise KubeletError(f"{name}: the call to {path} broke off: {str(exc) or type(exc).__name__}") from exc
    except Exception as exc:  # grpclib takes an answer apart without checks
        raise KubeletError(f"{name}: {path} does not speak gRPC: {exc!r}") from exc
    finally:
        channel.close()


def _silent(name: str, path: Path, timeout: float) -> KubeletError:
    return KubeletError(f"{name}: no answer at {path} within {timeout:g} s")
