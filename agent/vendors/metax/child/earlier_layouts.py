"""What lay on each card when it was last read: a card that cannot be read now has that still."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from agent.vendors.common import own_files

from .layouts import SgpuSlice
from .values import Sgpu

FILE = "slices.json"

Slices = tuple[SgpuSlice, ...]


class EarlierLayouts:
    """Kept in a file where there is a directory: the next process may find a card that it cannot read.

    Slices do not outlive the machine, nor does what is kept here.
    """

    def __init__(self, directory: Path | None) -> None:
        self._path = directory / FILE if directory else None
        #: None of a card that was changed and not read since.
        self._known: dict[str, Slices | None] = _read(self._path) if self._path else {}
        self._here: set[str] = set()

    def is_read(self, card: str) -> bool:
        """Whether this process has read the card since it was changed last."""
        return card in self._here

    def of(self, card: str) -> Slices | None:
        """What it had; None where that is not known."""
        return self._known.get(card)

    def is_changed(self, card: str) -> bool:
        """Whether it was changed, and not read since."""
        return self._known.get(card, ()) is None

    def may_have(self, card: str, allocation: str) -> bool:
        """Whether a slice of the allocation may lie there; none does on a card that nobody of us changed."""
        found = self._known.get(card, ())
        return found is None or any(it.allocation == allocation for it in found)

    def read(self, card: str, found: Slices) -> None:
        """It was read, and has these."""
        self._here.add(card)
        self._put(card, found)

    def changed(self, card: str) -> None:
        """It is about to have others."""
        self._here.discard(card)
        self._put(card, None)

    def _put(self, card: str, found: Slices | None) -> None:
        if card in self._known and self._known[card] == found:
            return
        self._known[card] = found
        if self._path is not None:
            cards = {
                uuid: None if its is None else [_said(it) for it in its] for uuid, its in self._known.items()
            }
            with suppress(OSError):  # then it holds for as long as this process lives
                own_files.write_since_boot(self._path, {"cards": cards}, durable=False)


def _said(it: SgpuSlice) -> list[Any]:
    its = it.sgpu
    return [its.card, its.id, its.uuid, its.minor, its.vram, its.compute, it.allocation]


def _read(path: Path) -> dict[str, Slices | None]:
    cards = own_files.read_since_boot(path).get("cards")
    try:
        return _cards(cards) if isinstance(cards, dict) else {}
    except (TypeError, ValueError):
        return {}


def _cards(said: Mapping[str, Sequence[Any] | None]) -> dict[str, Slices | None]:
    return {
        card: None if its is None else tuple(_found(card, *it) for it in its) for card, its in said.items()
    }


def _found(
    card: str, index: int, number: int, uuid: str, minor: int, vram: int, compute: int, allocation: str | None
) -> SgpuSlice:
    numbers = (int(it) for it in (minor, vram, compute))
    its = Sgpu(int(index), int(number), str(uuid), *numbers)
    return SgpuSlice(card, its, None if allocation is None else str(allocation))
