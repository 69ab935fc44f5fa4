"""What is about to be made on a card, written down before: a slice bears no mark while it is made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.vendors.common import own_files

PREFIX = "create-"


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A slice that may be there now: its card, MiB, percent, and whose it is.

    `before` are the slices that were there, by number and uuid.
    """

    card: str
    allocation: str
    memory: int
    compute: int
    before: tuple[tuple[int, str], ...]


class SgpuJournal:
    """One entry for each card at most. Without a directory nothing is written down."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory

    def write(self, entry: JournalEntry) -> None:
        """Raises OSError: it cannot be written, and nothing is to be made."""
        if self._directory is not None:
            own_files.write_since_boot(own_files.of_card(self._directory, PREFIX, entry.card), _said(entry))

    def remove(self, card: str) -> None:
        """Cross it out. An entry that cannot be removed is only ended once more by whoever finds it."""
        if self._directory is not None:
            _removed(own_files.of_card(self._directory, PREFIX, card))

    def entries(self) -> Iterator[JournalEntry]:
        """What was about to be made. One of another start of the machine, or that makes no sense, goes."""
        if self._directory is None:
            return
        for path in own_files.of_cards(self._directory, PREFIX):
            entry = _entry(own_files.read_since_boot(path))
            if entry is None or own_files.of_card(self._directory, PREFIX, entry.card) != path:
                _removed(path)
            else:
                yield entry


def _removed(path: Path) -> None:
    with suppress(OSError):
        own_files.remove(path)


def _said(entry: JournalEntry) -> dict[str, Any]:
    return {
        "card": entry.card,
        "allocation": entry.allocation,
        "memory": entry.memory,
        "compute": entry.compute,
        "before": [list(it) for it in entry.before],
    }


def _entry(said: dict[str, Any]) -> JournalEntry | None:
    try:
        before = tuple((int(number), str(uuid)) for number, uuid in said["before"])
        numbers = int(said["memory"]), int(said["compute"])
        return JournalEntry(str(said["card"]), str(said["allocation"]), *numbers, before)
    except (KeyError, TypeError, ValueError):
        return None
