"""gRPC over a unix socket, with grpclib's sharp edges mended; the only file that knows grpclib's insides.

Mended: connections are told goodbye and closed on shutdown (grpclib leaves them open, and from Python 3.12
on then waits for ever); exceptions keep their text; messages stay bytes and have a limit; closed streams are
forgotten; a frame of an unknown kind is ignored; the frames of an answer leave together; what clients may
cost is bounded (`SocketBounds`), and what they take back is no news.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
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

from agent.core.endless_tasks import for_ever
from agent.core.errors import AllocationError, InvalidRequest, UnknownDevice, VendorError

from .corked_transport import CorkedTransport
from .kubelet_errors import KubeletError, KubeletRefused, Undecodable
from .peer_process import PeerProcess, peer_of
from .request_bounds import ArrivingRequests
from .socket_listener import accepted, listen

log = structlog.get_logger()

#: No request of a kubelet comes near: one that names all IDs of the longest list twice has 8 MiB.
MAX_REQUEST = 16 * 1024 * 1024
#: As others set it who read the kubelet's PodResources. One entry of that names an ID of some 40 bytes, its
#: resource and its NUMA node in 100: 2,400 IDs on two nodes each beside 500 pods are 0.8 MB, all IDs of the
#: longest list that the kubelet takes (4 MiB: 68,000 of these, or 127,000 units of memory) 7 to 9 MB.
MAX_ANSWER = 16 * 1024 * 1024
#: What a client may send before it is read, on each connection.
WINDOW = 256 * 1024
#: How much is taken off a connection, or off a stream, at once.
FRAME = 16 * 1024
#: What is sent before others have their turn: some 2 ms.
PIECE = 256 * 1024

# h2 remembers 65,536 closed streams per connection: 12 MB for nothing.
H2Connection.MAX_CLOSED_STREAMS = 256
# h2 words each frame that comes for a log that nobody keeps: a twentieth of what an Allocate costs.
Frame.__repr__ = object.__repr__  # type: ignore[method-assign]

ByteStream = Stream[bytes, bytes]


class RawMessages(CodecBase):
    """Passes messages through: what is sent and received is encoded and decoded elsewhere."""

    __content_subtype__ = "proto"

    def encode(self, message: Any, message_type: Any) -> bytes:
        return bytes(message)

    def decode(self, data: bytes, message_type: Any) -> bytes:
        return data


def unary(answer: Callable[[bytes], Awaitable[bytes]]) -> Handler:
    """Serve a call with one request and one reply."""

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
    """Serve a call with one request and any number of replies."""

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
    """Take the request off the stream; grpclib alone would buffer any length."""
    raw = stream._stream
    with _connection(stream).arriving.one(partial(_give_up, stream)) as came:
        try:
            head = await raw.recv_data(5)
            left = int.from_bytes(head[1:], "big")
            if len(head) < 5 or head[0] or left > MAX_REQUEST:
                _refuse(head, left)
            return b"".join([part async for part in _pieces(raw, left, came)])
        except AssertionError:  # grpclib's way of saying that the client sent less than it announced
            _refuse_short()


async def _pieces(raw: Any, left: int, came: Callable[[int], None]) -> AsyncIterator[bytes]:
    """What comes of a message of so many bytes; grpclib would wait for all of it, and hold it twice."""
    while left:
        part: bytes = await raw.recv_data(min(left, FRAME))
        left -= len(part) or _refuse_short()
        came(len(part))
        yield part


def _give_up(stream: ByteStream) -> None:
    """End a call whose request is still on its way."""
    wrapper = stream._stream.wrapper
    assert wrapper is not None, "set before the call is served"
    wrapper.cancel(GRPCError(Status.RESOURCE_EXHAUSTED, "given up: too much has come of others since"))


async def send(stream: ByteStream, message: bytes) -> None:
    """Send one message of several; grpclib alone would hold the loop until a long one has left."""
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


@dataclass(frozen=True, slots=True)
class SocketBounds:
    """What all clients of one socket may cost. The kubelet needs one connection."""

    connections: int = 32
    #: Calls that a client takes back, one after the other without an answer.
    resets: int = 100
    #: Requests that are not whole yet, more than one client may have open (h2 allows 100), and their bytes.
    requests: int = 256
    request_bytes: int = 2 * MAX_REQUEST
    #: Bytes that one client lets lie, answers to its pings among them; two of the longest answers.
    unread: int = 8 * 1024 * 1024


class _Protocol(H2Protocol):
    """A connection that survives HTTP/2 extension frames, has bounds and can say goodbye."""

    transport: asyncio.Transport | None = None

    def __init__(self, *args: Any, bounds: SocketBounds, arriving: ArrivingRequests) -> None:
        super().__init__(*args)
        self._bounds = bounds
        self.arriving = arriving
        #: Lists that are being sent, and calls that were taken back since the last answer.
        self.feeds = self.resets = 0
        self.over = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        super().connection_made(cast("asyncio.Transport", CorkedTransport(transport)))
        self.transport = transport
        self.processor.processors[UnknownFrameReceived] = lambda event: None
        self.processor.processors[StreamReset] = self._taken_back

    def data_received(self, data: bytes) -> None:
        # In pieces: what was read at once may be thousands of calls that are taken back.
        for at in range(0, len(data), FRAME):
            super().data_received(data[at : at + FRAME])
            if self.connection.is_closing():
                return
        if self.transport is not None and self.transport.get_write_buffer_size() > self._bounds.unread:
            self.drop("it does not read")

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self.over.set()

    @property
    def peer(self) -> PeerProcess:
        assert self.transport is not None
        return peer_of(self.transport.get_extra_info("socket"))

    def _taken_back(self, event: StreamReset) -> None:
        self.processor.process_stream_reset(event)
        self.resets += 1
        if self.resets > self._bounds.resets:
            self.drop("it takes back what it asks")

    def drop(self, reason: str) -> None:
        """Hang up at once."""
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
    """Whose call it is."""
    return _connection(stream).peer


class SocketServer(Server):
    """A gRPC server on a unix socket of its own."""

    def __init__(self, methods: dict[str, Handler], bounds: SocketBounds | None = None) -> None:
        window = Configuration(http2_connection_window_size=WINDOW, http2_stream_window_size=WINDOW)
        super().__init__([_Methods(methods)], codec=RawMessages(), config=window)
        self._bounds = bounds or SocketBounds()
        self._arriving = ArrivingRequests(self._bounds.requests, self._bounds.request_bytes)
        self._protocols: list[_Protocol] = []
        # Shielded: while all else is cancelled, who is served may still be answered.
        self._accepting = anyio.CancelScope(shield=True)
        self._closed = asyncio.Event()

    def _protocol_factory(self) -> H2Protocol:
        handler = super()._protocol_factory().handler
        made = _Protocol(handler, self._config, self._h2_config, bounds=self._bounds, arriving=self._arriving)
        self._protocols.append(made)
        return made

    def listen(self, path: Path, tasks: TaskGroup) -> None:
        """Serve at the path, for this user and root only, until `shutdown` ends the task; nothing else may.

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
                    log.warning("client not taken in", error=exc.strerror)
                    client.close()

    def _make_room(self) -> None:
        """Hang up on who has been there longest; who is sent lists, as the kubelet is, goes last."""
        self._protocols = [it for it in self._protocols if not it.over.is_set()]
        if len(self._protocols) >= self._bounds.connections:
            min(self._protocols, key=lambda it: it.feeds > 0).drop("others came")

    async def shutdown(self, patience: float = 1.0) -> None:
        """End every call, tell every client, close; a client that does not read is cut off."""
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
    """Has grpclib tell at debug, without a traceback, of calls whose client is gone or takes them back."""

    def filter(self, record: logging.LogRecord) -> bool:
        cause = record.exc_info[1] if record.exc_info else None
        if record.levelno > logging.INFO and not isinstance(cause, StreamTerminatedError | H2ProtocolError):
            return True
        record.levelno, record.levelname, record.exc_info = logging.DEBUG, "DEBUG", None
        return logging.getLogger().isEnabledFor(logging.DEBUG)


