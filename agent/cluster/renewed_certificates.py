"""Replaces the API client's connections when a certificate, a key or the kubeconfig changes."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog
from msgspec import Struct

from agent.cluster.credentials import MAX_BYTES
from agent.cluster.token_file import Token
from agent.host import files

log = structlog.get_logger()

#: Seconds until unusable files are tried again; files that are replaced one by one may not fit together.
AGAIN = 5.0
#: Seconds after which reading that still goes on is logged, as for a dead network file system.
SLOW = 60.0


class FileMark(Struct, frozen=True):
    """A file's inode, time of change in nanoseconds and size, and a digest of its content."""

    stat: tuple[int, int, int]
    digest: bytes


Marks = tuple[FileMark, ...]


@dataclass(eq=False, slots=True)
class ClientPool:
    """kubernetes-asyncio's ApiClient with its connections, its token, and the files it was made from."""

    #: The server's URL, for errors.
    server: str
    client: Any
    token: Token
    files: tuple[Path, ...] = ()
    #: The files just before they were read; None where one did not exist.
    marks: Marks | None = ()
    users: int = field(default=0, init=False)
    retired: bool = field(default=False, init=False)


class Connections:
    """Gives out the current pool. A replaced pool is closed after its last use.

    New connections in the old pool would not do: the server checks the client certificate at each request.
    """

    def __init__(self, pool: ClientPool, make: Callable[[], Awaitable[ClientPool]]) -> None:
        """`make` raises ApiAway if the files cannot be used; then the current pool stays in use."""
        self._pool = pool
        self._make = make
        self._next = 0.0
        self._reported = ""
        self._retired: set[ClientPool] = set()
        #: A task of its own, without a caller's deadline: a program that hangs would end one request after
        #: another, and a cancelled call would leave a pool open.
        self._renewal: asyncio.Task[None] | None = None
        self._closings: set[asyncio.Task[None]] = set()

    @property
    def server(self) -> str:
        return self._pool.server

    @asynccontextmanager
    async def use(self) -> AsyncIterator[ClientPool]:
        """The current pool, kept open while the context lasts; starts a look at the files."""
        self._begin_renewal()
        pool = self._pool
        pool.users += 1
        try:
            yield pool
        finally:
            pool.users -= 1
            self._close_if_done(pool)

    async def close(self) -> None:
        if self._renewal is not None:
            self._renewal.cancel()
            await asyncio.wait([self._renewal])
        for pool in (self._pool, *self._retired):
            self._begin_closing(pool)
        await asyncio.gather(*self._closings)

    def _begin_renewal(self) -> None:
        is_on = self._renewal is not None and not self._renewal.done()
        if self._pool.files and not is_on and time.monotonic() >= self._next:
            self._renewal = asyncio.create_task(self._renew())

    async def _renew(self) -> None:
        still = f"{', '.join(map(str, self._pool.files))}: not read within {SLOW:g} s"
        slow = asyncio.get_running_loop().call_later(SLOW, self._report, still)
        try:
            if await self._is_changed():
                self._replace(await self._make())
        except Exception as error:  # of the library too, or because of the files
            self._report(str(error) or type(error).__name__)
            self._next = time.monotonic() + AGAIN
        finally:
            slow.cancel()

    async def _is_changed(self) -> bool:
        """Whether a file's content differs. The kubelet rewrites all files when it renews one."""
        pool = self._pool
        found = await asyncio.to_thread(marks, pool.files, pool.marks)
        if found is None:
            return False
        if pool.marks is None or [it.digest for it in found] != [it.digest for it in pool.marks]:
            return True
        pool.marks, self._reported = found, ""
        return False

    def _replace(self, fresh: ClientPool) -> None:
        old, self._pool, self._reported = self._pool, fresh, ""
        log.info("certificates read again", files=[str(it) for it in fresh.files])
        old.retired = True
        self._retired.add(old)
        self._close_if_done(old)

    def _report(self, error: str) -> None:
        if error != self._reported:
            log.warning("new certificates cannot be used, the old ones serve on", error=error)
        self._reported = error

    def _close_if_done(self, pool: ClientPool) -> None:
        if pool.retired and not pool.users and pool in self._retired:
            self._begin_closing(pool)

    def _begin_closing(self, pool: ClientPool) -> None:
        self._retired.discard(pool)
        task = asyncio.create_task(pool.client.close())
        self._closings.add(task)
        task.add_done_callback(self._closings.discard)


def marks(files: tuple[Path, ...], before: Marks | None = ()) -> Marks | None:
    """Marks of the files as they are now; None where one does not exist, as while it is replaced.

    A file with the same stat as in `before`, the marks of the same files, is not read again.
    """
    known = dict(zip(files, before or (), strict=False))
    try:
        return tuple(_mark(it, known.get(it)) for it in files)
    except OSError:
        return None


def _mark(path: Path, before: FileMark | None) -> FileMark:
    found = os.stat(path)
    stat = (found.st_ino, found.st_mtime_ns, found.st_size)
    if before is not None and before.stat == stat:
        return before
    return FileMark(stat, hashlib.sha256(files.read(path, MAX_BYTES)).digest())
