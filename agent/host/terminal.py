"""Prints for people: with colors on a terminal, plain elsewhere."""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from agent.vendor_api.text import printable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

#: Columns of output to a pipe: enough for one line for each row.
PIPE_WIDTH = 1000
_STYLES = {
    **dict.fromkeys(("healthy", "open", "registered", "done", "yes"), "green"),
    **dict.fromkeys(("unhealthy", "failed", "left-out", "refused", "no"), "red"),
    **dict.fromkeys(("unknown", "unavailable", "starting", "waiting", "registering", "intent"), "yellow"),
}


def show(parts: Sequence[RenderableType], stream: TextIO | None = None, width: int = PIPE_WIDTH) -> None:
    """Print the parts below each other; `width` is used for a stream that is no terminal."""
    from rich.console import Console

    stream = stream or sys.stdout
    if not stream.isatty():
        encoding = stream.encoding or "utf-8"
        stream.write(plain(parts, width).encode(encoding, "replace").decode(encoding))
        return
    console = Console(file=stream, highlight=False, emoji=False, markup=False)
    for part in parts:
        console.print(part)


def plain(parts: Sequence[RenderableType], width: int = PIPE_WIDTH) -> str:
    """The parts as plain text, without spaces at the ends of lines."""
    from rich.console import Console

    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None, highlight=False, emoji=False, markup=False)
    for part in parts:
        console.print(part)
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def show_table(title: str, rows: Sequence[Mapping[str, Any]], stream: TextIO | None = None) -> None:
    """Print rows as a table with a column for each key."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    show([table(title, keys, [[row.get(key) for key in keys] for row in rows])], stream)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    from rich import box
    from rich.table import Table

    made = Table(title=styled(title, "bold"), title_justify="left", box=box.SIMPLE, pad_edge=False)
    for column in columns:
        numbers = column in ("index", "numa", "capacity", "allocatable", "allocated", "memory")
        made.add_column(styled(column), justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        made.add_row(*(_cell(value) for value in row))
    if not rows:
        made.add_row(styled("none", "dim"))
    return made


def _cell(value: object) -> Text:
    if isinstance(value, bool):
        value = "yes" if value else "no"
    text = "-" if value is None or value == "" else str(value)
    return styled(text, _STYLES.get(text, ""))


def styled(text: str, style: str = "") -> Text:
    """A Text, safe for words of other programs: no markup is read, control characters are replaced."""
    from rich.text import Text

    return Text(printable(text), style=style)
