"""All locks of the one agent of a node: the kubelet's directory, the state directory and its file."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from agent.kubelet.kubelet_directory_lock import UNKNOWN, DirectoryLock
from agent.state.state_directory_lock import StateDirectoryLock


class AgentLocks:
    """The locks of the one agent of a node: the kubelet's directory, then the state directory and its file.

    An agent of a release before this lock does not lock the kubelet's directory. It is recognised by the
    sockets that it serves there.
    """

    def __init__(self, kubelet_dir: Path, state: StateDirectoryLock | None) -> None:
        """`state` is None where the agent has no state directory."""
        self.directory = DirectoryLock(kubelet_dir)
        self.state = state

    def take(self) -> str:
        """Take all locks, or none: "" on success, else a description of the holder.

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
        """The agent that runs, by the text in the state directory or else by its sockets; "" for none."""
        return (self.state.holder() if self.state is not None else "") or self.directory.server()

    def __enter__(self) -> AgentLocks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.state is not None:
            self.state.__exit__(kind, exc, trace)
        self.directory.release()
