"""Pauses between the tries of an action that fails."""

from __future__ import annotations

import random
from collections.abc import Callable


class Pauses:
    """Each pause is twice as long as the last, minus a random part of up to a half.

    The random part keeps many nodes from trying at the same moments.
    """

    def __init__(self, shortest: float, longest: float, jitter: Callable[[], float] = random.random) -> None:
        """Times are seconds. `jitter` returns 0 (half the pause) to 1 (the whole pause)."""
        self._shortest = self._current = shortest
        self._longest = longest
        self._jitter = jitter

    def next(self) -> float:
        """How many seconds to wait now."""
        pause, self._current = self._current, min(2 * self._current, self._longest)
        return pause * (0.5 + self._jitter() / 2)

    def reset(self) -> None:
        """Begin again with the shortest pause."""
        self._current = self._shortest
