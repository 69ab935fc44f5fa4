"""The locks that schedulers hold on this node, shared by the code that judges them and the API client."""

from __future__ import annotations

from collections.abc import Mapping

from agent.core.allocation.node_lock_rules import Lock
from agent.core.cell import Cell


class NodeLockState:
    """The locks of the node, and which of them are over."""

    def __init__(self) -> None:
        #: The Node's annotations that are locks, as last seen.
        self.annotations: Cell[Mapping[str, str]] = Cell({})
        #: The locks that are over, with the reason. A writer removes them from the Node.
        self.over: Cell[Mapping[Lock, str]] = Cell({})
        #: Locks with a time in the future to when they were first seen, on a monotonic clock.
        self.dated_ahead: Mapping[Lock, float] = {}
        #: A sentence for each of the last locks that time alone ended. `over` drops them once they are freed.
        self.stale: tuple[str, ...] = ()

    def waited(self, now: float) -> dict[Lock, float]:
        """Lock with a time in the future to the seconds since it was first seen. `now`: the same clock."""
        return {lock: now - first for lock, first in self.dated_ahead.items()}
