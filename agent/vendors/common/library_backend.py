"""A backend whose library may be missing: then sysfs alone shows the cards, until the library is there."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Generic, TypeVar

from agent.vendor_api.backend import LIBRARY_NOT_FOUND, Backend, BackendUnavailable

from . import host
from .library_cards import LibraryCard

S = TypeVar("S")
C = TypeVar("C", bound=LibraryCard)


class LibraryBackend(Backend, Generic[S, C]):
    """Opens the library's session, and has the library look for its cards anew where sysfs shows others.

    The vendor says how a session starts and ends, which cards the library lists, and which sysfs shows.
    """

    #: What people call the library.
    library_name: str

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(settings)
        self._sysfs = host.sysfs(settings)
        self.session: S | None = None
        self._open = False
        #: Ends the wait for health events without a library.
        self._closed = threading.Event()
        #: The cards of the last list, by uuid, and the PCI addresses that sysfs showed then.
        self._cards: dict[str, C] = {}
        self._buses: list[str] = []
        # The wait for health runs in a thread of its own: session and cards change while this is held.
        self.calls = threading.RLock()

    # What the vendor says

    @abstractmethod
    def _start(self) -> S:
        """Load the library and start a session. Raises BackendUnavailable: the library is not usable."""

    @abstractmethod
    def _end(self, session: S | None) -> None:
        """End a session, None where sysfs stood in for the library."""

    @abstractmethod
    def _rescan(self, session: S) -> None:
        """Have the library look for its cards anew. Raises BackendUnavailable: the library refuses."""

    @abstractmethod
    def _survey(self, session: S) -> list[C]:
        """Every card that the library lists. Raises BackendUnavailable: the library does not list them."""

    @abstractmethod
    def _expected(self) -> bool:
        """Whether there are cards, whatever the library says."""

    @abstractmethod
    def _cards_of_sysfs(self) -> list[str]:
        """The PCI addresses of the cards that sysfs shows, in their order."""

    @abstractmethod
    def _sysfs_is_enough(self) -> bool:
        """Whether sysfs can stand in for a library that is missing: the driver is loaded."""

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
        """Start a session, unless the library is missing and sysfs can stand in for it."""
        try:
            self.session = self._start()
        except BackendUnavailable as error:
            if error.reason != LIBRARY_NOT_FOUND or not self._sysfs_is_enough():
                raise
        self._buses = self._cards_of_sysfs()

    def _renewed(self) -> S | None:
        """The session, which looks for its cards anew where sysfs shows others; None without a library."""
        if not self._open:
            raise BackendUnavailable("not-open", "open() comes first")
        buses = self._cards_of_sysfs()
        if self.session is None:
            self._connect()
        elif buses != self._buses:
            self._rescan(self.session)
        self._buses = buses
        return self.session

    def _surveyed(self, session: S) -> list[C]:
        """All cards. Where none answers, the library looks anew: 0 cards may mean that it is broken."""
        with suppress(BackendUnavailable):
            found = self._survey(session)
            if any(card.here for card in found) or not (found or self._expected()):
                return found
        self._rescan(session)
        found = self._survey(session)
        if not found and self._expected():
            raise BackendUnavailable("no-devices", f"{self.library_name} counts no cards, and there are some")
        return found

    def _opened(self) -> S:
        if self.session is None:
            raise BackendUnavailable("not-open", "open() comes first, and makes slices only with the library")
        return self.session

    def _session_if_any(self) -> S | None:
        """The session; None where sysfs stands in for the library, which can neither make nor show slices."""
        return None if self._open and self.session is None else self._opened()

    def _wait_for_close(self, timeout: float) -> None:
        """Wait as `health_events` does without a library: sysfs alone tells no news.

        A call that returned at once would be made again at once.
        """
        self._closed.wait(timeout)
