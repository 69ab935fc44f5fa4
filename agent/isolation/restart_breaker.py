"""Decides when a process that fails again and again is restarted more slowly."""

from __future__ import annotations

from collections import deque

from agent.core.model import BreakerState

LOSSES, WINDOW = 5, 60.0


class Breaker:
    """Opens after so many losses within a window of seconds; `good` seconds of service close it.

    While open, the next start comes after the longest pause. The breaker is half open from that start until
    the process has served long enough.
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
        """Count a loss by the process's own fault, after `served` seconds of service."""
        if served >= self.good:
            self.close()
        self._lost.append(now)
        full = len(self._lost) == self._lost.maxlen
        self._tripped = self._tripped or (full and now - self._lost[0] <= self.window)

    def close(self) -> None:
        """Forget the losses: the library answers properly, even if only that the driver is away."""
        self._lost.clear()
        self._tripped = False

    def state(self, served: float | None) -> BreakerState:
        """The state with a process that has served for so many seconds; None without a process."""
        if not self._tripped or (served is not None and served >= self.good):
            return "closed"
        return "open" if served is None else "half-open"

    def reason(self, last: str, longest: float) -> str:
        """The reason to report; equal for equal kinds of losses, so that it is logged once."""
        return (
            f"failed {self._lost.maxlen} times within {self.window:g} s (last: {last}); "
            f"tried again after up to {longest:g} s"
        )
