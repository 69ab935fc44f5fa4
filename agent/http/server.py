"""HTTP/1.1 for a few clients: GET and HEAD, and POST where one hears; bounded in size, time and number."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anyio
import h11
import structlog

from agent.http.answer import Answer, text

log = structlog.get_logger()

#: From what is asked for, a path and maybe a query, to what is answered.
Show = Callable[[str], Answer]
#: From path and body of a POST, and the user id of who sent it, to what is answered.
Hear = Callable[[str, bytes, int], Awaitable[Answer]]

_CHUNK = 16 * 1024
_AFTER_ERROR = 0.5
_METHODS = (b"GET", b"HEAD")
_UCRED = struct.Struct("=iII")  # pid, uid, gid: unix(7), SO_PEERCRED


@dataclass(frozen=True, slots=True)
class Limits:
    """What one client can cost."""

    head_bytes: int = 16 * 1024
    body_bytes: int = 16 * 1024
    connections: int = 64
    #: Seconds from the first byte of a request to its last, and for taking the answer.
    request: float = 10.0
    #: Seconds that a connection may wait for its next request.
    idle: float = 60.0


class Conversations:
    """Every open connection of one listener."""

    def __init__(self, show: Show, limits: Limits, hear: Hear | None = None) -> None:
        """`hear` takes in what is sent by POST, on a unix socket; without it nothing is."""
        self._show = show
        self._hear = hear
        self._limits = limits
        self._open = 0
        #: Who waits for a request to come, the longest first.
        self._idle: dict[asyncio.StreamWriter, None] = {}

    async def run(self, listener: socket.socket) -> None:
        """Talk with whoever comes, until cancelled.

        asyncio's own server forgets, and leaks, a client that comes while it closes.
        """
        async with anyio.create_task_group() as group:
            while True:
                await anyio.wait_readable(listener)
                try:
                    client, _ = listener.accept()
                except BlockingIOError:
                    continue  # it went away again
                except OSError as error:
                    log.warning("client not accepted", error=str(error))
                    await anyio.sleep(_AFTER_ERROR)  # out of file descriptors, say
                    continue
                client.setblocking(False)
                if self._open < self._limits.connections or self._dropped_one_that_idles():
                    self._open += 1
                    group.start_soon(self._talk, client)
                else:
                    client.close()

    def _dropped_one_that_idles(self) -> bool:
        """Make room: who asks comes before who only holds a connection, or strangers could fail a probe."""
        longest = next(iter(self._idle), None)
        if longest is None:
            return False
        del self._idle[longest]
        longest.transport.abort()
        return True

    async def _talk(self, client: socket.socket) -> None:
        """Talk with one client until either side has enough."""
        writer: asyncio.StreamWriter | None = None
        try:
            reader, writer = await asyncio.open_connection(sock=client, limit=_CHUNK)
            conversation = _Conversation(reader, writer, self._show, self._hear, self._limits, self._idle)
            await conversation.run()
        except (OSError, TimeoutError):
            pass  # the client went away, or takes nothing
        except Exception:
            log.exception("conversation broken")
        finally:
            self._open -= 1
            if writer is not None:
                self._idle.pop(writer, None)
                writer.transport.abort()
            else:
                client.close()


class _Conversation:
    """One connection."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        show: Show,
        hear: Hear | None,
        limits: Limits,
        idle: dict[asyncio.StreamWriter, None],
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._show = show
        self._hear = hear
        self._methods = _METHODS if hear is None else (*_METHODS, b"POST")
        self._limits = limits
        self._idle = idle
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.head_bytes)

    async def run(self) -> None:
        while await self._once():
            self._http.start_next_cycle()
        await self._hang_up()

    async def _once(self) -> bool:
        """Answer one request; whether another one may follow."""
        try:
            asked = await self._request()
            if asked is None:
                return False
            request, body = asked
            await self._send(await self._answer(request, body), head=request.method == b"HEAD")
        except h11.RemoteProtocolError as error:
            if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
                return False
            await self._send(text(error.error_status_hint, f"not HTTP as expected: {error}"), close=True)
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE

    async def _request(self) -> tuple[h11.Request, bytes] | None:
        """The next request with everything that belongs to it; None when the client is done."""
        if not self._http.trailing_data[0] and not await self._read(self._limits.idle):
            return None
        request: h11.Request | None = None
        body = bytearray()
        async with asyncio.timeout(self._limits.request):
            while True:
                event = self._http.next_event()
                if event is h11.NEED_DATA:
                    self._http.receive_data(await self._reader.read(_CHUNK))
                elif isinstance(event, h11.Request):
                    request = event
                    if request.method not in self._methods:
                        return request, b""  # refused whatever follows
                elif request is None:
                    return None
                elif isinstance(event, h11.Data) and request.method == b"POST":
                    body += event.data
                    if len(body) > self._limits.body_bytes:
                        return request, bytes(body)  # refused, too
                elif isinstance(event, h11.EndOfMessage | h11.Data):
                    return request, bytes(body)  # what is left of a body ends the connection
                else:
                    return None

    async def _read(self, seconds: float) -> bool:
        """Wait for the first bytes of a request."""
        self._idle[self._writer] = None
        async with asyncio.timeout(seconds):
            received = await self._reader.read(_CHUNK)
        self._idle.pop(self._writer, None)
        self._http.receive_data(received)
        return bool(received)

    async def _answer(self, request: h11.Request, body: bytes) -> Answer:
        if request.method not in self._methods:
            return text(405, f"only {self._allowed} are served")
        if len(body) > self._limits.body_bytes:
            return text(413, f"the body is longer than {self._limits.body_bytes} bytes")
        target = request.target.decode("ascii")
        path = target.partition("?")[0]
        try:
            if self._hear is not None and request.method == b"POST":
                return await self._hear(path, body, self._peer())
            return self._show(target)
        except Exception:
            log.exception("view not shown" if request.method in _METHODS else "word not heard", path=path)
            return text(500, "this can not be answered; the agent's log says why")

    @property
    def _allowed(self) -> str:
        *most, last = (method.decode() for method in self._methods)
        return f"{', '.join(most)} and {last}"

    def _peer(self) -> int:
        """The user id of who is at the other end, as the kernel knows it."""
        its = self._writer.get_extra_info("socket").getsockopt(
            socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size
        )
        return int(_UCRED.unpack(its)[1])

    async def _send(self, answer: Answer, *, head: bool = False, close: bool = False) -> None:
        headers = [
            ("Content-Type", answer.content_type),
            ("Content-Length", str(len(answer.body))),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
        ]
        if answer.status == 405:
            headers.append(("Allow", b", ".join(self._methods).decode()))
        if close or self._http.their_state is not h11.DONE:
            headers.append(("Connection", "close"))
        events: list[h11.Event] = [h11.Response(status_code=answer.status, headers=headers)]
        if not head:
            events.append(h11.Data(data=answer.body))
        for event in (*events, h11.EndOfMessage()):
            self._writer.write(self._http.send(event) or b"")
        async with asyncio.timeout(self._limits.request):
            await self._writer.drain()

    async def _hang_up(self) -> None:
        """Let the last answer arrive: closing over unread bytes would reset the connection first."""
        with contextlib.suppress(OSError, TimeoutError):
            if self._writer.can_write_eof():
                self._writer.write_eof()
            async with asyncio.timeout(min(1.0, self._limits.request)):
                while await self._reader.read(_CHUNK):
                    pass
