"""The matrix that `nvidia-smi topo -m` prints, as cards and their links. Pure.

The words are those of the legend below the matrix; SOC is an older word for the path between sockets. Columns
and rows of network cards, the affinities, the legend and the codes that underline the header are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from agent.vendor_api.agent import Device, Distance, Link
from agent.vendor_api.text import shorten

#: More cards than any machine shows.
MAX_CARDS = 128
_PATHS: Mapping[str, Distance] = {
    "PIX": Distance.SWITCH,
    "PXB": Distance.SWITCHES,
    "PHB": Distance.HOST_BRIDGE,
    "NODE": Distance.NUMA_NODE,
    "SYS": Distance.SYSTEM,
    "SOC": Distance.SYSTEM,
}
_LANES = re.compile(r"NV([0-9]{1,3})")
_CARD = re.compile(r"GPU([0-9]{1,4})")
_TERMINAL_CODE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


@dataclass(frozen=True, slots=True)
class _Word:
    """A word of the text and its place; line and column count from 1."""

    text: str
    line: int
    column: int

    @property
    def card(self) -> int | None:
        """The index of the card that the word names; None for other words."""
        found = _CARD.fullmatch(self.text)
        return int(found[1]) if found else None

    def wrong(self, why: str) -> ValueError:
        return ValueError(f"line {self.line}, column {self.column}: '{shorten(self.text, 40)}' {why}")


def cards_of_matrix(text: str) -> tuple[Device, ...]:
    """The cards of the matrix in the order of its header, each with a link to each other card.

    A card has its index as minor number, and a uuid made of the index. Where the matrix says NVLink it does
    not say the path: such a link has lanes, and the nearest path.

    Raises:
        ValueError: The text is no such matrix. The sentence names line and column.
    """
    lines = _lines(text)
    header = next((words for words in lines if words and words[0].card is not None), None)
    if header is None:
        raise ValueError(
            "line 1, column 1: no line begins with GPU0; the output of nvidia-smi topo -m is needed"
        )
    places = _places(header)
    rows: dict[int, tuple[Link, ...]] = {}
    for words in lines:
        if not words or words[0].text.startswith("Legend"):
            break
        card = words[0].card
        if card is None:
            continue
        if card not in places:
            raise words[0].wrong(f"is no column of line {header[0].line}")
        if card in rows:
            raise words[0].wrong("has a second row")
        rows[card] = tuple(_links(words, card, places))
    for card, place in places.items():
        if card not in rows:
            raise header[place].wrong("has no row")
    _check_symmetry(header, places, rows)
    return tuple(Device(_uuid(card), card, card, links=rows[card]) for card in places)


def _lines(text: str) -> Iterator[Sequence[_Word]]:
    """The words of each line. Codes of the terminal count for columns, and are no words."""
    for number, line in enumerate(text.split("\n"), start=1):
        plain = _TERMINAL_CODE.sub(lambda code: " " * len(code[0]), line)
        yield [_Word(it[0], number, it.start() + 1) for it in re.finditer(r"\S+", plain)]


def _places(header: Sequence[_Word]) -> Mapping[int, int]:
    """Card to the place of its column, for the cards before the affinities."""
    places: dict[int, int] = {}
    for place, word in enumerate(header):
        card = word.card
        if word.text == "CPU":
            break
        if card is None:
            continue
        if card in places:
            raise word.wrong("has a second column")
        if len(places) == MAX_CARDS:
            raise word.wrong(f"is one card more than {MAX_CARDS}")
        places[card] = place
    return places


def _links(words: Sequence[_Word], card: int, places: Mapping[int, int]) -> Iterator[Link]:
    name, *cells = words
    for peer, place in places.items():
        if place >= len(cells):
            raise words[-1].wrong(f"is the last word, and GPU{peer} needs a word in the row of {name.text}")
        cell = cells[place]
        if (cell.text in ("X", "x")) != (peer == card):
            raise cell.wrong(f"stands for GPU{card} and GPU{peer}; X stands for a card and itself alone")
        if peer != card:
            yield _link(cell, peer)


def _link(cell: _Word, peer: int) -> Link:
    if cell.text in _PATHS:
        return Link(_uuid(peer), 0, _PATHS[cell.text])
    lanes = _LANES.fullmatch(cell.text)
    if lanes is None or not int(lanes[1]):
        raise cell.wrong(f"is none of X, NV#, {', '.join(_PATHS)}")
    return Link(_uuid(peer), int(lanes[1]), Distance.BOARD)


def _check_symmetry(
    header: Sequence[_Word], places: Mapping[int, int], rows: Mapping[int, Sequence[Link]]
) -> None:
    """Refuse a pair with two different words."""
    links = {(_uuid(card), it.peer): (it.lanes, it.distance) for card, its in rows.items() for it in its}
    for card in places:
        for peer in places:
            pair = _uuid(card), _uuid(peer)
            if card != peer and links[pair] != links[pair[::-1]]:
                why = f"and GPU{peer} have different words in their two rows"
                raise header[places[card]].wrong(why)


def _uuid(card: int) -> str:
    """As long as most are."""
    return f"GPU-00000000-0000-4000-8000-{card:012x}"
