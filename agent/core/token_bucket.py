"""A rate limit that allows a burst."""

from __future__ import annotations


class TokenBucket:
    """Holds up to `burst` tokens and gains `rate` tokens a second. More can be taken; the rest is owed."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._tokens = burst
        self._filled = 0.0

    def left(self, now: float) -> float:
        """How many tokens are left at `now`, in seconds of a monotonic clock."""
        self._tokens = min(self._tokens + (now - self._filled) * self._rate, self._burst)
        self._filled = now
        return self._tokens

    def take(self, count: float, now: float) -> float:
        """Take tokens and return how many are left; a negative number is owed."""
        self._tokens = self.left(now) - count
        return self._tokens
