"""When a process that is lost again and again is left at rest."""

from __future__ import annotations

from collections import deque

from agent.core.model import BreakerState

LOSSES, WINDOW = 5, 60.0


class Breaker:
    """Opens after so many losses within a window of seconds; `good` seconds of service close it.

    Open, the next try comes after the longest pause; half open is that try until it has proved itself.
    """

    def __init__(self, good: float, losses: int = LOSSES, window: float = WINDOW) -> None:
        self.good = good
        self.window = window
        self._lost: deque[float] = deque(maxlen=losses)
        self._tripped = False

    @property
    def tripped(self) -> bool:
        return self._tripped

    def lost(self, now: float, served: float) -> None:
        """Count a loss by the process's own fault, after so many seconds of service."""
        if served >= self.good:
            self.close()
        self._lost.append(now)
        full = len(self._lost) == self._lost.maxlen
        self._tripped = self._tripped or (full and now - self._lost[0] <= self.window)

    def close(self) -> None:
        """Forget the losses: the library answers as it should, if only that its driver is away."""
        self._lost.clear()
        self._tripped = False

    def state(self, served: float | None) -> BreakerState:
        """How it stands with a process that serves for so many seconds; None without one."""
        if not self._tripped or (served is not None and served >= self.good):
            return "closed"
        return "open" if served is None else "half-open"

    def told(self, last: str, longest: float) -> str:
        """The reason to give; the same for each loss of a kind, so that it is told once."""
        return (
            f"failed {self._lost.maxlen} times within {self.window:g} s (last: {last}); "
            f"tried again after up to {longest:g} s"
        )
