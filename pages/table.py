"""A table of Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Its lines; a bar within a cell is escaped."""
    yield _row(head)
    yield "|" + "---|" * len(head)
    yield from map(_row, rows)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def code(text: str) -> str:
    return f"`{text}`"
