"""Waits for events of the driver, and turns them into health events.

MXSML's wait has no timeout and cannot be cancelled. So each card has a thread that waits for ever, as in the
vendor's own example. A thread outlives `close` and goes on when the library is opened again. A card never has
more than one thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any

from agent.vendor_api.backend import HealthEvent

from . import faults
from .library import Mxsml, MxsmlError

#: The functions that a build of the library needs for events.
NEEDED = ("EventSetCreate", "DeviceRegisterEvents", "EventSetWait", "EventSetFree")
#: Seconds from the start of a wait that failed until the next try.
PAUSE = 1.0
#: Seconds after which a wait is known to work. The library refuses a wait at once.
SURE = 0.2

ReadHealth = Callable[[int], Sequence[HealthEvent]]


class CardEventWait(threading.Thread):
    """A thread that waits for the events of one card, until the wait fails.

    After each event the thread stops until `handled` is set.
    """

    def __init__(self, watch: MxsmlEventWatch, mxsml: Mxsml, index: int) -> None:
        super().__init__(name=f"metax-events-{index}", daemon=True)
        self._watch = watch
        self._mxsml = mxsml
        self._index = index
        self._session = watch.session
        self.handled = threading.Event()
        self._began = time.monotonic()

    @property
    def is_outdated(self) -> bool:
        """Whether the library has enumerated again since this wait began, which may end the wait."""
        return self._session != self._watch.session

    @property
    def works(self) -> bool:
        """Whether the wait works."""
        return self.is_alive() and time.monotonic() - self._began > SURE

    @property
    def is_due(self) -> bool:
        """Whether the wait has ended and a new one may start now."""
        return not self.is_alive() and (self.is_outdated or time.monotonic() - self._began > PAUSE)

    def run(self) -> None:
        events = 0
        try:
            with self._watch.calls:
                events = self._mxsml.create_event_set()
                self._mxsml.register_events(self._index, events)
            self._watch.wake(self, self._index)  # a fault of before the registration makes no event
            while True:
                event = self._mxsml.wait_for_event(events)
                self.handled.clear()
                self._watch.wake(self, event.card)
                self.handled.wait()
        except MxsmlError as error:
            with self._watch.calls:
                # The library may have freed the set itself when it enumerated again.
                if events and not self.is_outdated:
                    with suppress(MxsmlError):  # the set may be broken, which ended the wait
                        self._mxsml.free_event_set(events)
            self._watch.wake(self, self._index, error)


class MxsmlEventWatch:
    """Watches cards for health events.

    The thread of `discover` calls `watch_cards`, `renew` and `add_events`, the thread of `health_events`
    calls `next_events`, and the waiting threads call `wake`.
    """

    def __init__(self, mxsml: Mxsml, read_health: ReadHealth, calls: AbstractContextManager[Any]) -> None:
        """`read_health` reads the health of the card with this index now, and returns its health events.

        `calls` is the lock for calls of the library. Only the wait for an event runs without the lock.
        """
        self.calls = calls
        self._mxsml = mxsml
        self._read_health = read_health
        self._can_wait = all(map(mxsml.has, NEEDED))
        self._cards: Mapping[int, str] = {}
        #: Counts how often the library has enumerated its cards again, or was closed.
        self.session = 0
        self._waits: dict[int, CardEventWait] = {}
        #: Cards with a failed wait, for which a fault was reported.
        self._unwatched: set[str] = set()
        #: Indices of cards that have no events. Only polls of `discover` watch them.
        self._without_events: set[int] = set()
        self._changed = threading.Condition()
        #: Indices of cards with an event, or with the error that ended the wait.
        self._woken: dict[int, MxsmlError | None] = {}
        self._added: list[HealthEvent] = []
        self._wait_ended = False

    def watch_cards(self, cards: Mapping[int, str]) -> None:
        """Watch these cards from now on: index to uuid."""
        self._cards = dict(cards)

    def renew(self) -> None:
        """Note that the library enumerates its cards again, which may end the waits."""
        self.session += 1

    def add_events(self, events: Sequence[HealthEvent]) -> None:
        """Let `next_events` return these events, which `discover` found."""
        with self._changed:
            self._added += events
            self._changed.notify_all()

    def next_events(self, timeout: float) -> list[HealthEvent]:
        """Wait for health events, for at most `timeout` seconds."""
        cards = self._cards
        if self._can_wait:
            self._wait_for(cards)
        with self._changed:
            self._changed.wait_for(lambda: self._woken or self._added or self._wait_ended, timeout)
            self._wait_ended = False
            woken, self._woken = self._woken, {}
            events, self._added = self._added, []
        for wait in self._waits.values():
            wait.handled.set()
        for index, error in woken.items():
            events += self._health_events(cards, index, error)
        return [*events, *self._recovered(cards)]

    def _wait_for(self, cards: Mapping[int, str]) -> None:
        for index in cards.keys() - self._without_events:
            if index not in self._waits or self._waits[index].is_due:
                self._waits[index] = CardEventWait(self, self._mxsml, index)
                self._waits[index].start()

    def wake(self, wait: CardEventWait, index: int, error: MxsmlError | None = None) -> None:
        """End the wait of `next_events`: a card has an event, or its thread has failed."""
        with self._changed:
            if error is None or not wait.is_outdated:
                self._woken[index] = error
            else:
                self._wait_ended = True
            self._changed.notify_all()

    def _health_events(
        self, cards: Mapping[int, str], index: int, error: MxsmlError | None
    ) -> Sequence[HealthEvent]:
        """The health events of a card with a driver event or a failed wait.

        MetaX has not published the numbers of events, so the card itself is read.
        """
        uuid = cards.get(index)
        if error is not None and error.unsupported:
            self._without_events.add(index)
            return ()
        if uuid is None or (error and uuid in self._unwatched):
            return ()
        if error is None:
            return self._read_health(index)
        self._unwatched.add(uuid)
        return (HealthEvent(uuid, faults.unwatched(error)),)

    def _recovered(self, cards: Mapping[int, str]) -> list[HealthEvent]:
        """Events without a fault, for cards with a wait that failed and works again."""
        back = [uuid for index, uuid in cards.items() if uuid in self._unwatched and self._is_watched(index)]
        self._unwatched -= set(back)
        return [HealthEvent(uuid, None) for uuid in back]

    def _is_watched(self, index: int) -> bool:
        return index in self._without_events or self._waits[index].works
