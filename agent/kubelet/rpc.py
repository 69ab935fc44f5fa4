"""gRPC over unix sockets: grpclib with its faults corrected. Only this file uses grpclib's private parts.

Corrections to grpclib: at shutdown, clients get a GOAWAY and connections are closed (grpclib leaves them
open, and from Python 3.12 on waits for them without end). Exceptions keep their text. Messages stay bytes and
have a size limit. Closed streams are forgotten. Frames of unknown kinds are ignored. The frames of one answer
leave together. `SocketBounds` limits what clients can cost. A call that its client cancels is no error. A
call ends with its connection. A channel connects at once, and once.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, closing
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, cast

import anyio
import structlog
from anyio.abc import TaskGroup
from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.config import Configuration
from grpclib.const import Cardinality, Handler, Status
from grpclib.encoding.base import CodecBase
from grpclib.exceptions import GRPCError, ProtocolError, StreamTerminatedError
from grpclib.protocol import H2Protocol
from grpclib.server import Server, Stream
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import StreamReset, UnknownFrameReceived
from h2.exceptions import ProtocolError as H2ProtocolError
from hyperframe.frame import Frame
from msgspec import Struct

from agent.core.endless_tasks import for_ever
from agent.core.errors import AllocationError, InvalidRequest, UnknownDevice, VendorError
from agent.vendor_api.text import printable

from .corked_transport import CorkedTransport
from .incoming_request_bounds import ArrivingRequests
from .kubelet_errors import KubeletError, KubeletRefused, Undecodable
from .peer_process import PeerProcess, peer_of
from .socket_listener import accepted, listen

log = structlog.get_logger()

#: Above every request of a kubelet: one that names all IDs of the longest list twice has 8 MiB.
MAX_REQUEST = 16 * 1024 * 1024
#: Other readers of the kubelet's PodResources use the same limit. An answer names, for each ID of some 40
#: bytes, its resource and NUMA node in 100 bytes. 2,400 IDs on two nodes each and 500 pods make 0.8 MB. All
#: IDs of the longest list (4 MiB: 68,000 of these, or 127,000 memory units) make 7 to 9 MB.
MAX_ANSWER = 16 * 1024 * 1024
#: HTTP/2 window: bytes that a client may send before they are read, for each connection and stream.
WINDOW = 256 * 1024
#: Bytes that are taken from a connection or a stream in one piece.
FRAME = 16 * 1024
#: Bytes that are sent before other tasks have their turn: some 2 ms.
PIECE = 256 * 1024
#: Characters of the message of a status.
LONGEST_MESSAGE = 4096

# By default h2 remembers 65,536 closed streams for each connection, which takes 12 MB.
H2Connection.MAX_CLOSED_STREAMS = 256
# h2 formats each received frame for a log that is off: a twentieth of the cost of an Allocate.
Frame.__repr__ = object.__repr__  # type: ignore[method-assign]

ByteStream = Stream[bytes, bytes]


class RawMessages(CodecBase):
    """Passes messages through as bytes; callers encode and decode."""

    __content_subtype__ = "proto"

    def encode(self, message: Any, message_type: Any) -> bytes:
        return bytes(message)

    def decode(self, data: bytes, message_type: Any) -> bytes:
        return data


def unary(answer: Callable[[bytes], Awaitable[bytes]]) -> Handler:
    """Make the handler of a call with one request and one reply."""

    async def serve(stream: ByteStream) -> None:
        connection = _connection(stream)
        try:
            reply = await answer(await receive(stream))
        except GRPCError:
            raise
        except Exception as exc:
            raise as_status(exc) from exc
        await stream.send_message(reply)
        connection.resets = 0

    return Handler(serve, Cardinality.UNARY_UNARY, bytes, bytes)


def streaming(feed: Callable[[ByteStream], Awaitable[None]]) -> Handler:
    """Make the handler of a call with one request and any number of replies."""

    async def serve(stream: ByteStream) -> None:
        connection = _connection(stream)
        try:
            await receive(stream)
        except Undecodable as exc:
            raise as_status(exc) from exc
        connection.feeds += 1
        try:
            await feed(stream)
        finally:
            connection.feeds -= 1

    return Handler(serve, Cardinality.UNARY_STREAM, bytes, bytes)


async def receive(stream: ByteStream) -> bytes:
    """Read the request from the stream with a size limit; grpclib alone buffers any length."""
    raw = stream._stream
    with _connection(stream).arriving.track(partial(_give_up, stream)) as came:
        try:
            head = await raw.recv_data(5)
            left = int.from_bytes(head[1:], "big")
            if len(head) < 5 or head[0] or left > MAX_REQUEST:
                _refuse(head, left)
            return b"".join([part async for part in _pieces(raw, left, came)])
        except AssertionError:  # grpclib raises it if the client sent less than it announced
            _refuse_short()


async def _pieces(raw: Any, left: int, came: Callable[[int], None]) -> AsyncIterator[bytes]:
    """Read a message of `left` bytes in pieces; grpclib would wait for all of it, and hold it twice."""
    while left:
        part: bytes = await raw.recv_data(min(left, FRAME))
        left -= len(part) or _refuse_short()
        came(len(part))
        yield part


def _give_up(stream: ByteStream) -> None:
    """End a call before its request has arrived completely."""
    wrapper = stream._stream.wrapper
    assert wrapper is not None, "set before the call is served"
    wrapper.cancel(GRPCError(Status.RESOURCE_EXHAUSTED, "given up: other clients have sent too much since"))


async def send(stream: ByteStream, message: bytes) -> None:
    """Send one of several messages in pieces; grpclib alone would block the event loop for a long one."""
    if not stream._send_initial_metadata_done:
        await stream.send_initial_metadata()
    framed = bytes(1) + len(message).to_bytes(4, "big") + message
    for at in range(0, len(framed), PIECE):
        await stream._stream.send_data(framed[at : at + PIECE])
        await asyncio.sleep(0)


def _refuse_short() -> NoReturn:
    raise Undecodable("request", "ends early")


def _refuse(head: bytes, size: int) -> NoReturn:
    if len(head) < 5:
        raise Undecodable("request", "there is none")
    if head[0]:
        raise GRPCError(Status.UNIMPLEMENTED, "compressed requests are not supported")
    raise GRPCError(Status.RESOURCE_EXHAUSTED, f"a request of {size} bytes, more than {MAX_REQUEST}")


def as_status(exc: Exception) -> GRPCError:
    """The gRPC status of an exception, with its text, which the kubelet shows on the pod."""
    for kinds, status in _STATUSES:
        if isinstance(exc, kinds):
            return GRPCError(status, _message(str(exc) or type(exc).__name__))
    log.error("call failed", error=repr(exc), exc_info=exc)
    return GRPCError(Status.INTERNAL, _message(f"{type(exc).__name__}: {exc}"))


def _message(text: str) -> str:
    """The text of a status, bounded: the event loop encodes the text as a header."""
    return printable(text if len(text) <= LONGEST_MESSAGE else f"{text[:LONGEST_MESSAGE]}…")


_STATUSES: tuple[tuple[type[Exception] | tuple[type[Exception], ...], Status], ...] = (
    (UnknownDevice, Status.NOT_FOUND),
    ((InvalidRequest, Undecodable), Status.INVALID_ARGUMENT),
    (AllocationError, Status.FAILED_PRECONDITION),
    (VendorError, Status.UNAVAILABLE),
    (TimeoutError, Status.DEADLINE_EXCEEDED),
)


class SocketBounds(Struct, frozen=True):
    """Limits on what all clients of one socket may cost. The kubelet needs one connection."""

    connections: int = 32
    #: Calls in a row that one client cancels before they are answered.
    resets: int = 100
    #: Incomplete requests of all clients, more than one client may have (h2 allows 100), and their bytes.
    requests: int = 256
    request_bytes: int = 2 * MAX_REQUEST
    #: Bytes sent to one client that it has not read, ping answers included: two of the longest answers.
    unread: int = 8 * 1024 * 1024


class _Protocol(H2Protocol):
    """A connection with bounds, which tolerates HTTP/2 extension frames and can send a GOAWAY."""

    transport: asyncio.Transport | None = None

    def __init__(self, *args: Any, bounds: SocketBounds, arriving: ArrivingRequests) -> None:
        super().__init__(*args)
        self._bounds = bounds
        self.arriving = arriving
        #: Open list streams, and calls that the client cancelled since the last answer.
        self.feeds = self.resets = 0
        self.over = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        super().connection_made(cast("asyncio.Transport", CorkedTransport(transport)))
        self.transport = transport
        self.processor.processors[UnknownFrameReceived] = lambda event: None
        self.processor.processors[StreamReset] = self._count_reset

    def data_received(self, data: bytes) -> None:
        # In pieces, because one read may hold thousands of calls that are cancelled again.
        for at in range(0, len(data), FRAME):
            super().data_received(data[at : at + FRAME])
            if self.connection.is_closing():
                return
        if self.transport is not None and self.transport.get_write_buffer_size() > self._bounds.unread:
            self.drop("the client does not read")

    def connection_lost(self, exc: BaseException | None) -> None:
        self.over.set()
        super().connection_lost(exc)
        # A call that the client took back may wait to send its end; grpclib would let the call wait for ever.
        self.connection.write_ready.set()

    @property
    def peer(self) -> PeerProcess:
        assert self.transport is not None
        return peer_of(self.transport.get_extra_info("socket"))

    def _count_reset(self, event: StreamReset) -> None:
        self.processor.process_stream_reset(event)
        self.resets += 1
        if self.resets > self._bounds.resets:
            self.drop("the client cancels too many calls")

    def drop(self, reason: str) -> None:
        """Close the connection at once."""
        if not self.connection.is_closing():
            log.debug("client dropped", reason=reason, pid=self.peer.pid)
        self.say_goodbye(ErrorCodes.ENHANCE_YOUR_CALM)
        self.abort()

    def say_goodbye(self, code: ErrorCodes = ErrorCodes.NO_ERROR) -> None:
        if self.transport is None or self.connection.is_closing():
            return
        self.connection._connection.close_connection(code)
        self.connection.flush()
        self.processor.close(reason="Server closed")

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


def _connection(stream: ByteStream) -> _Protocol:
    return cast("_Protocol", stream._stream._transport.get_protocol())


def caller(stream: ByteStream) -> PeerProcess:
    """The process that made the call."""
    return _connection(stream).peer


class SocketServer(Server):
    """A gRPC server on one unix socket."""

    def __init__(self, methods: dict[str, Handler], bounds: SocketBounds | None = None) -> None:
        window = Configuration(http2_connection_window_size=WINDOW, http2_stream_window_size=WINDOW)
        super().__init__([_Methods(methods)], codec=RawMessages(), config=window)
        self._bounds = bounds or SocketBounds()
        self._arriving = ArrivingRequests(self._bounds.requests, self._bounds.request_bytes)
        self._protocols: list[_Protocol] = []
        # Shielded: during cancellation, clients that are connected still get their answers.
        self._accepting = anyio.CancelScope(shield=True)
        self._closed = asyncio.Event()

    def _protocol_factory(self) -> H2Protocol:
        handler = super()._protocol_factory().handler
        made = _Protocol(handler, self._config, self._h2_config, bounds=self._bounds, arriving=self._arriving)
        self._protocols.append(made)
        return made

    def listen(self, path: Path, tasks: TaskGroup) -> None:
        """Serve at the path, for this user and root only, in a task that ends with `shutdown`.

        Raises:
            KubeletError: The path is too long, taken, or cannot be made.
        """
        self._listener = listen(path)
        tasks.start_soon(self._keep_accepting, name=f"clients of {path.name}")

    async def _keep_accepting(self) -> None:
        try:
            with self._accepting:
                await for_ever(self._accept)
        finally:
            self._closed.set()

    async def _accept(self) -> None:
        async with aclosing(accepted(self._listener)) as clients:  # type: ignore[type-var]
            async for client in clients:
                self._make_room()
                try:
                    await self._loop.connect_accepted_socket(self._protocol_factory, client)
                except OSError as exc:
                    log.warning("client not accepted", error=exc.strerror)
                    client.close()

    def _make_room(self) -> None:
        """Drop the oldest connection; connections with an open list, as the kubelet's, are dropped last."""
        self._protocols = [it for it in self._protocols if not it.over.is_set()]
        if len(self._protocols) >= self._bounds.connections:
            min(self._protocols, key=lambda it: it.feeds > 0).drop("newer clients need the place")

    async def shutdown(self, patience: float = 1.0) -> None:
        """End every call, send GOAWAY, close. A client that does not read in time is cut off."""
        self._accepting.cancel()
        await self._closed.wait()
        self._listener.close()
        for handler in self._handlers:
            handler.close()
        await asyncio.sleep(0)  # the cancelled calls end first
        for protocol in self._protocols:
            protocol.say_goodbye()
        try:
            async with asyncio.timeout(patience):
                await self._ended()
        except TimeoutError:
            for protocol in self._protocols:
                protocol.abort()
            await self._ended()

    async def _ended(self) -> None:
        for handler in self._handlers:
            await handler.wait_closed()
        for protocol in self._protocols:
            await protocol.over.wait()


