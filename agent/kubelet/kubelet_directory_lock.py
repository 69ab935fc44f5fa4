"""One agent for each kubelet: the lock is the kubelet's device-plugins directory itself."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import structlog

from agent.core.errors import AgentError
from agent.kubelet.plugin_sockets import served
from agent.state.state_directory_lock import locked

log = structlog.get_logger()

UNKNOWN = "another process"


class DirectoryRemoved(AgentError):
    """Raised if the directory was removed while a mount still shows it: a new directory stays invisible."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path}: the kubelet's directory was removed while it was mounted here, and a new one stays "
            "invisible; restart the agent's container"
        )


class DirectoryLock:
    """Holds a flock on the opened directory, without a file in it: a kubelet up to 1.32 deletes every file.

    A directory that does not exist is locked once it does. One that cannot be opened (an agent without root)
    or locked (some file systems) stays unlocked, with a log line. Then only the state directory is locked.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._held: int | None = None
        self._logged_error = ""

    def hold(self) -> bool:
        """Lock the directory that is at the path now, unless it is locked; False if another agent has it."""
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
        """Check that a kubelet can use the directory at the path.

        Raises:
            DirectoryRemoved: The directory was removed.
        """
        with suppress(OSError):
            if self.path.stat().st_nlink == 0:
                raise DirectoryRemoved(self.path)

    def server(self) -> str:
        """Describe the agent that serves a socket in the directory; "" where none does."""
        name = served(self.path)
        return name and f"the agent that serves {self.path / name}"

    def release(self) -> None:
        """Unlock the directory."""
        held, self._held = self._held, None
        if held is not None:
            os.close(held)

    def _complain(self, why: str) -> None:
        if why != self._logged_error:
            then = "an agent with another state directory can start at the same kubelet"
            log.warning("the kubelet's directory is not locked", path=str(self.path), error=why, then=then)
        self._logged_error = why
