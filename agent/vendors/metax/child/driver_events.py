"""Waits for what the driver tells of the cards, and hands on what reading them found.

MXSML's wait has no timeout and cannot be called off, so each card has a thread that waits for ever, as in
the vendor's own example. A thread outlives `close`: it waits on when the library is opened again, and there
is never more than one for a card.
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

#: What a build of the library has that can wait for events.
NEEDED = ("EventSetCreate", "DeviceRegisterEvents", "EventSetWait", "EventSetFree")
#: Seconds until a wait that was refused is tried again ...
PAUSE = 1.0
#: ... and after which one that was not has begun: what is refused is refused at once.
SURE = 0.2

Look = Callable[[int], Sequence[HealthEvent]]


class CardEventWait(threading.Thread):
    """The wait for the events of one card, until it fails. It goes on once what it told was heard."""

    def __init__(self, watch: MxsmlEventWatch, mxsml: Mxsml, index: int) -> None:
        super().__init__(name=f"metax-events-{index}", daemon=True)
        self._watch = watch
        self._mxsml = mxsml
        self._index = index
        self._session = watch.session
        self.heard = threading.Event()
        self._began = time.monotonic()

    @property
    def is_old(self) -> bool:
        """Whether the library looked for its cards anew since it began, which may end it."""
        return self._session != self._watch.session

    @property
    def stands(self) -> bool:
        return self.is_alive() and time.monotonic() - self._began > SURE

    @property
    def is_due(self) -> bool:
        """Whether it ended, of old age or long enough ago."""
        return not self.is_alive() and (self.is_old or time.monotonic() - self._began > PAUSE)

    def run(self) -> None:
        events = 0
        try:
            with self._watch.calls:
                events = self._mxsml.create_event_set()
                self._mxsml.register_events(self._index, events)
            self._watch.hear(self, self._index)  # what came before is in no event
            while True:
                told = self._mxsml.wait_for_event(events)
                self.heard.clear()
                self._watch.hear(self, told.card)
                self.heard.wait()
        except MxsmlError as error:
            with self._watch.calls:
                # What looking anew ended, the library may have freed itself.
                if events and not self.is_old:
                    with suppress(MxsmlError):  # it may be broken, that is why it goes
                        self._mxsml.free_event_set(events)
            self._watch.hear(self, self._index, error)


class MxsmlEventWatch:
    """The cards under watch. `put` and `tell` come from the thread that discovers, `news` from the other."""

    def __init__(self, mxsml: Mxsml, look: Look, calls: AbstractContextManager[Any]) -> None:
        """`look` reads the health of the card of this number now, and returns what is new of it.

        `calls` is held by whoever calls the library, but for the wait itself, which has no end.
        """
        self.calls = calls
        self._mxsml = mxsml
        self._look = look
        self._can_wait = all(map(mxsml.has, NEEDED))
        self._cards: Mapping[int, str] = {}
        #: Counts how often the library looked for its cards, and was closed.
        self.session = 0
        self._waits: dict[int, CardEventWait] = {}
        self._blind: set[str] = set()
        #: Cards that have no events: polling is what there is.
        self._mute: set[int] = set()
        self._changed = threading.Condition()
        self._told: dict[int, MxsmlError | None] = {}
        self._found: list[HealthEvent] = []
        self._aged = False

    def put(self, cards: Mapping[int, str]) -> None:
        """Watch these cards, given as number to uuid, from now on."""
        self._cards = dict(cards)

    def renew(self) -> None:
        """The library looks for its cards anew; the waits of before may end with it."""
        self.session += 1

    def tell(self, events: Sequence[HealthEvent]) -> None:
        """Hand on what reading the cards found."""
        with self._changed:
            self._found += events
            self._changed.notify_all()

    def news(self, timeout: float) -> list[HealthEvent]:
        """Wait for news of the cards."""
        cards = self._cards
        if self._can_wait:
            self._wait_for(cards)
        with self._changed:
            self._changed.wait_for(lambda: self._told or self._found or self._aged, timeout)
            self._aged = False
            told, self._told = self._told, {}
            found, self._found = self._found, []
        for wait in self._waits.values():
            wait.heard.set()
        for index, error in told.items():
            found += self._meaning(cards, index, error)
        return [*found, *self._seen_again(cards)]

    def _wait_for(self, cards: Mapping[int, str]) -> None:
        for index in cards.keys() - self._mute:
            if index not in self._waits or self._waits[index].is_due:
                self._waits[index] = CardEventWait(self, self._mxsml, index)
                self._waits[index].start()

    def hear(self, wait: CardEventWait, index: int, error: MxsmlError | None = None) -> None:
        """The driver told of a card, or the wait for it failed."""
        with self._changed:
            if error is None or not wait.is_old:
                self._told[index] = error
            else:
                self._aged = True
            self._changed.notify_all()

    def _meaning(
        self, cards: Mapping[int, str], index: int, error: MxsmlError | None
    ) -> Sequence[HealthEvent]:
        """What an event says; MetaX has not published its numbers, so the card itself is asked."""
        uuid = cards.get(index)
        if error is not None and error.code in faults.UNASKED:
            self._mute.add(index)
            return ()
        if uuid is None or (error and uuid in self._blind):
            return ()
        if error is None:
            return self._look(index)
        self._blind.add(uuid)
        return (HealthEvent(uuid, faults.unwatched(error)),)

    def _seen_again(self, cards: Mapping[int, str]) -> list[HealthEvent]:
        """Good news of the cards whose watch was broken and stands now."""
        back = [uuid for index, uuid in cards.items() if uuid in self._blind and self._stands(index)]
        self._blind -= set(back)
        return [HealthEvent(uuid, None) for uuid in back]

    def _stands(self, index: int) -> bool:
        return index in self._mute or self._waits[index].stands
