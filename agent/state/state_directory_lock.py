"""One agent for each state directory: a lock that the kernel drops when its holder dies."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from agent.core.errors import AgentError
from agent.host import files
from agent.state import state_directory

#: Bytes of the lock file's text.
_LONGEST_HOLDER = 80
#: Never follows a link, and never waits at a pipe.
_SAFELY = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class NoState(AgentError):
    """Raised if the state directory does not exist and cannot be made."""

    def __init__(self, path: Path, exc: OSError) -> None:
        why, file = exc.strerror, files.in_the_way(path.parent)
        remedy = "name a directory of the agent's own with --state-dir"
        if file is not None:
            path, why, remedy = file, "is no directory", f"move it away, or {remedy}"
        super().__init__(f"{path}: {why}; {remedy}")


class LockLost(AgentError):
    """Raised if another agent has locked what is at the path of a lock now."""

    def __init__(self, path: Path, holder: str) -> None:
        super().__init__(f"{path}: another agent ({holder}) has locked what is there now; this one ends")


class StateDirectoryLock:
    """Locks the state directory, and in it `agent.lock`, which holds a text about the holder.

    Both are locked as far as they can be opened. A directory that is full or read-only may have no file to
    lock. The file could be unlinked while it is locked, and agents of earlier releases lock only the file.
    With both locked, a second agent is noticed in any of these cases.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        #: The locked descriptors, by path.
        self._held: dict[Path, int] = {}
        self._opening: dict[Path, Callable[[], int]] = {path.parent: self._directory, path: self._file}
        #: On a disk that hangs, `keep` may go on after the lock was released.
        self._swapping = threading.Lock()
        self._is_over = False

    def take(self) -> str:
        """Take the lock if it is free: "" on success, else a description of its holder.

        Raises:
            NoState: There is no state directory, and none can be made.
        """
        try:
            state_directory.make(self.path.parent)
            self._held = self._hold()
        except BlockingIOError:
            return self._holder()
        except OSError as exc:
            raise NoState(self.path, exc) from exc
        self._sign()
        return ""

    def keep(self) -> bool:
        """Lock what is at the paths now; a removed directory is made again. For a thread: a disk may hang.

        Returns whether something had to be locked. Then files that were written before may be gone.

        Raises:
            LockLost: Another agent has one of the locks.
        """
        fresh: dict[Path, int] = {}
        with suppress(OSError):  # the next write reports why
            state_directory.make(self.path.parent)
        for path, opened in self._opening.items():
            try:
                if not _is_at(path, self._held.get(path)):
                    fresh[path] = locked(opened())
            except BlockingIOError:
                _close(fresh.values())
                raise LockLost(path, self._holder()) from None
            except OSError:
                pass
        if fresh:
            self._swap(fresh)
            self._sign()
        return bool(fresh)

    def holder(self) -> str:
        """A description of the other agent with the lock, without taking it; "" where there is none."""
        for path in self._opening:
            try:
                os.close(locked(os.open(path, os.O_RDONLY | _SAFELY)))
            except BlockingIOError:
                return self._holder()
            except OSError:
                pass
        return ""

    def _swap(self, fresh: dict[Path, int]) -> None:
        with self._swapping:
            if self._is_over:
                old = fresh
            else:
                old = {path: self._held[path] for path in fresh if path in self._held}
                self._held = {**self._held, **fresh}
        _close(old.values())

    def _hold(self) -> dict[Path, int]:
        """Lock the directory, then the file, except where one cannot be opened or locked.

        Raises:
            BlockingIOError: Another agent has one of the locks; now none is held.
            OSError: Neither can be locked.
        """
        held: dict[Path, int] = {}
        refusals: list[OSError] = []
        for path, opened in self._opening.items():
            try:
                held[path] = locked(opened())
            except BlockingIOError:
                _close(held.values())
                raise
            except OSError as exc:
                refusals.append(exc)
        if not held:
            raise refusals[0]
        return held

    def _directory(self) -> int:
        return os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def _file(self) -> int:
        try:
            return os.open(self.path, os.O_RDWR | os.O_CREAT | _SAFELY, 0o600)
        except OSError:  # full or read-only: an existing file can be locked nevertheless
            return os.open(self.path, os.O_RDONLY | _SAFELY)

    def _holder(self) -> str:
        with suppress(OSError):
            text = files.read(self.path, _LONGEST_HOLDER, links=False)
            return text.decode("ascii", "replace").strip() or "another process"
        return "another process"

    def _sign(self) -> None:
        """Write the holder's text. The lock holds without it too."""
        with suppress(OSError):
            descriptor = os.open(self.path, os.O_WRONLY | _SAFELY)
            try:
                os.ftruncate(descriptor, 0)
                os.write(descriptor, f"pid {os.getpid()}\n".encode())
            finally:
                os.close(descriptor)

    def __enter__(self) -> StateDirectoryLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._swapping:
            self._is_over = True
            held, self._held = self._held, {}
        _close(held.values())


def locked(descriptor: int) -> int:
    """Lock an open file and return its descriptor.

    Raises:
        BlockingIOError: Another process has the lock; the descriptor is closed.
        OSError: The file cannot be locked; the descriptor is closed.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _is_at(path: Path, descriptor: int | None) -> bool:
    """Whether the open file is the one at the path."""
    if descriptor is None:
        return False
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
