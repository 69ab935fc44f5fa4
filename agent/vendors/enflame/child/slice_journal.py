"""The journal of the slices that this backend made, with one file for each card.

The hardware has no place for a mark on a slice, so the journal alone tells own slices from foreign ones. A
slice is written down before it is made, together with the slices that the card has at that time.
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
    """A slice that was about to be made and may exist now.

    `profile` is the name of its profile, `before` are the uuids of the card's slices at that time. A slice
    does not survive a reboot, so an entry of another `boot` means nothing.
    """

    allocation: str
    profile: str
    before: tuple[str, ...]
    boot: str = field(default_factory=own_files.boot_id)


@dataclass(frozen=True, slots=True)
class OwnSlice:
    """A slice that this backend made for an allocation."""

    allocation: str
    uuid: str


@dataclass(frozen=True, slots=True)
class JournalPage:
    """The journal of one card. `switched`: this backend turned DRS on there, so it turns DRS off again."""

    card: str
    switched: bool = False
    begun: BegunSlice | None = None
    own: tuple[OwnSlice, ...] = ()

    def allocation(self, uuid: str) -> str | None:
        """The allocation of a slice; None if the slice is foreign."""
        return next((it.allocation for it in self.own if it.uuid == uuid), None)

    @property
    def empty(self) -> bool:
        return not (self.switched or self.begun or self.own)

    def names(self, allocation: str) -> bool:
        """Whether the card has, or may have, a slice of this allocation."""
        begun = self.begun is not None and self.begun.allocation == allocation
        return begun or any(it.allocation == allocation for it in self.own)


class DrsJournal:
    """The pages of all cards. Without a directory they last as long as this object."""

    def __init__(self, directory: Path | None) -> None:
        self.directory = directory
        self._pages = {page.card: page for page in _read(directory)} if directory else {}

    def page(self, card: str) -> JournalPage:
        return self._pages.get(card) or JournalPage(card)

    def pages(self) -> Iterator[JournalPage]:
        yield from tuple(self._pages.values())

    def write(self, page: JournalPage) -> None:
        """Replace the page of a card. Raises OSError: the page is not written, so no slice may be made."""
        if self.directory is not None and page != self.page(page.card):
            path = own_files.of_card(self.directory, PREFIX, page.card)
            if page.empty:
                own_files.remove(path)
            else:
                own_files.write(path, _json(page))
        self._pages[page.card] = page
        if page.empty:
            del self._pages[page.card]


def _read(directory: Path) -> Iterator[JournalPage]:
    """The valid pages. A file without a valid page is ignored and left there for people to read."""
    for path in own_files.of_cards(directory, PREFIX):
        with suppress(KeyError, TypeError, ValueError):
            page = _page(own_files.read(path))
            if own_files.of_card(directory, PREFIX, page.card) == path:
                yield page


def _json(page: JournalPage) -> dict[str, Any]:
    begun = page.begun
    return {
        "card": page.card,
        "switched": page.switched,
        "begun": begun and [begun.allocation, begun.profile, list(begun.before), begun.boot],
        "ours": [[it.allocation, it.uuid] for it in page.own],
    }


def _page(raw: Any) -> JournalPage:
    """Raises KeyError, TypeError or ValueError: this is not what `_json` writes."""
    begun, own = raw["begun"], raw["ours"]
    return JournalPage(
        str(raw["card"]),
        bool(raw["switched"]),
        BegunSlice(str(begun[0]), str(begun[1]), tuple(map(str, begun[2])), str(begun[3])) if begun else None,
        tuple(OwnSlice(str(allocation), str(uuid)) for allocation, uuid in own),
    )
