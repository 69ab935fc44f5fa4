"""Events of a vendor's process on their way: told in order, some times a second, and never without end."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from agent.core.vendor import HealthEvent

TURN = 0.05  # seconds from one time to the next: each has all follow that follows from health
AT_ONCE = 1024  # events that are handed on before others get their turn
#: Events at once, and a second after them, twice what a process that keeps to `child` sends.
BURST, RATE = 16384, 2000.0


def is_wide(event: HealthEvent) -> bool:
    """Whether the event concerns several devices: all of them, or a card and its slices by a proof."""
    return event.uuid is None or event.proof is not None


class News:
    """Events that wait for their turn. An event equal to the device's last queued event is dropped."""

    def __init__(self) -> None:
        self._waiting: deque[HealthEvent] = deque()
        #: The last queued event of each device since the last wide one; None: that one, if it came last.
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
        """Queue events. A wide event and an event of one device each end the memory of the other."""
        for event in events:
            wide = is_wide(event)
            key = None if wide else event.uuid
            if self._last.get(key) == event:
                continue
            if wide:
                self._last.clear()
            else:
                self._last.pop(None, None)
            self._last[key] = event
            self._waiting.append(event)

    def take(self) -> tuple[HealthEvent, ...]:
        """The oldest ones."""
        taken = tuple(self._waiting.popleft() for _ in range(min(AT_ONCE, len(self._waiting))))
        if not self._waiting:
            self._last.clear()
        return taken
