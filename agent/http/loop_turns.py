"""Turns on the event loop: one client after another, with time for the rest of the agent after each."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import anyio

#: Seconds. A turn can begin late because the loop was busy or had no processor; later turns catch up at most
#: this much.
LATENESS = 0.02


class LoopTurns:
    """Gives turns in the order of the requests for them, and all turns together a share of the loop's time.

    A client ends its turn before each wait, so that a slow client does not delay others.
    """

    def __init__(
        self,
        share: float,
        spent: Callable[[], float] = time.thread_time,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    ) -> None:
        """`share` is between 0 and 1. `spent` gives seconds of processor time of the loop's thread.

        Processor time is what a turn takes away from others; the time on the wall includes that of others.
        """
        self._share = share
        self._spent = spent
        self._now = now
        self._sleep = sleep
        self._lock = anyio.Lock()
        self._began = 0.0
        #: When the next turn may begin, by `now`.
        self._next = 0.0

    async def begin(self) -> None:
        """Wait for a turn; other tasks of the loop run meanwhile."""
        await self._lock.acquire()
        try:
            await self._sleep(max(0.0, self._next - self._now()))
        except BaseException:
            self._lock.release()
            raise
        self._began = self._spent()

    def end(self) -> None:
        """Let the next turn begin after a pause that is in proportion to the length of this turn."""
        due = max(self._next, self._now() - LATENESS)
        self._next = due + (self._spent() - self._began) / self._share
        self._lock.release()
