"""A server that comes back: nobody waits longer than that, and for a moment it forbids what it will take."""

from __future__ import annotations

import time
from collections.abc import Callable

import anyio

from agent.core.cell import Cell

#: Seconds after its first answer in which its refusals are not believed. kube-apiserver 1.36 answers some 2 s
#: before it has read its roles and bindings; the more of them and the slower its machine, the longer.
GRACE = 30.0


class ServerRestart:
    """Told what becomes of each call, it says whether the server may not have read its rights yet."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._away = False
        self._believed_from = 0.0

    def missed(self) -> None:
        """Nobody answered."""
        self._away = True

    def answered(self) -> None:
        """Whatever it said."""
        if self._away:
            self._away, self._believed_from = False, self._clock() + GRACE

    @property
    def is_fresh(self) -> bool:
        return self._clock() < self._believed_from


async def rest(pause: float, returns: Cell[int], before: int) -> bool:
    """Wait, but for no longer than until the server has come back since `before`; whether it has."""
    with anyio.move_on_after(pause):
        await returns.other_than(before)
    return returns.value != before
