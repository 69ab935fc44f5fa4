"""A rate limit that allows a burst."""

from __future__ import annotations


class TokenBucket:
    """`burst` tokens at once, and `rate` tokens a second after them. Tokens beyond these are owed."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._tokens = burst
        self._filled = 0.0

    def left(self, now: float) -> float:
        """How many tokens there are at this time, in seconds of a clock that never goes back."""
        self._tokens = min(self._tokens + (now - self._filled) * self._rate, self._burst)
        self._filled = now
        return self._tokens

    def take(self, count: float, now: float) -> float:
        """Take tokens; returns how many are left, below zero where some are owed."""
        self._tokens = self.left(now) - count
        return self._tokens