class _TakenBack(logging.Filter):
    """Logs a call that its client left or cancelled at debug level, without a traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        cause = record.exc_info[1] if record.exc_info else None
        if record.levelno > logging.INFO and not isinstance(cause, StreamTerminatedError | H2ProtocolError):
            return True
        record.levelno, record.levelname, record.exc_info = logging.DEBUG, "DEBUG", None
        return logging.getLogger().isEnabledFor(logging.DEBUG)


logging.getLogger("grpclib.server").addFilter(_TakenBack())


class _Methods:
    """The handlers in the form that grpclib's server takes."""

    def __init__(self, methods: dict[str, Handler]) -> None:
        self._methods = methods

    def __mapping__(self) -> dict[str, Handler]:
        return self._methods


class ServerChannel(Channel):
    """A channel to the server that listens at a path now, connected at once and never again.

    grpclib alone connects at the call, to the server that listens then.
    """

    def __init__(self, path: Path) -> None:
        """Connect.

        Raises:
            KubeletError: No process listens at the path.
        """
        self.path = path
        try:
            self._client = _connected(path)
        except BlockingIOError as exc:
            raise KubeletError(f"the process that listens at {path} takes no connection now") from exc
        except OSError as exc:
            raise KubeletError(f"no process answers at {path}: {exc.strerror or exc}") from exc
        #: The process that listens.
        self.peer = peer_of(self._client)
        #: Whether a transport has the socket, and closes it.
        self._is_in_use = False
        super().__init__(path=str(path), codec=RawMessages())

    @property
    def is_connected(self) -> bool:
        """Whether the connection that the call used is not lost."""
        return self._connected

    async def _create_connection(self) -> H2Protocol:
        self._is_in_use = True
        _, protocol = await self._loop.create_unix_connection(self._protocol_factory, sock=self._client)
        return protocol

    def close(self) -> None:
        super().close()
        if not self._is_in_use:
            self._client.close()


