"""What only time shows of a card: that it stays hot, and that its firmware counts no more. Pure.

The rules are those of Enflame's binding (go-eflib, health.go): above 95 C for 10 of 15 s, and no heartbeat.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from agent.vendor_api.backend import Fault
from agent.vendors.enflame.sysfs import Beat

from . import faults

HOT, HOT_FOR, WINDOW = 95.0, 10.0, 15.0  # degrees Celsius, seconds, seconds
#: A hot look stands for the seconds since the one before it, and for so many at most.
STEP = 3.0
#: Seconds in which firmware that is awake counts on. How often it does nothing public tells.
SILENCE = 15.0


@dataclass(slots=True)
class _CardHistory:
    """Of one card: when it was looked at and the hot seconds since the look before; what it counted since."""

    hot: deque[tuple[float, float]] = field(default_factory=deque)
    at: float | None = None
    count: int | None = None
    since: float = 0.0
    silent: float = 0.0


class FaultsOverTime:
    """Looks at cards, one after the other; times are of a clock that only goes forward.

    A count that never moved is believed to stand only where another card's moves: there may be firmware that
    does not count.
    """

    def __init__(self) -> None:
        self._seen: dict[str, _CardHistory] = {}
        self._counts = False

    def look(self, uuid: str, now: float, chip: float | None, beat: Beat | None) -> None:
        """Take in the temperature of the chip, and what its firmware counted; None is not known."""
        seen = self._seen.setdefault(uuid, _CardHistory())
        self._heat(seen, now, chip)
        self._pulse(seen, now, beat)
        seen.at = now

    def _heat(self, seen: _CardHistory, now: float, chip: float | None) -> None:
        if chip is not None and chip > HOT and seen.at is not None:
            seen.hot.append((now, min(now - seen.at, STEP)))
        while seen.hot and now - seen.hot[0][0] >= WINDOW:
            seen.hot.popleft()

    def _pulse(self, seen: _CardHistory, now: float, beat: Beat | None) -> None:
        if beat is None or beat.asleep or beat.count != seen.count:
            self._counts |= beat is not None and seen.count is not None and beat.count != seen.count
            seen.count = beat.count if beat else None
            seen.since, seen.silent = now, 0.0
        else:
            seen.silent = now - seen.since

    def fault(self, uuid: str) -> Fault | None:
        """What is wrong with the card by what was seen last."""
        seen = self._seen.get(uuid)
        if seen is None:
            return None
        if self._counts and seen.silent >= SILENCE:
            return faults.silent(seen.silent)
        seconds = sum(it for _, it in seen.hot)
        return faults.hot(HOT, seconds, WINDOW) if seconds >= HOT_FOR else None
