"""Asks the driver again and again what happened to the cards, and hands on what that means.

EFML has a wait without an end (EfmlGetEvent); it is never used so. What is asked returns at once, and between
two rounds this waits by itself, so that news and `close` end it.
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

Look = Callable[[str], Fault | None]
Pulse = Callable[[str], Fault | None]


class EfmlEventWatch:
    """The cards under watch. `put` and `tell` come from the thread that discovers, `news` from the other."""

    def __init__(
        self,
        efml: Efml,
        look: Look,
        pulse: Pulse,
        disturbances: Disturbances,
        calls: AbstractContextManager[Any],
        clock: Callable[[], float],
    ) -> None:
        """`look` reads the health of a card now; `pulse` what only time shows, cheap enough for each round.

        `calls` is held for each round, so that no card's number changes its meaning meanwhile.
        """
        self._efml, self._calls, self._clock = efml, calls, clock
        self._look, self._pulse = look, pulse
        self._disturbances = disturbances
        self._cards: Mapping[str, int] = {}
        self._blind: set[str] = set()
        #: Cards that have no events: polling is what there is.
        self._mute: set[str] = set()
        #: What `pulse` said of each card when it was last told.
        self._pulses: dict[str, str] = {}
        self._changed = threading.Condition()
        self._found: list[HealthEvent] = []
        self._closed = False

    def put(self, cards: Mapping[str, int]) -> None:
        """Watch these cards, given as uuid to number, from now on."""
        self._cards = dict(cards)

    def tell(self, events: Sequence[HealthEvent]) -> None:
        """Hand on what reading the cards found."""
        with self._changed:
            self._found += events
            self._changed.notify_all()

    def close(self) -> None:
        """End the wait."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def news(self, timeout: float) -> list[HealthEvent]:
        """Wait for news of the cards."""
        until = self._clock() + timeout
        while True:
            with self._calls:
                found = [] if self._closed else self._round()
            with self._changed:
                told, self._found = self._found, []
                left = until - self._clock()
                if told or found or left <= 0:
                    return [*told, *found]
                # Closed, the watch only waits: who came back at once would be asked again at once.
                self._changed.wait_for(lambda: bool(self._found or self._closed), min(PAUSE, left))
                if self._closed:
                    return []

    # A round

    def _round(self) -> list[HealthEvent]:
        cards = self._cards
        found: list[HealthEvent] = []
        if self._efml.has("EfmlGetEventV2"):
            for uuid, index in cards.items():
                found += self._asked(uuid, index)
        else:
            found += self._asked_of_any(cards)
        for uuid in cards:
            found += self._paced(uuid)
        for uuid in self._disturbances.due & cards.keys():
            found += self._returned(uuid)
        return found

    def _asked(self, uuid: str, index: int) -> Sequence[HealthEvent]:
        if uuid in self._mute:
            return ()
        try:
            events = self._efml.events(index)
        except EfmlError as error:
            return self._failed(uuid, error)
        back = [HealthEvent(uuid, None)] if uuid in self._blind else []
        self._blind.discard(uuid)
        return [*back, *(it for event in events for it in self._meaning(uuid, event))]

    def _failed(self, uuid: str, error: EfmlError) -> Sequence[HealthEvent]:
        """A card whose events cannot be read is looked at, once."""
        if error.unsupported:
            self._mute.add(uuid)
            return ()
        if uuid in self._blind:
            return ()
        self._blind.add(uuid)
        return (HealthEvent(uuid, self._look(uuid) or faults.unwatched(error)),)

    def _asked_of_any(self, cards: Mapping[str, int]) -> Sequence[HealthEvent]:
        """Of builds that do not say which card an event is of: all are looked at."""
        try:
            events = self._efml.events_of_any_card()
        except EfmlError as error:
            if error.unsupported or "" in self._blind:
                return ()
            self._blind.add("")
            return (HealthEvent(None, faults.unwatched(error)),)
        back = [HealthEvent(None, None)] if "" in self._blind else []
        self._blind.discard("")
        return [*back, *(it for uuid in cards if events for it in self._looked(uuid))]

    def _meaning(self, uuid: str, event: EfmlEvent) -> Sequence[HealthEvent]:
        """What an event says. Of the error's number nothing is public, so the card itself is asked."""
        match event.type:
            case EventType.RESET_START:
                return self._disturbed(uuid, faults.RESETTING)
            case EventType.SUSPEND:
                return self._disturbed(uuid, faults.SUSPENDED)
            case EventType.RESET_FINISH:
                self._disturbances.end(uuid)
                return ()
            case _:
                return self._looked(uuid)

    def _disturbed(self, uuid: str, fault: Fault) -> Sequence[HealthEvent]:
        self._disturbances.begin(uuid, fault, self._clock())
        return (HealthEvent(uuid, fault),)

    def _looked(self, uuid: str) -> Sequence[HealthEvent]:
        fault = self._look(uuid)
        return (HealthEvent(uuid, fault),) if fault else ()

    def _returned(self, uuid: str) -> Sequence[HealthEvent]:
        """The proof that a card was reset: it was told so, and the card reads well."""
        if self._look(uuid) is not None:
            return ()
        self._disturbances.proven(uuid)
        return (HealthEvent(uuid, None, Proof.RESET),)

    def _paced(self, uuid: str) -> Sequence[HealthEvent]:
        fault = self._pulse(uuid)
        reason = fault.reason if fault else ""
        if self._pulses.get(uuid, "") == reason:
            return ()
        self._pulses[uuid] = reason
        return (HealthEvent(uuid, fault),) if fault else ()