def _connected(path: Path) -> socket.socket:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        client.setblocking(False)
        client.connect(str(path))
    except BaseException:
        client.close()
        raise
    return client


async def call(path: Path, method: str, request: bytes, *, timeout: float) -> bytes:
    """Call once, on a new connection, because another kubelet may listen at the path since the last call.

    Raises:
        KubeletRefused: The kubelet answered with an error.
        KubeletError: There was no answer, or one above MAX_ANSWER bytes.
    """
    with closing(ServerChannel(path)) as channel:
        return await call_on(channel, method, request, timeout=timeout)


async def call_on(channel: ServerChannel, method: str, request: bytes, *, timeout: float) -> bytes:
    """Call the server that the channel is connected to.

    Raises:
        KubeletRefused: The kubelet answered with an error.
        KubeletError: There was no answer, or one above MAX_ANSWER bytes.
    """
    before = _cancellations()
    calling = asyncio.create_task(_call(channel, method, request, timeout))
    try:
        # In a task of its own: grpclib ends a call by cancelling the calling task, and never takes the
        # cancellation back. A scope around the call could not recognise its own cancellation.
        return await calling
    except asyncio.CancelledError:
        if calling.cancelled() and _cancellations() == before:
            broken_off = f"{method.rpartition('/')[2]}: the call to {channel.path} broke off"
            raise KubeletError(broken_off) from None
        raise


