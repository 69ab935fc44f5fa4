"""Listens on an address or a unix socket, for as long as its scope is open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from agent.config import Address, parse_address
from agent.http.errors import CannotServe
from agent.http.routes import Reach, Source, answer
from agent.http.server import Conversations, Limits
from agent.http.unix import UnixListener

_BACKLOG = 64


async def serve(view: Source, at: str | Path) -> None:
    """Show the view until cancelled, at ADDR:PORT or at the path of a unix socket.

    Raises:
        CannotServe: The address is taken or not ours.
        ConfigError: It is no address.
    """
    async with serving(view, at):
        await asyncio.Event().wait()


@asynccontextmanager
async def serving(view: Source, at: str | Path, limits: Limits | None = None) -> AsyncIterator[str]:
    """Show the view while the scope is open; yields where, with the port that was free.

    On loopback and on a unix socket everything is shown, elsewhere only what probes and scrapes need.
    """
    limits = limits or Limits()
    text = str(at)
    if text.startswith("/"):
        async with _on_path(view, text, limits):
            yield text
        return
    async with _on_address(view, parse_address(text), limits) as bound:
        yield str(bound)


@asynccontextmanager
async def _on_address(view: Source, address: Address, limits: Limits) -> AsyncIterator[Address]:
    reach = Reach.LOCAL if address.loopback else Reach.NETWORK
    conversations = Conversations(lambda path: answer(view, reach, path), limits)
    try:
        server = await asyncio.start_server(
            conversations.accept, address.host, address.port, backlog=_BACKLOG, limit=limits.head_bytes
        )
    except OSError as error:
        remedy = 'choose another with --http ADDR:PORT, or none with --http ""'
        raise CannotServe(str(address), error.strerror or str(error), remedy) from error
    try:
        yield Address(address.host, server.sockets[0].getsockname()[1])
    finally:
        server.close()
        await conversations.end()


@asynccontextmanager
async def _on_path(view: Source, path: str, limits: Limits) -> AsyncIterator[None]:
    conversations = Conversations(lambda asked: answer(view, Reach.LOCAL, asked), limits)
    listener = UnixListener(path)
    try:
        server = await asyncio.start_unix_server(
            conversations.accept, sock=listener.socket, backlog=_BACKLOG, limit=limits.head_bytes
        )
        try:
            yield
        finally:
            # First the name, so that a successor's socket is never taken for ours.
            listener.remove()
            server.close()
            await conversations.end()
    finally:
        listener.remove()
        listener.socket.close()
