"""Listens on an address or a unix socket, for as long as it is asked to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from socket import socket

from agent.config import parse_address
from agent.http import host_header
from agent.http.client_connection import Show
from agent.http.client_limits import ClientLimits
from agent.http.listen import on_address, on_path
from agent.http.operator_commands import Apply, hear
from agent.http.recent_answers import RecentAnswers
from agent.http.routes import Audience, Source, answer, canonical
from agent.http.server import Conversations


async def serve(view: Source, at: str | Path, apply: Apply | None = None) -> None:
    """Show the view until cancelled, at ADDR:PORT or at the path of a unix socket.

    On loopback and on a unix socket everything is shown, elsewhere only what probes and scrapes need.
    On a unix socket alone an operator is heard, whose words go to `apply`.

    Raises:
        CannotServe: The address is taken or not ours.
        ConfigError: It is no address.
    """
    with _listening(str(at)) as (listener, reach, _):
        await _conversations(view, reach, ClientLimits(), apply).run(listener)


@asynccontextmanager
async def serving(
    view: Source, at: str | Path, limits: ClientLimits | None = None, apply: Apply | None = None
) -> AsyncIterator[str]:
    """Show the view while the scope is open; yields where, with the port that was free."""
    with _listening(str(at)) as (listener, reach, where):
        talking = _conversations(view, reach, limits or ClientLimits(), apply).run(listener)
        task = asyncio.create_task(talking)
        try:
            yield where
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


def _conversations(view: Source, reach: Audience, limits: ClientLimits, apply: Apply | None) -> Conversations:
    hears = partial(hear, apply) if apply is not None and reach is Audience.ADMIN else None
    return Conversations(_show(view, reach), limits, hears)


def _show(view: Source, reach: Audience) -> Show:
    """Over the admin socket what is so now, for a command shows at once; else what was so a second ago."""
    if reach is Audience.ADMIN:
        return lambda target, _: answer(view, reach, target)
    recent = RecentAnswers(lambda target: answer(view, reach, target))
    if reach is Audience.NETWORK:
        return lambda target, _: recent(canonical(target))
    return lambda target, host: host_header.refusal(host) or recent(canonical(target))


@contextmanager
def _listening(at: str) -> Iterator[tuple[socket, Audience, str]]:
    """A listening socket, who reaches it, and where it is."""
    if at.startswith("/"):
        with on_path(at) as listener:
            yield listener, Audience.ADMIN, at
        return
    address = parse_address(at)
    with on_address(address) as (listener, bound):
        yield listener, Audience.LOCAL if address.loopback else Audience.NETWORK, str(bound)
