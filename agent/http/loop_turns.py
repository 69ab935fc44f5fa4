"""Turns on the event loop: one client after the other, and a rest for the agent after each."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import anyio

#: Seconds that a turn may be late, by a loop that was busy or had no processor, and the next ones make good.
LATENESS = 0.02


class LoopTurns:
    """Gives turns in the order in which they are asked for, and all of them a share of the loop's time.

    Who has a turn ends it before each wait, so that a slow client holds up no other.
    """

    def __init__(
        self,
        share: float,
        spent: Callable[[], float] = time.thread_time,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    ) -> None:
        """`spent` is the loop's processor time: a turn in which others had it held up nobody so long."""
        self._share = share
        self._spent = spent
        self._now = now
        self._sleep = sleep
        self._lock = anyio.Lock()
        self._began = 0.0
        #: When the next one may begin.
        self._next = 0.0

    async def begin(self) -> None:
        """Wait for a turn; the loop has gone round meanwhile."""
        await self._lock.acquire()
        try:
            await self._sleep(max(0.0, self._next - self._now()))
        except BaseException:
            self._lock.release()
            raise
        self._began = self._spent()

    def end(self) -> None:
        """Let the next one begin, after a rest that is the longer the longer this turn was."""
        due = max(self._next, self._now() - LATENESS)
        self._next = due + (self._spent() - self._began) / self._share
        self._lock.release()
