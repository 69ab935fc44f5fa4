"""Limits how fast lines of a watch are taken, because the same event loop answers the kubelet."""

from __future__ import annotations

from agent.core.token_bucket import TokenBucket

#: Bytes that a short line counts as, because its cost is not its length.
LEAST = 2 * 1024


class WatchPace:
    """Allows a burst, as after an outage, and then a steady rate. A node's own pods stay far below."""

    def __init__(self, rate: float, burst: int) -> None:
        """`rate` in bytes a second, `burst` in bytes."""
        self._rate = rate
        self._bucket = TokenBucket(rate, burst)

    def rest(self, size: int, now: float) -> float:
        """Seconds to pause after a line of `size` bytes taken at `now`."""
        return max(0.0, -self._bucket.take(max(size, LEAST), now)) / self._rate
