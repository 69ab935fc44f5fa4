"""Watches the kubelet's device-plugins directory: its socket, its checkpoint, and the plugins' sockets."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import NamedTuple

import anyio
import structlog

from agent.core.cell import Cell
from agent.core.endless_tasks import for_ever, sleep_in_step

log = structlog.get_logger()

KUBELET_SOCKET = "kubelet.sock"
KUBELET_CHECKPOINT = "kubelet_internal_checkpoint"


class FileIdentity(NamedTuple):
    """Identifies a file. Inode numbers are reused, so the time of the last change is part of it."""

    device: int
    inode: int
    changed_ns: int


class OtherSocket(NamedTuple):
    """The socket of another plugin; a restart of its server gives another value."""

    name: str
    file: FileIdentity


def identify(path: Path) -> FileIdentity | None:
    """The file's identity; None where there is none, or it cannot be seen."""
    found = _stat(path)
    return None if found is None else _identity(found)


def identify_socket(path: Path) -> FileIdentity | None:
    """The identity of a socket, which changes when its server restarts; None where there is no socket."""
    found = _stat(path)
    return _identity(found) if found is not None and stat.S_ISSOCK(found.st_mode) else None


def other_sockets(directory: Path, own: Collection[str] = ()) -> frozenset[OtherSocket]:
    """The sockets in the directory except the kubelet's and the sockets with the names `own`."""
    try:
        names = set(os.listdir(directory)).difference(own, [KUBELET_SOCKET])
    except OSError:
        return frozenset()
    found = ((name, identify_socket(directory / name)) for name in names)
    return frozenset(OtherSocket(name, file) for name, file in found if file is not None)


def _identity(found: os.stat_result) -> FileIdentity:
    return FileIdentity(found.st_dev, found.st_ino, found.st_ctime_ns)


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


class KubeletDirectory:
    """Publishes the identity of kubelet.sock and of the checkpoint, and the sockets of other plugins.

    Inotify reports changes at once. A slow poll finds what inotify misses (an overflow, a directory replaced
    by a mount), and works alone where inotify is not available.
    """

    def __init__(
        self,
        path: Path,
        *,
        poll: float = 5.0,
        inotify_after: float = 0.5,
        poll_until_then: float = 0.1,
        retry: float = 1.0,
        holds_lock: Callable[[], bool] = lambda: True,
    ) -> None:
        """`holds_lock` locks the directory. While another agent has the lock, no kubelet is seen here."""
        self.path = path
        self._holds_lock = holds_lock
        self.kubelet: Cell[FileIdentity | None] = Cell(None)
        self.checkpoint: Cell[FileIdentity | None] = Cell(None)
        self.other_sockets: Cell[frozenset[OtherSocket]] = Cell(frozenset())
        #: Names of this process's sockets. A pid in the name is no proof: agents of other pods may share it.
        self._own_sockets: set[str] = set()
        #: Counts looks at the directory; tasks that wait for a change watch it.
        self._looks: Cell[int] = Cell(0)
        self._poll = poll
        # Loading inotify takes some 20 ms, which are left to the first registration.
        self._inotify_after = inotify_after
        self._poll_until_then = poll_until_then
        self._retry = retry
        self._watched: FileIdentity | None = None
        self._watching: anyio.CancelScope | None = None

    async def run(self) -> None:
        """Watch until cancelled."""
        self.refresh()
        async with anyio.create_task_group() as group:
            group.start_soon(for_ever, self._look_often)
            group.start_soon(for_ever, self._keep_listening)

    def refresh(self) -> None:
        """Look at the directory now and publish what changed."""
        self.kubelet.set(identify_socket(self.path / KUBELET_SOCKET) if self._holds_lock() else None)
        self.checkpoint.set(identify(self.path / KUBELET_CHECKPOINT))
        self.other_sockets.set(other_sockets(self.path, self._own_sockets))
        self._looks.set(self._looks.value + 1)
        if self._watching is not None and _file_of(self.path) != self._watched:
            self._watching.cancel()  # another directory is at the path now

    @contextmanager
    def owning(self, path: Path) -> Iterator[None]:
        """Count the socket at the path as this process's own while the context lasts."""
        self._own_sockets.add(path.name)
        try:
            yield
        finally:
            self._own_sockets.discard(path.name)

    async def lost(self, path: Path) -> None:
        """Return once the socket that is at the path now is removed or replaced."""
        wanted = _file_of(path)
        await self._until(lambda: wanted is None or _file_of(path) != wanted)

    async def _until(self, condition: Callable[[], bool]) -> None:
        async with aclosing(self._looks.watch()) as looks:  # type: ignore[type-var]
            async for _ in looks:
                if condition():
                    return

    async def _look_often(self) -> None:
        with anyio.move_on_after(self._inotify_after):
            await self._look_every(self._poll_until_then)
        await self._look_every(self._poll)

    async def _look_every(self, seconds: float) -> None:
        while True:
            await sleep_in_step(seconds)
            self.refresh()

    async def _keep_listening(self) -> None:
        await anyio.sleep(self._inotify_after)
        while True:
            await self._listen()
            await anyio.sleep(self._retry)
            self.refresh()

    async def _listen(self) -> None:
        """Follow the directory at the path until it is removed or replaced."""
        self._watched = _file_of(self.path)
        try:
            with anyio.CancelScope() as self._watching:
                await self._follow()
        except OSError as exc:
            log.debug("directory not watched, only polled", path=str(self.path), error=str(exc))
        finally:
            self._watching = None

    async def _follow(self) -> None:
        from asyncinotify import Inotify, Mask

        changes = Mask.CREATE | Mask.DELETE | Mask.MOVED_FROM | Mask.MOVED_TO
        ends = Mask.DELETE_SELF | Mask.MOVE_SELF | Mask.IGNORED | Mask.UNMOUNT
        with Inotify() as inotify:
            inotify.add_watch(self.path, changes | Mask.DELETE_SELF | Mask.MOVE_SELF | Mask.ONLYDIR)
            self.refresh()
            async for event in inotify:
                if event.mask & ends:
                    break
                # The kubelet writes its checkpoint as .NNNN and renames the file.
                if event.name is None or not event.name.name.startswith("."):
                    self.refresh()
        self.refresh()


def _file_of(path: Path) -> FileIdentity | None:
    """The identity without the time, which changes for a directory with every file in it."""
    found = _stat(path)
    return None if found is None else FileIdentity(found.st_dev, found.st_ino, 0)