logging.getLogger("grpclib.server").addFilter(_TakenBack())


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
        KubeletError: There was no answer, or one of more than MAX_ANSWER bytes.
    """
    before = _cancellations()
    calling = asyncio.create_task(_called(path, method, request, timeout))
    try:
        # In a task of its own: grpclib ends a call by cancelling the task that makes it, and takes none of
        # that back. A scope around the call would no longer know its own cancellation.
        return await calling
    except asyncio.CancelledError:
        if calling.cancelled() and _cancellations() == before:
            raise KubeletError(f"{method.rpartition('/')[2]}: the call to {path} broke off") from None
        raise


def _cancellations() -> int:
    """How often somebody has asked this task to end."""
    task = asyncio.current_task()
    return task.cancelling() if task is not None else 0


async def _called(path: Path, method: str, request: bytes, timeout: float) -> bytes:
    name = method.rpartition("/")[2]
    channel = Channel(path=str(path), codec=RawMessages())
    try:
        async with UnaryUnaryMethod(channel, method, bytes, bytes).open(timeout=timeout) as stream:
            await stream.send_message(request, end=True)
            await stream.recv_initial_metadata()
            answer = await _answer(stream)
        assert answer is not None, "there is none"
        return answer
    except _TooLong as exc:
        raise KubeletError(f"{name}: {path} answers {exc}, and {MAX_ANSWER} are read at most") from None
    except GRPCError as exc:
        if exc.status is Status.DEADLINE_EXCEEDED:  # the peer's clock may be ahead of ours
            raise _silent(name, path, timeout) from exc
        raise KubeletRefused(name, exc.status.name, exc.message or "") from exc
    except TimeoutError as exc:
        raise _silent(name, path, timeout) from exc
    except OSError as exc:
        raise KubeletError(f"{name}: nobody answers at {path}: {exc.strerror or exc}") from exc
    except (StreamTerminatedError, ProtocolError, AssertionError) as exc:
        raise KubeletError(f"{name}: the call to {path} broke off: {str(exc) or type(exc).__name__}") from exc
    except Exception as exc:  # grpclib takes an answer apart without checks
        raise KubeletError(f"{name}: {path} does not speak gRPC: {exc!r}") from exc
    finally:
        channel.close()


class _TooLong(Exception):
    """Raised when an answer is longer than it may be."""


async def _answer(stream: Any) -> bytes | None:
    """Take the one message off the client's stream; None where what follows says why there is none."""
    with stream._wrapper:  # ends it with its time, or its connection
        head = await stream._stream.recv_data(5)
        if not head:
            return None
        size = int.from_bytes(head[1:], "big")
        if head[0]:
            raise ProtocolError("it is compressed")
        if size > MAX_ANSWER:
            raise _TooLong(f"{size} bytes")
        return b"".join([part async for part in _pieces(stream._stream, size, lambda _: None)])


def _silent(name: str, path: Path, timeout: float) -> KubeletError:
    return KubeletError(f"{name}: no answer at {path} within {timeout:g} s")
