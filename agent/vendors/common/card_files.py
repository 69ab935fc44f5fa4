"""One JSON file a card, in the backend's own directory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote


@dataclass(frozen=True, slots=True)
class CardFiles:
    """The files called PREFIX, the card's uuid as quoted in URLs, and `.json`."""

    directory: Path
    prefix: str

    def path(self, card: str) -> Path:
        return self.directory / f"{self.prefix}{quote(card, safe='')}.json"

    def paths(self) -> Iterator[Path]:
        """Those that are there, in the order of their names."""
        yield from sorted(self.directory.glob(f"{self.prefix}*.json"))
