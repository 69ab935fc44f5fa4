"""Pauses between tries of what failed."""

from __future__ import annotations

import random
from collections.abc import Callable


class Pauses:
    """Each twice the one before; up to a half is left out, so that many nodes do not knock in step."""

    def __init__(self, shortest: float, longest: float, jitter: Callable[[], float] = random.random) -> None:
        """`jitter` is from 0, the pause halved, to 1, the whole one."""
        self._shortest = self._current = shortest
        self._longest = longest
        self._jitter = jitter

    def next(self) -> float:
        """How long to wait now, seconds."""
        pause, self._current = self._current, min(2 * self._current, self._longest)
        return pause * (0.5 + self._jitter() / 2)

    def reset(self) -> None:
        """Begin anew with the shortest."""
        self._current = self._shortest
