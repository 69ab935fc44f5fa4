"""A backend that works without its library: sysfs alone shows the cards until the library is installed."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any, Generic, TypeVar

from agent.vendor_api.backend import LIBRARY_NOT_FOUND, Backend, BackendUnavailable, Fault, HealthEvent

from . import host
from .earlier_readings import CounterBaseline
from .library_cards import LibraryCard

S = TypeVar("S")
C = TypeVar("C", bound=LibraryCard)


class LibraryBackend(Backend, Generic[S, C]):
    """Opens the library's session, and lets the library enumerate again when sysfs shows other cards.

    The abstract methods are the vendor's part: how a session starts and ends, which cards the library lists,
    and which cards sysfs shows.
    """

    #: Name of the library in messages, such as EFML.
    library_name: str

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(settings)
        self._sysfs = host.sysfs(settings)
        self.session: S | None = None
        self._open = False
        #: Ends the wait for health events that a backend without a library makes.
        self._closed = threading.Event()
        #: The cards of the last discovery by uuid, and the PCI addresses that sysfs showed then.
        self._cards: dict[str, C] = {}
        self._buses: list[str] = []
        # The wait for health events runs in a thread of its own. Session and cards change under this lock.
        self.calls = threading.RLock()

    # The vendor's part

    @abstractmethod
    def _start(self) -> S:
        """Load the library and start a session. Raises BackendUnavailable: the library is not usable."""

    @abstractmethod
    def _end(self, session: S | None) -> None:
        """End a session. None: there was no library, and sysfs alone showed the cards."""

    @abstractmethod
    def _rescan(self, session: S) -> None:
        """Let the library enumerate its cards again. Raises BackendUnavailable: the library refuses."""

    @abstractmethod
    def _survey(self, session: S) -> list[C]:
        """Read every card that the library lists. Raises BackendUnavailable: the library lists none."""

    @abstractmethod
    def _expected(self) -> bool:
        """Whether this node has cards by another source than the library."""

    @abstractmethod
    def _cards_of_sysfs(self) -> list[str]:
        """The PCI addresses of the cards that sysfs shows, in a stable order."""

    @abstractmethod
    def _sysfs_is_enough(self) -> bool:
        """Whether sysfs can replace a missing library, which needs a loaded driver."""

    @abstractmethod
    def _grown(self, counter: str, before: int, now: int) -> Fault:
        """The fault of a card with an error counter that grew."""

    # The session

    def open(self) -> None:
        with self.calls:
            self._closed.clear()
            self._connect()
            self._open = True

    def close(self) -> None:
        self._closed.set()
        with self.calls:
            session, self.session, self._open = self.session, None, False
            self._end(session)

    def _connect(self) -> None:
        """Start a session. Without a library there is none, if sysfs is enough."""
        try:
            self.session = self._start()
        except BackendUnavailable as error:
            if error.reason != LIBRARY_NOT_FOUND or not self._sysfs_is_enough():
                raise
        self._buses = self._cards_of_sysfs()

    def _current_session(self) -> S | None:
        """The session, after a rescan if sysfs shows other cards than before; None without a library.

        Raises:
            BackendUnavailable: The backend is not open, or the library fails.
        """
        if not self._open:
            raise BackendUnavailable("not-open", "open() comes first")
        buses = self._cards_of_sysfs()
        if self.session is None:
            self._connect()
        elif buses != self._buses:
            self._rescan(self.session)
        self._buses = buses
        return self.session

    def _all_cards(self, session: S) -> list[C]:
        """All cards, after a rescan if none can be reached: 0 cards may mean that the library is broken.

        Raises:
            BackendUnavailable: The library lists no cards, though there are some.
        """
        with suppress(BackendUnavailable):
            cards = self._survey(session)
            if any(card.reachable for card in cards) or not (cards or self._expected()):
                return cards
        self._rescan(session)
        cards = self._survey(session)
        if not cards and self._expected():
            raise BackendUnavailable("no-devices", f"{self.library_name} counts no cards, and there are some")
        return cards

    @cached_property
    def _baseline(self) -> CounterBaseline:
        """The last error counters of each card. First used after `open`, when the directory is known."""
        return CounterBaseline(self.directory, self._grown)

    def _counter_events(self) -> list[HealthEvent]:
        """An event for each error counter that grew since the last call.

        A device of `discover` has one fault only, so errors of counters are health events.
        """
        return [
            HealthEvent(uuid, fault)
            for uuid, card in self._cards.items()
            for fault in self._baseline.new_faults(uuid, card.device.counters)
        ]

    def _library_session(self) -> S:
        """The session. Raises BackendUnavailable: the backend is not open, or there is no library."""
        if self.session is None:
            raise BackendUnavailable("not-open", "open() comes first; slices and processes need the library")
        return self.session

    def _session_if_any(self) -> S | None:
        """The session; None in an open backend without a library, which can neither make nor list slices."""
        return None if self._open and self.session is None else self._library_session()

    def _wait_for_close(self, timeout: float) -> None:
        """Wait in place of `health_events`, because sysfs has no events: until `close`, or the timeout.

        The agent calls `health_events` again as soon as the call returns.
        """
        self._closed.wait(timeout)
