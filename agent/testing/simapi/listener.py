"""A loopback port that can be closed, with its connections, and opened again."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

from aiohttp import web

from agent.testing.closed_servers import settled

HOST = "127.0.0.1"


class Listener:
    """Keeps the port reserved over all outages. During an outage clients are refused."""

    def __init__(self) -> None:
        self._reserved = _bound(0)
        self.number: int = self._reserved.getsockname()[1]
        self._open: tuple[socket.socket, asyncio.Server, web.Server] | None = None

    @property
    def is_open(self) -> bool:
        return self._open is not None

    async def open(self, answer: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]) -> None:
        """Answer with `answer`, which is cancelled when its client goes away."""
        serving = web.Server(answer, handler_cancellation=True, access_log=None)
        listening = _bound(self.number)
        server = await asyncio.get_running_loop().create_server(serving, sock=listening)
        self._open = (listening, server, serving)

    async def cut(self) -> None:
        """Close the port and every connection at once, without waiting for answers."""
        if self._open is None:
            return
        (listening, server, serving), self._open = self._open, None
        await settled(listening)
        server.close()
        for connection in serving.connections:
            if connection.transport is not None:
                connection.transport.abort()
        await serving.shutdown(0)
        await server.wait_closed()

    def close(self) -> None:
        self._reserved.close()


def _bound(port: int) -> socket.socket:
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind((HOST, port))
    return bound
