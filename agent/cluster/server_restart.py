"""What a return of the API server means: pauses end at once, and early refusals are not believed."""

from __future__ import annotations

import time
from collections.abc import Callable

import anyio

from agent.core.cell import Cell

#: Seconds after the first answer in which refusals are not believed. kube-apiserver 1.36 answers some 2 s
#: before it has read roles and bindings; many of these and a slow machine make that longer.
GRACE = 30.0


class ServerRestart:
    """Follows the outcome of calls, and says whether the server may not have read its roles yet."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._away = False
        self._believed_from = 0.0

    def missed(self) -> None:
        """Note that the server did not answer."""
        self._away = True

    def answered(self) -> None:
        """Note that the server answered, with success or an error."""
        if self._away:
            self._away, self._believed_from = False, self._clock() + GRACE

    @property
    def is_fresh(self) -> bool:
        return self._clock() < self._believed_from


async def pause_until_return(pause: float, returns: Cell[int], before: int) -> bool:
    """Sleep for `pause` seconds, or until the server has come back since `before`; returns whether it has."""
    with anyio.move_on_after(pause):
        await returns.other_than(before)
    return returns.value != before
