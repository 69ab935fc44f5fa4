"""What each card's error counters said last: only what is new counts against a card."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from agent.vendor_api.backend import Fault

from . import own_files

FILE = "counters.json"

Counters = Mapping[str, int]
#: The fault of a counter of this name that said the one number and says the other now.
Grown = Callable[[str, int, int], Fault]


class CounterBaseline:
    """Kept in a file where there is a directory, so that errors count that came while nobody looked."""

    def __init__(self, directory: Path | None, grown: Grown) -> None:
        self._path = directory / FILE if directory else None
        self._grown = grown
        self._known: dict[str, dict[str, int]] | None = None

    def new(self, uuid: str, counters: Counters) -> list[Fault]:
        """The faults of what counts more than it did; asked again it tells nothing.

        A smaller count says that the driver was loaded anew: what it has is new since then. What a card
        counts when it is seen first is nobody's news.
        """
        known = self._cards()
        before = known.get(uuid, {})
        now = {**before, **counters}
        known[uuid] = now
        if now != before:
            self._save()
        return [
            self._grown(name, 0 if count < before[name] else before[name], count)
            for name, count in counters.items()
            if name in before and count != before[name] and count
        ]

    def _cards(self) -> dict[str, dict[str, int]]:
        if self._known is None:
            self._known = _read(self._path) if self._path else {}
        return self._known

    def _save(self) -> None:
        if self._path is not None:
            with suppress(OSError):  # then it holds for as long as this process lives
                own_files.write_since_boot(self._path, {"cards": self._known})


def _read(path: Path) -> dict[str, dict[str, int]]:
    """What was saved since the machine was started; counters begin anew with it."""
    cards = own_files.read_since_boot(path).get("cards")
    its = cards.items() if isinstance(cards, dict) else ()
    return {str(uuid): _counts(counters) for uuid, counters in its if isinstance(counters, dict)}


def _counts(said: Mapping[Any, Any]) -> dict[str, int]:
    return {str(name): count for name, count in said.items() if type(count) is int}
