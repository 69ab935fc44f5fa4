"""How fast the lines of a watch are taken: the loop that reads them is the one that answers the kubelet."""

from __future__ import annotations

from agent.core.token_bucket import TokenBucket

#: Bytes that a short line counts as: what it costs is not its length.
LEAST = 2 * 1024


class WatchPace:
    """A burst at once, as after an outage, and beyond it a steady pace. A node's own pods stay far below."""

    def __init__(self, rate: float, burst: int) -> None:
        """Bytes a second, and bytes."""
        self._rate = rate
        self._bucket = TokenBucket(rate, burst)

    def rest(self, size: int, now: float) -> float:
        """Seconds to rest after a line of this size that was taken now."""
        return max(0.0, -self._bucket.take(max(size, LEAST), now)) / self._rate
