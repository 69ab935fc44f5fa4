"""Faults that several readings over time show: a card stays hot, or its firmware has no heartbeat. Pure.

The rules are those of Enflame's binding (go-eflib, health.go): above 95 C for 10 of 15 s, and no heartbeat.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from agent.vendor_api.backend import Fault
from agent.vendors.enflame.shared.sysfs import Beat

from . import faults

HOT, HOT_FOR, WINDOW = 95.0, 10.0, 15.0  # degrees Celsius, seconds, seconds
#: A hot reading counts for the seconds since the reading before, but for no more than this.
STEP = 3.0
#: Seconds without a heartbeat after which awake firmware is a fault. Its real period is not published.
SILENCE = 15.0


@dataclass(slots=True)
class _CardHistory:
    """The readings of one card. Times are seconds of a monotonic clock."""

    #: Hot readings within WINDOW: time, and the hot seconds since the reading before.
    hot: deque[tuple[float, float]] = field(default_factory=deque)
    #: Time of the last reading.
    at: float | None = None
    #: The last heartbeat count, the time when it changed, and the seconds since then.
    count: int | None = None
    since: float = 0.0
    silent: float = 0.0


class FaultsOverTime:
    """Keeps the readings of all cards, and tells the faults that follow from them.

    A heartbeat that stands still is a fault only once the heartbeat of any card has moved: there may be
    firmware without a heartbeat.
    """

    def __init__(self) -> None:
        self._cards: dict[str, _CardHistory] = {}
        #: Whether a heartbeat of any card has moved.
        self._counts = False

    def add(self, uuid: str, now: float, chip: float | None, beat: Beat | None) -> None:
        """Add a reading of a card: the chip's degrees Celsius, and the heartbeat. None: unknown."""
        history = self._cards.setdefault(uuid, _CardHistory())
        self._heat(history, now, chip)
        self._pulse(history, now, beat)
        history.at = now

    def _heat(self, history: _CardHistory, now: float, chip: float | None) -> None:
        if chip is not None and chip > HOT and history.at is not None:
            history.hot.append((now, min(now - history.at, STEP)))
        while history.hot and now - history.hot[0][0] >= WINDOW:
            history.hot.popleft()

    def _pulse(self, history: _CardHistory, now: float, beat: Beat | None) -> None:
        if beat is None or beat.asleep or beat.count != history.count:
            self._counts |= beat is not None and history.count is not None and beat.count != history.count
            history.count = beat.count if beat else None
            history.since, history.silent = now, 0.0
        else:
            history.silent = now - history.since

    def fault(self, uuid: str) -> Fault | None:
        """The fault that the readings of the card show; None without one."""
        history = self._cards.get(uuid)
        if history is None:
            return None
        if self._counts and history.silent >= SILENCE:
            return faults.silent(history.silent)
        seconds = sum(it for _, it in history.hot)
        return faults.hot(HOT, seconds, WINDOW) if seconds >= HOT_FOR else None
