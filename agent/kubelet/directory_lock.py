"""One agent per kubelet: the lock is its device-plugins directory itself, which no agent can be without."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import structlog

from agent.core.errors import AgentError
from agent.kubelet.plugin_sockets import served
from agent.state.agent_lock import AgentLock, locked

log = structlog.get_logger()

UNKNOWN = "another process"


class DirectoryRemoved(AgentError):
    """Raised where the directory was removed and a mount still shows it: what takes its place is not seen."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path}: the kubelet's directory was removed under the mount that shows it here, and another "
            "one is not seen; start the agent's container anew"
        )


class DirectoryLock:
    """Holds the directory, opened as one, with no file in it: a kubelet up to 1.32 deletes all that it finds.

    One that does not exist is locked once it does. One that cannot be opened (by an agent without root) or
    locked (on some file systems) is not, which is said; the state directory's lock is all there is then.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._held: int | None = None
        self._complaint = ""

    def hold(self) -> bool:
        """Lock the directory that lies at the path now, if that is not done; False: another one holds it."""
        try:
            if self._held is None or not os.path.samestat(self.path.stat(), os.fstat(self._held)):
                fresh = locked(os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
                self.release()
                self._held = fresh
        except BlockingIOError:
            return False
        except FileNotFoundError:
            return True
        except OSError as exc:
            self._complain(exc.strerror or str(exc))
        return True

    def look(self) -> None:
        """See that the directory at the path is one in which a kubelet can be.

        Raises:
            DirectoryRemoved: It was removed, for a moment or for ever.
        """
        with suppress(OSError):
            if self.path.stat().st_nlink == 0:
                raise DirectoryRemoved(self.path)

    def server(self) -> str:
        """Which agent serves a socket in the directory that is there now; "" where none does."""
        name = served(self.path)
        return name and f"the agent that serves {self.path / name}"

    def release(self) -> None:
        """Let go of it."""
        held, self._held = self._held, None
        if held is not None:
            os.close(held)

    def _complain(self, why: str) -> None:
        if why != self._complaint:
            then = "an agent with another state directory is not kept from it"
            log.warning("the kubelet's directory is not locked", path=str(self.path), error=why, then=then)
        self._complaint = why


class NodeLock:
    """What the one agent of a node holds: the kubelet's directory, then the state directory and its file.

    An agent of a release before this lock holds no kubelet's directory. It is known by the sockets that it
    serves there.
    """

    def __init__(self, kubelet_dir: Path, state: AgentLock | None) -> None:
        """`state` is None where there is no state directory, and none is to be made."""
        self.directory = DirectoryLock(kubelet_dir)
        self.state = state

    def take(self) -> str:
        """Take all of it if it is free: "" on success, else who has some of it, and none is held.

        Raises:
            NoState: There is no state directory, and none can be made.
        """
        free = self.directory.hold()
        holder = self._holder() or ("" if free else UNKNOWN)
        if not holder and self.state is not None:
            holder = self.state.take()
        if holder:
            self.directory.release()
        return holder

    def _holder(self) -> str:
        """Who serves, by the text in the state directory or, with another one, by its sockets."""
        return (self.state.holder() if self.state is not None else "") or self.directory.server()

    def __enter__(self) -> NodeLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.state is not None:
            self.state.__exit__(kind, exc, trace)
        self.directory.release()
