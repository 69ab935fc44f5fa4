"""Serves HTTP on an address or on a unix socket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from socket import socket

from agent.config import parse_address
from agent.http import host_header
from agent.http.answer_cache import AnswerCache
from agent.http.client_connection import Views
from agent.http.client_limits import ClientLimits
from agent.http.listen import on_address, on_path
from agent.http.open_connections import ClientConnections
from agent.http.operator_commands import Apply, answer_command
from agent.http.routes import (
    Audience,
    PrepareUse,
    StatusSource,
    WithUse,
    answer,
    as_it_is,
    canonical,
    nothing,
    preparation,
)


async def serve(
    status: StatusSource,
    at: str | Path,
    apply: Apply | None = None,
    with_use: WithUse = as_it_is,
    prepare_use: PrepareUse = nothing,
) -> None:
    """Serve the status until cancelled, at ADDR:PORT or at the path of a unix socket.

    A unix socket and loopback serve everything, other addresses only what probes and scrapes need. A unix
    socket also takes commands of an operator, which `apply` carries out. `with_use` adds the use of the cards
    for the views that show use, and `prepare_use` does in threads what of that takes long.

    Raises:
        CannotServe: The address is in use, or not an address of this machine.
        ConfigError: `at` is no address.
    """
    with _listening(str(at)) as (listener, audience, _):
        views = _views(status, audience, with_use, prepare_use)
        await _connections(views, audience, ClientLimits(), apply).run(listener)


@asynccontextmanager
async def serving(
    status: StatusSource,
    at: str | Path,
    limits: ClientLimits | None = None,
    apply: Apply | None = None,
    prepare_use: PrepareUse = nothing,
) -> AsyncIterator[str]:
    """Serve the status while the scope is open; yields the address, with a free port in place of port 0."""
    with _listening(str(at)) as (listener, audience, where):
        views = _views(status, audience, prepare_use=prepare_use)
        running = _connections(views, audience, limits or ClientLimits(), apply).run(listener)
        task = asyncio.create_task(running)
        try:
            yield where
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


def _connections(
    views: Views, audience: Audience, limits: ClientLimits, apply: Apply | None
) -> ClientConnections:
    commands = partial(answer_command, apply) if apply is not None and audience is Audience.ADMIN else None
    return ClientConnections(views, limits, commands)


def _views(
    status: StatusSource,
    audience: Audience,
    with_use: WithUse = as_it_is,
    prepare_use: PrepareUse = nothing,
) -> Views:
    """Answers over the admin socket are fresh, so that the effect of a command shows at once.

    Other answers may be as old as AnswerCache keeps them.
    """

    def prepare(target: str) -> Awaitable[object] | None:
        return preparation(target, prepare_use)

    def prepare_once(target: str) -> Awaitable[object] | None:
        return None if recent.has(canonical(target)) else prepare(target)

    if audience is Audience.ADMIN:
        return Views(lambda target, _: answer(status, audience, target, with_use), prepare)
    recent = AnswerCache(lambda target: answer(status, audience, target, with_use))
    if audience is Audience.NETWORK:
        return Views(lambda target, _: recent(canonical(target)), prepare_once)
    return Views(lambda target, host: host_header.refusal(host) or recent(canonical(target)), prepare_once)


@contextmanager
def _listening(at: str) -> Iterator[tuple[socket, Audience, str]]:
    """A listening socket, which clients can connect to it, and its address."""
    if at.startswith("/"):
        with on_path(at) as listener:
            yield listener, Audience.ADMIN, at
        return
    address = parse_address(at)
    with on_address(address) as (listener, bound):
        yield listener, Audience.LOCAL if address.loopback else Audience.NETWORK, str(bound)