def _cancellations() -> int:
    """How often this task was asked to end."""
    task = asyncio.current_task()
    return task.cancelling() if task is not None else 0


async def _call(channel: ServerChannel, method: str, request: bytes, timeout: float) -> bytes:
    name, path = method.rpartition("/")[2], channel.path
    try:
        async with UnaryUnaryMethod(channel, method, bytes, bytes).open(timeout=timeout) as stream:
            await stream.send_message(request, end=True)
            await stream.recv_initial_metadata()
            answer = await _answer(stream)
        assert answer is not None, "an answer without a message"
        return answer
    except _TooLong as exc:
        raise KubeletError(f"{name}: the answer of {path} has {exc}; at most {MAX_ANSWER} are read") from None
    except GRPCError as exc:
        if exc.status is Status.DEADLINE_EXCEEDED:  # the server's clock may be faster than this process's
            raise _silent(name, path, timeout) from exc
        raise KubeletRefused(name, exc.status.name, exc.message or "") from exc
    except TimeoutError as exc:
        raise _silent(name, path, timeout) from exc
    except (OSError, StreamTerminatedError, ProtocolError, AssertionError) as exc:
        raise KubeletError(f"{name}: the call to {path} broke off: {str(exc) or type(exc).__name__}") from exc
    except Exception as exc:  # grpclib parses answers, and uses connections that are lost, without checks
        if not channel.is_connected:
            raise KubeletError(f"{name}: the call to {path} broke off") from exc
        raise KubeletError(f"{name}: {path} does not speak gRPC: {exc!r}") from exc


class _TooLong(Exception):
    """Raised for an answer above MAX_ANSWER bytes."""


async def _answer(stream: Any) -> bytes | None:
    """Read the one message of an answer; None where the trailers say why there is none."""
    with stream._wrapper:  # raises at the call's deadline, or when the connection is lost
        head = await stream._stream.recv_data(5)
        if not head:
            return None
        size = int.from_bytes(head[1:], "big")
        if head[0]:
            raise ProtocolError("the answer is compressed")
        if size > MAX_ANSWER:
            raise _TooLong(f"{size} bytes")
        return b"".join([part async for part in _pieces(stream._stream, size, lambda _: None)])


def _silent(name: str, path: Path, timeout: float) -> KubeletError:
    return KubeletError(f"{name}: no answer at {path} within {timeout:g} s")
