"""A backend whose library may be missing: then sysfs alone shows the cards, until the library is there."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from agent.vendor_api.backend import LIBRARY_NOT_FOUND, Backend, BackendUnavailable

from . import mount_points

S = TypeVar("S")


class LibraryBackend(Backend, Generic[S]):
    """Opens the library's session, and has the library look for its cards anew where sysfs shows others.

    The vendor says how a session starts and ends, and which cards sysfs shows.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(settings)
        self._sysfs = mount_points.sysfs(settings)
        self.session: S | None = None
        self._open = False
        #: Ends the wait for health events without a library.
        self._closed = threading.Event()
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
    def _cards_of_sysfs(self) -> list[str]:
        """The PCI addresses of the cards that sysfs shows, in their order."""

    @abstractmethod
    def _sysfs_is_enough(self) -> bool:
        """Whether sysfs can stand in for a library that is missing: the driver is loaded."""

    # The session

    def open(self) -> None:
        with self.calls:
            self._open = True
            self._closed.clear()
            try:
                self._connect()
            except BackendUnavailable as error:
                if not self._can_fall_back(error):
                    self._open = False
                    raise

    def close(self) -> None:
        self._closed.set()
        with self.calls:
            session, self.session, self._open = self.session, None, False
            self._end(session)

    def _connect(self) -> None:
        self.session = self._start()
        self._buses = self._cards_of_sysfs()

    def _can_fall_back(self, error: BackendUnavailable) -> bool:
        return error.reason == LIBRARY_NOT_FOUND and self._sysfs_is_enough()

    def _renewed(self) -> S | None:
        """The session, which looks for its cards anew where sysfs shows others; None without a library."""
        if not self._open:
            raise BackendUnavailable("not-open", "open() comes first")
        buses = self._cards_of_sysfs()
        if self.session is None:
            try:
                self._connect()
            except BackendUnavailable as error:
                if not self._can_fall_back(error):
                    raise
        elif buses != self._buses:
            self._rescan(self.session)
        self._buses = buses
        return self.session

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
