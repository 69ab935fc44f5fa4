"""The last values of each card's error counters. Only errors that come after them are faults of a card."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from agent.vendor_api.backend import Fault

from . import own_files

FILE = "counters.json"

Counters = Mapping[str, int]
#: Makes the fault of a counter that grew, from its name, its value before and its value now.
Grown = Callable[[str, int, int], Fault]


class CounterBaseline:
    """The last counters of each card.

    With a directory they are kept in a file, so that errors count that come while the process is down.
    """

    def __init__(self, directory: Path | None, grown: Grown) -> None:
        self._path = directory / FILE if directory else None
        self._grown = grown
        self._counters: dict[str, dict[str, int]] | None = None

    def new_faults(self, uuid: str, counters: Counters) -> list[Fault]:
        """Take in the counters of a card, and return a fault for each one that grew since the last call.

        A counter that fell shows that the driver was loaded again, so all that it counts now is new. The
        first counters of a card are the baseline and make no fault.
        """
        cards = self._cards()
        before = cards.get(uuid, {})
        now = {**before, **counters}
        cards[uuid] = now
        if now != before:
            self._save()
        return [
            self._grown(name, 0 if count < before[name] else before[name], count)
            for name, count in counters.items()
            if name in before and count != before[name] and count
        ]

    def _cards(self) -> dict[str, dict[str, int]]:
        if self._counters is None:
            self._counters = _read(self._path) if self._path else {}
        return self._counters

    def _save(self) -> None:
        if self._path is not None:
            with suppress(OSError):  # then the counters last for as long as this process lives
                own_files.write_since_boot(self._path, {"cards": self._counters})


def _read(path: Path) -> dict[str, dict[str, int]]:
    """The counters that were saved since the machine started. Counters of an earlier boot mean nothing."""
    cards = own_files.read_since_boot(path).get("cards")
    saved = cards.items() if isinstance(cards, dict) else ()
    return {str(uuid): _counts(counters) for uuid, counters in saved if isinstance(counters, dict)}


def _counts(counters: Mapping[Any, Any]) -> dict[str, int]:
    return {str(name): count for name, count in counters.items() if type(count) is int}
