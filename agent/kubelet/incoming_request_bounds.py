"""Bounds on incomplete requests: each alone may be long and slow, so all are bounded together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial


class ArrivingRequests:
    """Counts the bytes of each incomplete request. Above a bound, the oldest request is ended.

    The kubelet's requests are complete within milliseconds. The oldest one is of a client that writes slowly
    or never ends its request.
    """

    def __init__(self, most: int, size: int) -> None:
        """`most` requests at a time, and `size` bytes of all of them together."""
        self._most = most
        self._size = size
        self._came: dict[Callable[[], None], int] = {}
        #: Bytes of all incomplete requests.
        self.total = 0

    @contextmanager
    def track(self, give_up: Callable[[], None]) -> Iterator[Callable[[int], None]]:
        """Count one request: call the yielded function with each piece's size. `give_up` ends the request."""
        self._came[give_up] = 0
        self._bound()
        try:
            yield partial(self._more, give_up)
        finally:
            self._forget(give_up)

    def _more(self, request: Callable[[], None], size: int) -> None:
        if request not in self._came:
            raise asyncio.CancelledError  # ended earlier in the same turn of the loop
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
