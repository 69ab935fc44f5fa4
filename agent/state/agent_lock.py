"""One agent per state directory: a lock that the kernel drops when its holder dies."""

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

#: Bytes of the file's text.
_LONGEST_HOLDER = 80
#: Neither through a link nor waiting at a pipe.
_SAFELY = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class NoState(AgentError):
    """Raised when there is no place to keep the agent's state."""

    def __init__(self, path: Path, exc: OSError) -> None:
        why, file = exc.strerror, files.in_the_way(path.parent)
        remedy = "name a directory of the agent's own with --state-dir"
        if file is not None:
            path, why, remedy = file, "is no directory", f"move it away, or {remedy}"
        super().__init__(f"{path}: {why}; {remedy}")


class LockLost(AgentError):
    """Raised when another agent holds what lies at the path of a lock now."""

    def __init__(self, path: Path, holder: str) -> None:
        super().__init__(f"{path}: another agent holds what lies there now ({holder}); this one ends")


class AgentLock:
    """Holds the state directory, and in it `agent.lock`, whose text says who holds it.

    Both are locked as far as they can be opened. Of a directory that is full or read-only there may be
    nothing else to lock than itself; a file could be unlinked under its holder; and agents of earlier
    releases know the file alone. Two agents meet at the directory, whatever became of it in between.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        #: Path to the open file that is locked.
        self._held: dict[Path, int] = {}
        self._opening: dict[Path, Callable[[], int]] = {path.parent: self._directory, path: self._file}
        #: A disk that hangs may let `keep` go on when the lock was let go of long ago.
        self._swapping = threading.Lock()
        self._is_over = False

    def take(self) -> str:
        """Take the lock if it is free: "" on success, else who holds it.

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
        """Hold what lies at the paths now, also where the directory was removed: it is made anew.

        Returns whether something had to be locked; nothing of what was written may be there then. For a
        thread: a disk may hang.

        Raises:
            LockLost: Another agent holds it.
        """
        fresh: dict[Path, int] = {}
        with suppress(OSError):  # who cannot write there says so
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
        """Who else holds it, without taking it; "" where nobody does."""
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
        """Lock the directory, then the file; without the one that cannot be opened or locked.

        Raises:
            BlockingIOError: Somebody else holds one of them; now none is held.
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
        except OSError:  # full or read-only: one that is there can be locked all the same
            return os.open(self.path, os.O_RDONLY | _SAFELY)

    def _holder(self) -> str:
        with suppress(OSError):
            text = files.read(self.path, _LONGEST_HOLDER, links=False)
            return text.decode("ascii", "replace").strip() or "another process"
        return "another process"

    def _sign(self) -> None:
        """Say who holds it. Where that cannot be written, the lock holds all the same."""
        with suppress(OSError):
            descriptor = os.open(self.path, os.O_WRONLY | _SAFELY)
            try:
                os.ftruncate(descriptor, 0)
                os.write(descriptor, f"pid {os.getpid()}\n".encode())
            finally:
                os.close(descriptor)

    def __enter__(self) -> AgentLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._swapping:
            self._is_over = True
            held, self._held = self._held, {}
        _close(held.values())


def locked(descriptor: int) -> int:
    """The descriptor of a file that is locked now.

    Raises:
        BlockingIOError: Somebody else holds it; the descriptor is closed.
        OSError: It cannot be locked; the descriptor is closed.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _is_at(path: Path, descriptor: int | None) -> bool:
    """Whether the open file is the one that lies at the path."""
    if descriptor is None:
        return False
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _close(descriptors: Iterable[int]) -> None:
    for it in descriptors:
        os.close(it)
