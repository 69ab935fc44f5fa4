"""Queues the events of a vendor's process: delivered in order, some times a second, and bounded in number."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from agent.core.token_bucket import TokenBucket
from agent.vendor_api.agent import HealthEvent

TURN_SECONDS = (
    0.05  # seconds between two deliveries, because each makes the agent compute everything after health
)
#: Events in one delivery. A wide event counts once for each device.
AT_ONCE = 1024
#: Events at once, and a second after that: twice what `child` sends, and counted alike.
BURST, RATE = 16384, 2000.0


def is_wide(event: HealthEvent) -> bool:
    """Whether the event concerns several devices: all of them, or by a proof a card and its slices."""
    return event.uuid is None or event.proof is not None


def weight(event: HealthEvent, devices: int) -> int:
    """How many events it counts as for a vendor with so many devices; the cost of processing is the same."""
    return max(devices, 1) if is_wide(event) else 1


class EventQueue:
    """Events that wait for delivery. An event equal to its device's last queued event is dropped."""

    def __init__(self) -> None:
        self._waiting: deque[HealthEvent] = deque()
        #: Each device's last queued event since the last wide one; key None: the wide one, if it was last.
        self._last: dict[str | None, HealthEvent] = {}
        self._bucket = TokenBucket(RATE, BURST)

    def __len__(self) -> int:
        return len(self._waiting)

    def admit(self, events: Sequence[HealthEvent], devices: int, now: float) -> bool:
        """Count a message with these events; False if the process sends more than it may."""
        count = max(sum(weight(event, devices) for event in events), 1)
        return self._bucket.take(count, now) >= 0

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

    def take(self, devices: int) -> tuple[HealthEvent, ...]:
        """Take the oldest events, as many as one delivery may have; `devices`: how many the vendor has."""
        events: list[HealthEvent] = []
        left = AT_ONCE
        while self._waiting and (not events or weight(self._waiting[0], devices) <= left):
            events.append(self._waiting.popleft())
            left -= weight(events[-1], devices)
        if not self._waiting:
            self._last.clear()
        return tuple(events)
