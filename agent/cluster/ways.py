"""What a client speaks through, made anew when a certificate, a key or the kubeconfig is another file."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import structlog

from agent.cluster.errors import ApiAway
from agent.cluster.tokens import Token

log = structlog.get_logger()

#: Seconds until files that could not be used, as while they are exchanged one by one, are tried again.
AGAIN = 5.0

#: Of each file: inode, time of change in nanoseconds, and size.
Marks = tuple[tuple[int, int, int], ...] | None


@dataclass(eq=False, slots=True)
class Way:
    """kubernetes-asyncio's ApiClient with its connections, where its token is from, what it was made of."""

    client: Any
    token: Token
    files: tuple[Path, ...] = ()
    #: How the files were just before they were read.
    marks: Marks = ()
    users: int = field(default=0, init=False)
    retired: bool = field(default=False, init=False)


class Ways:
    """Gives out the way of now. One that is still in use when it is replaced is closed after its last use.

    New connections alone would not do: the server judges a client's certificate at each request of one.
    """

    def __init__(self, way: Way, make: Callable[[], Awaitable[Way]]) -> None:
        """`make` raises ApiAway where the files can not be used; the way of before serves on then."""
        self._way = way
        self._make = make
        self._makes = False
        self._next = 0.0
        self._told = ""
        self._retired: set[Way] = set()

    @property
    def token(self) -> Token:
        return self._way.token

    @asynccontextmanager
    async def use(self) -> AsyncIterator[Any]:
        """The ApiClient to speak through, which stays open for as long as the scope does."""
        await self._renew()
        way = self._way
        way.users += 1
        try:
            yield way.client
        finally:
            way.users -= 1
            await self._end_if_done(way)

    async def close(self) -> None:
        for way in (self._way, *self._retired):
            await way.client.close()

    async def _renew(self) -> None:
        found = marks(self._way.files)
        if found in (None, self._way.marks) or self._makes or time.monotonic() < self._next:
            return
        self._makes, self._next = True, time.monotonic() + AGAIN
        try:
            fresh = await self._make()
        except ApiAway as error:
            if str(error) != self._told:
                log.warning("new certificates can not be used, the old ones serve on", error=str(error))
            self._told = str(error)
            return
        finally:
            self._makes = False
        old, self._way = self._way, fresh
        self._told, self._next = "", 0.0
        log.info("certificates read again", files=[str(it) for it in fresh.files])
        old.retired = True
        self._retired.add(old)
        await self._end_if_done(old)

    async def _end_if_done(self, way: Way) -> None:
        if way.retired and not way.users and way in self._retired:
            self._retired.discard(way)
            with anyio.CancelScope(shield=True):
                await way.client.close()


def marks(files: tuple[Path, ...]) -> Marks:
    """How the files are now; None where one is not there, as while it is replaced."""
    try:
        found = [os.stat(it) for it in files]
    except OSError:
        return None
    return tuple((it.st_ino, it.st_mtime_ns, it.st_size) for it in found)
