"""The open connections of one listener: how many there may be, and which one is closed for a new one."""

from __future__ import annotations

import socket
from collections.abc import Collection

import anyio
import structlog

from agent.core.cell import Cell
from agent.http.client_connection import ClientConnection, PostHandler, Views
from agent.http.client_limits import ClientLimits
from agent.http.loop_turns import LoopTurns

log = structlog.get_logger()

_AFTER_ERROR = 0.5


class ClientConnections:
    """The open connections of one listener.

    A client that asks goes before a client that only holds a connection; otherwise idle clients could make a
    probe fail. Where all places are taken, the connection that was silent longest is closed. A connection
    that awaits an answer is never closed.
    """

    def __init__(self, views: Views, limits: ClientLimits, post: PostHandler | None = None) -> None:
        """`post` answers POST requests, which come over unix sockets only; without it they are refused."""
        self._views = views
        self._post = post
        self._limits = limits
        self._turns = LoopTurns(limits.share)
        #: Accepting has turns of its own, so that new clients do not wait behind all requests.
        self._accepts = LoopTurns(limits.share)
        self._open: Cell[frozenset[ClientConnection]] = Cell(frozenset())

    async def run(self, listener: socket.socket) -> None:
        """Serve each client that connects, until cancelled.

        The server of asyncio is not used: it leaks a client that connects while the server closes.
        """
        async with anyio.create_task_group() as group:
            while True:
                await anyio.wait_readable(listener)
                try:
                    connection = await self._next(listener)
                except BlockingIOError:
                    continue  # the client has gone
                except OSError as error:
                    log.warning("client not accepted", error=str(error))
                    await anyio.sleep(_AFTER_ERROR)  # for instance, no file descriptor is free
                    continue
                group.start_soon(self._serve, connection)

    async def _next(self, listener: socket.socket) -> ClientConnection:
        """The next connection, once there is a place for it."""
        await self._accepts.begin()
        try:
            client, address = listener.accept()
            client.setblocking(False)
            peer = address[0] if listener.family != socket.AF_UNIX else ""
            connection = ClientConnection(
                client, peer, self._limits, self._turns, self._views, self._post, self._open.touch
            )
        finally:
            self._accepts.end()
        try:
            await self._make_room(peer)
        except BaseException:
            client.close()
            raise
        self._open.set(self._open.value | {connection})
        return connection

    async def _make_room(self, peer: str) -> None:
        """Wait until there is a place; close the connection that has been silent longest."""
        while others := self._in_the_way(peer):
            silent = [it for it in others if not it.awaits_answer]
            if silent:
                longest = min(silent, key=lambda it: it.since)
                longest.drop()
                self._open.set(self._open.value - {longest})
            else:
                await self._open.changed()

    def _in_the_way(self, peer: str) -> Collection[ClientConnection]:
        """The connections that leave no place for a new client of this peer; none where a place is free."""
        of_peer = [it for it in self._open.value if it.peer == peer]
        if len(of_peer) >= self._limits.per_peer:
            return of_peer
        return self._open.value if len(self._open.value) >= self._limits.connections else ()

    async def _serve(self, connection: ClientConnection) -> None:
        try:
            await connection.run()
        finally:
            self._open.set(self._open.value - {connection})
