"""The slices that each card had when it was last read, for cards that cannot be read now."""

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
    """The slices of each card at the last reading, until the machine restarts, as slices do.

    With a directory they are kept in a file: the next process may find a card that it cannot read.
    """

    def __init__(self, directory: Path | None) -> None:
        self._path = directory / FILE if directory else None
        #: Slices by uuid of the card. None: the card was changed and not read since.
        self._known: dict[str, Slices | None] = _load(self._path) if self._path else {}
        self._read_cards: set[str] = set()

    def is_read(self, card: str) -> bool:
        """Whether this process has read the card since the last change of its slices."""
        return card in self._read_cards

    def of(self, card: str) -> Slices | None:
        """The slices at the last reading; None if the card was never read, or changed since."""
        return self._known.get(card)

    def is_changed(self, card: str) -> bool:
        """Whether the slices were changed, and not read since."""
        return self._known.get(card, ()) is None

    def may_have(self, card: str, allocation: str) -> bool:
        """Whether the card may have a slice of the allocation. A card that was never changed has none."""
        slices = self._known.get(card, ())
        return slices is None or any(it.allocation == allocation for it in slices)

    def read(self, card: str, slices: Slices) -> None:
        """Keep the slices that were just read."""
        self._read_cards.add(card)
        self._put(card, slices)

    def changed(self, card: str) -> None:
        """Note that the slices of the card are about to change, until the next `read`."""
        self._read_cards.discard(card)
        self._put(card, None)

    def _put(self, card: str, slices: Slices | None) -> None:
        if card in self._known and self._known[card] == slices:
            return
        self._known[card] = slices
        if self._path is not None:
            known = self._known.items()
            cards = {uuid: None if slices is None else list(map(_json, slices)) for uuid, slices in known}
            with suppress(OSError):  # then the slices are known for as long as this process lives
                own_files.write_since_boot(self._path, {"cards": cards}, durable=False)


def _json(part: SgpuSlice) -> list[Any]:
    """A slice as JSON list: the parameters of `_slice` after `card`, in their order."""
    sgpu = part.sgpu
    return [sgpu.card, sgpu.id, sgpu.uuid, sgpu.minor, sgpu.vram, sgpu.compute, part.allocation]


def _load(path: Path) -> dict[str, Slices | None]:
    cards = own_files.read_since_boot(path).get("cards")
    try:
        return _cards(cards) if isinstance(cards, dict) else {}
    except (TypeError, ValueError):
        return {}


def _cards(raw: Mapping[str, Sequence[Any] | None]) -> dict[str, Slices | None]:
    return {
        card: None if slices is None else tuple(_slice(card, *it) for it in slices)
        for card, slices in raw.items()
    }


def _slice(
    card: str, index: int, number: int, uuid: str, minor: int, vram: int, compute: int, allocation: str | None
) -> SgpuSlice:
    sgpu = Sgpu(int(index), int(number), str(uuid), int(minor), int(vram), int(compute))
    return SgpuSlice(card, sgpu, None if allocation is None else str(allocation))
