"""Events of a vendor's process on their way: told in order, some times a second, and never without end."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from agent.core.vendor import HealthEvent

TURN = 0.05  # seconds from one time to the next: each has all follow that follows from health
AT_ONCE = 1024  # events that are handed on before others get their turn
#: Events at once, and a second after them, twice what a process that keeps to `child` sends.
BURST, RATE = 16384, 2000.0


class News:
    """Events that wait for their turn. What says again what was just said of the same device is left out."""

    def __init__(self) -> None:
        self._waiting: deque[HealthEvent] = deque()
        self._last: dict[str | None, HealthEvent] = {}
        self._allowed = float(BURST)
        self._at = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    def admit(self, count: int, now: float) -> bool:
        """Count a message with so many events; False where there were more than may be."""
        self._allowed = min(self._allowed + (now - self._at) * RATE, float(BURST)) - max(count, 1)
        self._at = now
        return self._allowed >= 0

    def add(self, events: Iterable[HealthEvent]) -> None:
        for event in events:
            if self._last.get(event.uuid) == event:
                continue
            if event.uuid is None or event.proof:  # it says something of others, too
                self._last.clear()
            self._last[event.uuid] = event
            self._waiting.append(event)

    def take(self) -> tuple[HealthEvent, ...]:
        """The oldest ones."""
        taken = tuple(self._waiting.popleft() for _ in range(min(AT_ONCE, len(self._waiting))))
        if not self._waiting:
            self._last.clear()
        return taken
