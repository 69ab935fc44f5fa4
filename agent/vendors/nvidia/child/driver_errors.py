"""The errors that NVIDIA's driver reported of each card, as XIDs."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Mapping


class DriverErrors:
    """Counts XIDs by card. The thread of events counts, and the thread of samples reads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._last: dict[str, int] = {}

    def count(self, uuid: str, code: int) -> None:
        with self._lock:
            self._counts[uuid][str(code)] += 1
            self._last[uuid] = code

    def of(self, uuid: str) -> tuple[Mapping[str, int], int | None]:
        """How often each XID came for a card, and the last XID, None if there was none."""
        with self._lock:
            return dict(self._counts.get(uuid, {})), self._last.get(uuid)
