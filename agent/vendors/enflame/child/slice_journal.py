"""Which slices are ours: no mark can be written on one, so a file says it, one for each card.

What is about to be made is written down before, with what lay on the card then.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.vendors.common import own_files

PREFIX = "slices-"


@dataclass(frozen=True, slots=True)
class BegunSlice:
    """A slice that may be there now: whose, its profile's name, and the uuids of what lay there before.

    A slice does not survive a reboot, so what was begun before one (`boot`) is nothing.
    """

    allocation: str
    profile: str
    before: tuple[str, ...]
    boot: str = field(default_factory=own_files.boot_id)


@dataclass(frozen=True, slots=True)
class OwnSlice:
    """A slice that we made: whose, and its uuid."""

    allocation: str
    uuid: str


@dataclass(frozen=True, slots=True)
class JournalPage:
    """What is written down of a card. `switched`: we let it be sliced, so we let it be whole again."""

    card: str
    switched: bool = False
    begun: BegunSlice | None = None
    ours: tuple[OwnSlice, ...] = ()

    def allocation(self, uuid: str) -> str | None:
        """Whose a slice is; None where it is foreign."""
        return next((it.allocation for it in self.ours if it.uuid == uuid), None)

    @property
    def empty(self) -> bool:
        return not (self.switched or self.begun or self.ours)

    def names(self, allocation: str) -> bool:
        begun = self.begun is not None and self.begun.allocation == allocation
        return begun or any(it.allocation == allocation for it in self.ours)


class DrsJournal:
    """Without a directory it holds for as long as this object lives."""

    def __init__(self, directory: Path | None) -> None:
        self.directory = directory
        self._pages = {page.card: page for page in _read(directory)} if directory else {}

    def page(self, card: str) -> JournalPage:
        return self._pages.get(card) or JournalPage(card)

    def pages(self) -> Iterator[JournalPage]:
        yield from tuple(self._pages.values())

    def write(self, page: JournalPage) -> None:
        """Raises OSError: it cannot be written, and nothing is to be made."""
        if self.directory is not None and page != self.page(page.card):
            path = own_files.of_card(self.directory, PREFIX, page.card)
            if page.empty:
                own_files.remove(path)
            else:
                own_files.write(path, _said(page))
        self._pages[page.card] = page
        if page.empty:
            del self._pages[page.card]


def _read(directory: Path) -> Iterator[JournalPage]:
    """Every page that makes sense; what does not is kept for a person to see, and says nothing."""
    for path in own_files.of_cards(directory, PREFIX):
        with suppress(KeyError, TypeError, ValueError):
            page = _page(own_files.read(path))
            if own_files.of_card(directory, PREFIX, page.card) == path:
                yield page


def _said(page: JournalPage) -> dict[str, Any]:
    begun = page.begun
    return {
        "card": page.card,
        "switched": page.switched,
        "begun": begun and [begun.allocation, begun.profile, list(begun.before), begun.boot],
        "ours": [[it.allocation, it.uuid] for it in page.ours],
    }


def _page(said: Any) -> JournalPage:
    """Raises KeyError, TypeError or ValueError: it is not what we write."""
    begun, ours = said["begun"], said["ours"]
    return JournalPage(
        str(said["card"]),
        bool(said["switched"]),
        BegunSlice(str(begun[0]), str(begun[1]), tuple(map(str, begun[2])), str(begun[3])) if begun else None,
        tuple(OwnSlice(str(allocation), str(uuid)) for allocation, uuid in ours),
    )
