"""One client's connection: HTTP/1.1 with GET and HEAD, and POST where allowed; bounded in size and time."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import anyio
import h11
import structlog

from agent.host.peer_credentials import credentials
from agent.http.answer import HttpAnswer, text
from agent.http.client_limits import ClientLimits
from agent.http.loop_turns import LoopTurns

log = structlog.get_logger()

T = TypeVar("T")
#: (target, host) to the answer. The target is a path with an optional query; the host is the Host header.
GetHandler = Callable[[str, str], HttpAnswer]
#: Target to what to await before the answer is made; None where there is nothing.
Preparation = Callable[[str], Awaitable[object] | None]
#: (path, body, user id of the client) to the answer.
PostHandler = Callable[[str, bytes, int], Awaitable[HttpAnswer]]

#: Bytes that one read takes: of a request, and of what follows the last one.
_CHUNK, _DRAINED = 2 * 1024, 64 * 1024
_METHODS = (b"GET", b"HEAD")


@dataclass(frozen=True, slots=True)
class Views:
    """How GET is answered: threads prepare what takes long, then the loop makes the answer in one go."""

    get: GetHandler
    prepare: Preparation


class ClientConnection:
    """The connection holds a turn of the loop while it works, and ends the turn before each wait."""

    def __init__(
        self,
        client: socket.socket,
        peer: str,
        limits: ClientLimits,
        turns: LoopTurns,
        views: Views,
        post: PostHandler | None,
        changed: Callable[[], None],
    ) -> None:
        """`changed` is called whenever the connection may have become one that can be closed for another."""
        self._client = client
        self._limits = limits
        self._turns = turns
        self._views = views
        self._post = post
        self._changed = changed
        self._methods = _METHODS if post is None else (*_METHODS, b"POST")
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.head_bytes)
        self._scope = anyio.CancelScope()
        self._has_turn = False
        self._answered = 0
        #: The address of the other end; empty on a unix socket.
        self.peer = peer
        #: When the connection was accepted, or answered last; in seconds of the loop's clock.
        self.since = anyio.current_time()
        #: Whether the client waits for the answer to its first request, or to a command. Such a connection is
        #: not closed for another one.
        self.awaits_answer = False

    async def run(self) -> None:
        """Answer requests until either side ends the connection."""
        with self._client, self._scope:
            try:
                while await self._once():
                    self._http.start_next_cycle()
                    self._end()
                    await self._begin()
                await self._hang_up()
            except (OSError, TimeoutError):
                pass  # the client has gone, or is too slow
            except Exception:
                log.exception("connection failed")
            finally:
                self._end()

    def drop(self) -> None:
        """Close the connection now."""
        self._scope.cancel()

    async def _begin(self) -> None:
        await self._turns.begin()
        self._has_turn = True

    def _end(self) -> None:
        if self._has_turn:
            self._has_turn = False
            self._turns.end()

    async def _until(self, ready: Callable[[socket.socket], Awaitable[None]]) -> None:
        """Wait for the client, without a turn meanwhile. Then a client without a first answer awaits one."""
        self._end()
        self.awaits_answer = False
        self._changed()
        await ready(self._client)
        self.awaits_answer = not self._answered
        await self._begin()

    async def _once(self) -> bool:
        """Answer one request; returns whether another request may follow."""
        try:
            received = await self._request()
            if received is None:
                return False
            request, body = received
            await self._send(await self._answer(request, body), head=request.method == b"HEAD")
        except h11.RemoteProtocolError as error:
            if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
                return False
            await self._send(text(error.error_status_hint, f"not HTTP as expected: {error}"), close=True)
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE

    async def _request(self) -> tuple[h11.Request, bytes] | None:
        """The next request with its body; None when the client is done."""
        if not self._http.trailing_data[0]:
            with anyio.fail_after(self._limits.idle):
                received = await self._read()
            if not received:
                return None
            self._http.receive_data(received)
        request: h11.Request | None = None
        body = bytearray()
        with anyio.fail_after(self._limits.request):
            while True:
                event = self._http.next_event()
                if event is h11.NEED_DATA:
                    self._http.receive_data(await self._read())
                elif isinstance(event, h11.Request):
                    request = event
                    if request.method not in self._methods:
                        return request, b""  # refused, whatever follows
                elif request is None:
                    return None
                elif isinstance(event, h11.Data) and request.method == b"POST":
                    body += event.data
                    if len(body) > self._limits.body_bytes:
                        return request, bytes(body)  # refused as too long
                elif isinstance(event, h11.EndOfMessage | h11.Data):
                    return request, bytes(body)  # the rest of a body ends the connection
                else:
                    return None

    async def _read(self, most: int = _CHUNK) -> bytes:
        """The next bytes from the client; empty when the client is done."""
        while True:
            await self._until(anyio.wait_readable)
            with contextlib.suppress(BlockingIOError):
                return self._client.recv(most)

    async def _answer(self, request: h11.Request, body: bytes) -> HttpAnswer:
        if request.method not in self._methods:
            return text(405, f"only {self._allowed} are served")
        if len(body) > self._limits.body_bytes:
            return text(413, f"the body is longer than {self._limits.body_bytes} bytes")
        target = request.target.decode("ascii")
        path = target.partition("?")[0]
        try:
            if self._post is not None and request.method == b"POST":
                return await self._without_turn(self._post(path, body, self._user()))
            if (preparation := self._views.prepare(target)) is not None:
                await self._without_turn(preparation)
            return self._views.get(target, _host(request))
        except Exception:
            log.exception("view failed" if request.method in _METHODS else "command failed", path=path)
            return text(500, "this cannot be answered; the agent's log says why")

    async def _without_turn(self, work: Awaitable[T]) -> T:
        """Await work that others do for the client, who keeps the connection meanwhile."""
        self._end()
        self.awaits_answer = True
        try:
            return await work
        finally:
            await self._begin()

    @property
    def _allowed(self) -> str:
        *most, last = (method.decode() for method in self._methods)
        return f"{', '.join(most)} and {last}"

    def _user(self) -> int:
        """The user id of the client, from SO_PEERCRED."""
        return credentials(self._client).uid

    async def _send(self, answer: HttpAnswer, *, head: bool = False, close: bool = False) -> None:
        self._answered += 1
        last = self._answered >= self._limits.requests
        headers = [
            ("Content-Type", answer.content_type),
            ("Content-Length", str(len(answer.body))),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
        ]
        if answer.status == 405:
            headers.append(("Allow", b", ".join(self._methods).decode()))
        if close or last or self._http.their_state is not h11.DONE:
            headers.append(("Connection", "close"))
        events: list[h11.Event] = [h11.Response(status_code=answer.status, headers=headers)]
        if not head:
            events.append(h11.Data(data=answer.body))
        with anyio.fail_after(self._limits.request):
            for event in (*events, h11.EndOfMessage()):
                await self._write(self._http.send(event) or b"")
        self.since, self.awaits_answer = anyio.current_time(), False
        self._changed()

    async def _write(self, content: bytes) -> None:
        left = memoryview(content)
        while left:
            try:
                left = left[self._client.send(left) :]
            except BlockingIOError:
                await self._until(anyio.wait_writable)

    async def _hang_up(self) -> None:
        """Let the last answer arrive: to close with unread bytes would reset the connection before."""
        self._client.shutdown(socket.SHUT_WR)
        with anyio.fail_after(min(1.0, self._limits.request)):
            while await self._read(_DRAINED):
                pass


def _host(request: h11.Request) -> str:
    """The Host header; empty where there is none, as HTTP/1.0 allows."""
    named: list[bytes] = [value for name, value in request.headers if name == b"host"]
    return named[0].decode("ascii", "replace") if named else ""
