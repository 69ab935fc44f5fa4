"""One agent per node: a lock that the kernel drops when its holder dies."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType

from agent.core.errors import AgentError


class NoState(AgentError):
    """Raised when there is no place to keep the agent's state."""

    def __init__(self, path: Path, exc: OSError) -> None:
        super().__init__(f"{path}: {exc.strerror}; name a directory of the agent's own with --state-dir")


class AgentLock:
    """Holds `<stateDir>/agent.lock`. The file's text says who holds it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def take(self) -> str:
        """Take the lock if it is free: "" on success, else who holds it.

        Raises:
            NoState: The state directory can not be used.
        """
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as exc:
            raise NoState(self.path, exc) from exc
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 80).decode("ascii", "replace").strip()
            os.close(descriptor)
            return holder or "another process"
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"pid {os.getpid()}\n".encode(), 0)
        self._descriptor = descriptor
        return ""

    def __enter__(self) -> AgentLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
