"""Polls the driver for events of the cards, and turns them into health events.

EFML can wait for an event without a timeout (EfmlGetEvent). The watch never does that: each call returns at
once, and between two rounds the watch itself waits, so that `add_events` and `close` can end the wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from agent.vendor_api.backend import Fault, HealthEvent, Proof

from . import faults
from .abi import EventType
from .disturbances import Disturbances
from .library import Efml
from .library_errors import EfmlError
from .values import EfmlEvent

#: Seconds between two rounds.
PAUSE = 0.5

ReadFault = Callable[[str], Fault | None]
ReadOverTime = Callable[[str], Fault | None]


class EfmlEventWatch:
    """Watches cards for health events.

    The thread of `discover` calls `watch_cards` and `add_events`. The thread of `health_events` calls
    `next_events`.
    """

    def __init__(
        self,
        efml: Efml,
        read_fault: ReadFault,
        read_over_time: ReadOverTime,
        disturbances: Disturbances,
        calls: AbstractContextManager[Any],
        clock: Callable[[], float],
    ) -> None:
        """`read_fault` reads the health of a card now. `read_over_time` is called in each round.

        `read_over_time` reads temperature and heartbeat, and must be cheap. `calls` is a lock. It is held for
        each round, so that the index of a card stays the same meanwhile.
        """
        self._efml, self._calls, self._clock = efml, calls, clock
        self._read_fault, self._read_over_time = read_fault, read_over_time
        self._disturbances = disturbances
        self._cards: Mapping[str, int] = {}
        #: Cards without readable events, for which a fault was reported. "" stands for all cards.
        self._unwatched: set[str] = set()
        #: Cards that have no events. Only polls of `discover` watch them.
        self._without_events: set[str] = set()
        #: The reason of the fault from `read_over_time` that was last reported for each card; "" for none.
        self._reported_reasons: dict[str, str] = {}
        self._changed = threading.Condition()
        self._added: list[HealthEvent] = []
        self._closed = False

    def watch_cards(self, cards: Mapping[str, int]) -> None:
        """Watch these cards from now on: uuid to index."""
        self._cards = dict(cards)

    def add_events(self, events: Sequence[HealthEvent]) -> None:
        """Let `next_events` return these events, which `discover` found."""
        with self._changed:
            self._added += events
            self._changed.notify_all()

    def close(self) -> None:
        """End the wait of `next_events`."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def next_events(self, timeout: float) -> list[HealthEvent]:
        """Wait for health events, for at most `timeout` seconds."""
        until = self._clock() + timeout
        while True:
            with self._calls:
                polled = [] if self._closed else self._round()
            with self._changed:
                added, self._added = self._added, []
                left = until - self._clock()
                if added or polled or left <= 0:
                    return [*added, *polled]
                # A closed watch only waits: the agent calls again as soon as this call returns.
                self._changed.wait_for(lambda: bool(self._added or self._closed), min(PAUSE, left))
                if self._closed:
                    return []

    # A round

    def _round(self) -> list[HealthEvent]:
        cards = self._cards
        found: list[HealthEvent] = []
        if self._efml.has("EfmlGetEventV2"):
            for uuid, index in cards.items():
                found += self._polled(uuid, index)
        else:
            found += self._polled_for_any_card(cards)
        for uuid in cards:
            found += self._watched_over_time(uuid)
        for uuid in self._disturbances.due & cards.keys():
            found += self._proven_reset(uuid)
        return found

    def _polled(self, uuid: str, index: int) -> Sequence[HealthEvent]:
        if uuid in self._without_events:
            return ()
        try:
            events = self._efml.events(index)
        except EfmlError as error:
            return self._unreadable(uuid, error)
        back = [HealthEvent(uuid, None)] if uuid in self._unwatched else []
        self._unwatched.discard(uuid)
        return [*back, *(found for event in events for found in self._health_events(uuid, event))]

    def _unreadable(self, uuid: str, error: EfmlError) -> Sequence[HealthEvent]:
        """Report a card without readable events once, with the fault that reading the card shows."""
        if error.unsupported:
            self._without_events.add(uuid)
            return ()
        if uuid in self._unwatched:
            return ()
        self._unwatched.add(uuid)
        return (HealthEvent(uuid, self._read_fault(uuid) or faults.unwatched(error)),)

    def _polled_for_any_card(self, cards: Mapping[str, int]) -> Sequence[HealthEvent]:
        """Poll a build that does not tell the card of an event. An event lets all cards be read."""
        try:
            events = self._efml.events_of_any_card()
        except EfmlError as error:
            if error.unsupported or "" in self._unwatched:
                return ()
            self._unwatched.add("")
            return (HealthEvent(None, faults.unwatched(error)),)
        back = [HealthEvent(None, None)] if "" in self._unwatched else []
        self._unwatched.discard("")
        return [*back, *(found for uuid in cards if events for found in self._read_now(uuid))]

    def _health_events(self, uuid: str, event: EfmlEvent) -> Sequence[HealthEvent]:
        """The health events of a driver event. Error numbers are not published, so the card is read."""
        match event.type:
            case EventType.RESET_START:
                return self._disturbed(uuid, faults.RESETTING)
            case EventType.SUSPEND:
                return self._disturbed(uuid, faults.SUSPENDED)
            case EventType.RESET_FINISH:
                self._disturbances.end(uuid)
                return ()
            case _:
                return self._read_now(uuid)

    def _disturbed(self, uuid: str, fault: Fault) -> Sequence[HealthEvent]:
        self._disturbances.begin(uuid, fault, self._clock())
        return (HealthEvent(uuid, fault),)

    def _read_now(self, uuid: str) -> Sequence[HealthEvent]:
        fault = self._read_fault(uuid)
        return (HealthEvent(uuid, fault),) if fault else ()

    def _proven_reset(self, uuid: str) -> Sequence[HealthEvent]:
        """The proof that a card was reset: the driver said so, and the card is now read without a fault."""
        if self._read_fault(uuid) is not None:
            return ()
        self._disturbances.proven(uuid)
        return (HealthEvent(uuid, None, Proof.RESET),)

    def _watched_over_time(self, uuid: str) -> Sequence[HealthEvent]:
        fault = self._read_over_time(uuid)
        reason = fault.reason if fault else ""
        if self._reported_reasons.get(uuid, "") == reason:
            return ()
        self._reported_reasons[uuid] = reason
        return (HealthEvent(uuid, fault),) if fault else ()
