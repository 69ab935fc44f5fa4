"""Prints the pictures of `top`: live on a terminal, one elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from agent.cli.top_picture import Picture, take
from agent.cli.top_tables import render
from agent.core.errors import AgentError
from agent.host import terminal

#: The full and the empty part of a bar, for a stream that has no other letters.
_ASCII = ("#", ".")


def show_once(socket: Path, sort: str, stream: TextIO | None = None) -> None:
    """Print one picture: with colors on a terminal, plain elsewhere.

    Raises:
        CannotAsk: No agent answers.
    """
    stream = stream or sys.stdout
    width = _width(stream) if stream.isatty() else terminal.PIPE_WIDTH
    terminal.show(render(take(socket), width, sort, _blocks(stream)), stream)


def watch(
    socket: Path,
    sort: str,
    interval: float,
    stream: TextIO | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Show pictures until ^C; False where the stream cannot show one over the other.

    An agent that goes away leaves its last picture, with the reason.

    Raises:
        CannotAsk: No agent answers at the beginning.
    """
    from rich.console import Console, Group
    from rich.live import Live

    stream = stream or sys.stdout
    console = Console(file=stream, highlight=False, emoji=False, markup=False)
    if not console.is_terminal or console.is_dumb_terminal:
        return False

    def shown(picture: Picture) -> Group:
        return Group(*render(picture, console.width, sort, _blocks(stream)))

    picture = take(socket)
    try:
        with Live(shown(picture), console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(shown(picture), refresh=True)
                sleep(interval)
                picture = _next(socket, picture)
    except KeyboardInterrupt:
        return True


def _next(socket: Path, last: Picture) -> Picture:
    try:
        return take(socket)
    except AgentError as gone:
        return Picture(last.document, last.usage, (str(gone),))


def _width(stream: TextIO) -> int:
    from rich.console import Console

    return Console(file=stream).width


def _blocks(stream: TextIO) -> tuple[str, str]:
    blocks = ("█", "░")
    try:
        "".join(blocks).encode(stream.encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return _ASCII
    return blocks
