"""Requests on their way in: bounded together, for each alone may be long and slow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial


class ArrivingRequests:
    """Counts what has come of each. Where that is too much the one that began first gives way.

    The kubelet's are whole within milliseconds, so that is one of a client that writes slowly, or never ends.
    """

    def __init__(self, most: int, size: int) -> None:
        """`most` requests at a time, and `size` bytes of all of them."""
        self._most = most
        self._size = size
        self._came: dict[Callable[[], None], int] = {}
        #: Bytes that have come of those that are not whole.
        self.total = 0

    @contextmanager
    def one(self, give_up: Callable[[], None]) -> Iterator[Callable[[int], None]]:
        """Count one request: call what is yielded with each piece's length; `give_up` ends it, once."""
        self._came[give_up] = 0
        self._bound()
        try:
            yield partial(self._more, give_up)
        finally:
            self._forget(give_up)

    def _more(self, request: Callable[[], None], size: int) -> None:
        if request not in self._came:
            raise asyncio.CancelledError  # given up, in a turn in which all of it was there
        self._came[request] += size
        self.total += size
        self._bound()

    def _bound(self) -> None:
        while len(self._came) > self._most or self.total > self._size:
            eldest = next(iter(self._came))
            self._forget(eldest)
            eldest()

    def _forget(self, request: Callable[[], None]) -> None:
        self.total -= self._came.pop(request, 0)
