"""A table that fits the columns of a screen: columns are left out and texts are cut, and no cell wraps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.host import terminal

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

#: What is between two columns, and what is at the two ends of a row, in columns of the screen.
_BETWEEN, _ENDS = 3, 2


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column and what becomes of it on a narrow screen."""

    title: str
    #: To how many columns of the screen a long text may be cut; None: the text is shown whole.
    shortest: int | None = None
    #: Columns with a higher number are left out first; 0: the column stays.
    dispensable: int = 0


def fitted_table(
    title: str, columns: Sequence[TableColumn], rows: Sequence[Sequence[Text]], width: int
) -> Table:
    """The table in `width` columns of the screen."""
    from rich import box
    from rich.table import Table

    made = Table(
        title=terminal.styled(title, "bold"),
        title_justify="left",
        box=box.SIMPLE,
        pad_edge=False,
        padding=(0, 1),
    )
    shown = rows or [
        [terminal.styled("none" if number == 0 else "", "dim") for number in range(len(columns))]
    ]
    kept = fitting(columns, [[cell.cell_len for cell in row] for row in shown], width)
    for number, wide in kept.items():
        heading = terminal.styled(columns[number].title)
        made.add_column(heading, width=wide, no_wrap=True, overflow="ellipsis")
    for row in shown:
        made.add_row(*(row[number] for number in kept))
    return made


def fitting(columns: Sequence[TableColumn], rows: Sequence[Sequence[int]], width: int) -> dict[int, int]:
    """The numbers of the columns that are kept, each with its width; `rows` are the widths of the cells."""
    whole = [max(len(it.title), *(row[number] for row in rows)) for number, it in enumerate(columns)]
    least = [
        most if column.shortest is None else min(most, max(column.shortest, len(column.title)))
        for most, column in zip(whole, columns, strict=True)
    ]
    kept = list(range(len(columns)))
    for number in sorted(kept, key=lambda number: columns[number].dispensable, reverse=True):
        if columns[number].dispensable and _taken(least[it] for it in kept) > width:
            kept.remove(number)
    widths = {number: whole[number] for number in kept}
    _cut(widths, {number: least[number] for number in kept}, width)
    _cut(widths, dict.fromkeys(kept, 1), width)
    return widths


def _taken(widths: Iterable[int]) -> int:
    each = [*widths]
    return sum(each) + _BETWEEN * (len(each) - 1) + _ENDS


def _cut(widths: dict[int, int], least: Mapping[int, int], width: int) -> None:
    """Take from the widest column that may lose something, until all columns fit or none may."""
    while _taken(widths.values()) > width:
        longer = [number for number in widths if widths[number] > least[number]]
        if not longer:
            return
        widths[max(longer, key=widths.__getitem__)] -= 1
