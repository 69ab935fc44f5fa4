"""The journal of slices that are about to be made. A new slice has no mark until its alias is set."""

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
    """A slice that was about to be made and may exist now. `memory` in MiB, `compute` in percent.

    `before` are number and uuid of each slice that the card had at that time.
    """

    card: str
    allocation: str
    memory: int
    compute: int
    before: tuple[tuple[int, str], ...]


class SgpuJournal:
    """Has at most one entry for each card. Without a directory nothing is kept."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory

    def write(self, entry: JournalEntry) -> None:
        """Write an entry. Raises OSError: it is not written, so no slice may be made."""
        if self._directory is not None:
            own_files.write_since_boot(own_files.of_card(self._directory, PREFIX, entry.card), _json(entry))

    def remove(self, card: str) -> None:
        """Remove the entry of a card. A file that cannot be removed does no harm: its end is made twice."""
        if self._directory is not None:
            _remove(own_files.of_card(self._directory, PREFIX, card))

    def entries(self) -> Iterator[JournalEntry]:
        """The valid entries. Entries of another boot of the machine, and invalid files, are removed."""
        if self._directory is None:
            return
        for path in own_files.of_cards(self._directory, PREFIX):
            entry = _entry(own_files.read_since_boot(path))
            if entry is None or own_files.of_card(self._directory, PREFIX, entry.card) != path:
                _remove(path)
            else:
                yield entry


def _remove(path: Path) -> None:
    with suppress(OSError):
        own_files.remove(path)


def _json(entry: JournalEntry) -> dict[str, Any]:
    return {
        "card": entry.card,
        "allocation": entry.allocation,
        "memory": entry.memory,
        "compute": entry.compute,
        "before": [list(number_and_uuid) for number_and_uuid in entry.before],
    }


def _entry(raw: dict[str, Any]) -> JournalEntry | None:
    try:
        before = tuple((int(number), str(uuid)) for number, uuid in raw["before"])
        numbers = int(raw["memory"]), int(raw["compute"])
        return JournalEntry(str(raw["card"]), str(raw["allocation"]), *numbers, before)
    except (KeyError, TypeError, ValueError):
        return None
