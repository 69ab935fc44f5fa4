"""Records what a program prints in a terminal: an asciicast v2, and an SVG that plays it.

A recording changes when what is printed changes, and for little else: durations are left out, random IDs are
all the same, pauses are whole half seconds.
"""

from __future__ import annotations

import argparse
import codecs
import json
import os
import pty
import re
import shlex
import subprocess
import sys
import termios
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from itertools import pairwise
from pathlib import Path
from xml.sax.saxutils import escape

from rich.ansi import AnsiDecoder
from rich.console import Console
from rich.terminal_theme import SVG_EXPORT_THEME as THEME

COLUMNS, ROWS = 100, 24
PAUSE = 0.5
#: Seconds that the end stays before the picture begins anew.
REST = 6.0
LEVELLED = (
    (re.compile(r",? (?:in \d+\.\d+ s|\(\d+\.\d+ s\))"), ""),
    (re.compile(r"\b(allocation=)[0-9a-f]{16}\b"), r"\g<1>0123456789abcdef"),
    (re.compile(r"(--state-dir )\S+"), r"\g<1>/tmp/xpu-0123abcd/state"),
)
#: Pixels: a letter and a line as rich.console.Console.export_svg sets them, and the frame around them.
LETTER, LINE = 12.2, 24.4
SIDE, TOP = 12, 44


@dataclass(frozen=True, slots=True)
class Piece:
    """Whole lines, ended by CR LF as a terminal has them; `at` is in seconds since the start."""

    at: float
    text: str


def record(command: Sequence[str]) -> list[Piece]:
    """Run the program in a terminal of our size.

    Raises:
        SystemExit: It failed, and nothing is to be kept of it.
    """
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (ROWS, COLUMNS))
    plain = {key: it for key, it in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR")}
    # rich takes the width of a terminal from here first, where it is said.
    environment = {**plain, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(ROWS)}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as program:
        os.close(theirs)
        pieces = list(steady(lines(printed(ours))))
    os.close(ours)
    if program.returncode:
        said = "".join(it.text for it in pieces).replace("\r", "")
        sys.exit(f"{said}\n{shlex.join(command)}: exit status {program.returncode}; nothing is recorded")
    return pieces


def printed(terminal: int) -> Iterator[Piece]:
    """What comes, as it comes, until nobody holds the terminal's other end any more."""
    began = time.monotonic()
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    while True:
        try:
            chunk = os.read(terminal, 1 << 16)
        except OSError:  # Linux ends a terminal with EIO
            return
        if not chunk:
            return
        yield Piece(time.monotonic() - began, decoder.decode(chunk))


def lines(chunks: Iterable[Piece]) -> Iterator[Piece]:
    """Whole lines, for what is levelled may come in two halves."""
    rest = ""
    for chunk in chunks:
        whole, end, rest = (rest + chunk.text).rpartition("\n")
        if end:
            yield Piece(chunk.at, levelled(whole + end))
    if rest:
        yield Piece(chunk.at, levelled(f"{rest}\r\n"))


def levelled(text: str) -> str:
    for pattern, by in LEVELLED:
        text = pattern.sub(by, text)
    return text


def steady(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """The pieces with pauses of whole half seconds; those without one between them are one piece."""
    now, before, text = 0.0, 0.0, ""
    for piece in pieces:
        pause = round((piece.at - before) / PAUSE) * PAUSE
        before = piece.at
        if pause and text:
            yield Piece(now, text)
            text = ""
        now += pause
        text += piece.text
    if text:
        yield Piece(now, text)


def cast(pieces: Sequence[Piece], title: str) -> str:
    """The recording as asciinema plays it (docs.asciinema.org, "asciicast v2")."""
    header = {"version": 2, "width": COLUMNS, "height": ROWS, "title": title}
    return "".join(f"{json.dumps(it)}\n" for it in (header, *([it.at, "o", it.text] for it in pieces)))


def drawn(pieces: Sequence[Piece]) -> tuple[str, str, list[tuple[float, int]]]:
    """CSS of the colours, all rows below each other as SVG, and how many are there from which second on."""
    screen = StringIO()
    console = Console(file=screen, width=COLUMNS, record=True, color_system="truecolor", force_terminal=True)
    decoder = AnsiDecoder()
    rows = [(0.0, 0)]
    for piece in pieces:
        for line in piece.text.splitlines():
            console.print(decoder.decode_line(line), overflow="fold")
        rows.append((piece.at, screen.getvalue().count("\n")))
    svg = console.export_svg(code_format="{styles}\0{matrix}", title="", unique_id="t")
    # The picture's frame clips them all, and the ends of lines need no letters.
    styles, letters = re.sub(r' clip-path="[^"]*"', "", svg).split("\0")
    return styles, "\n".join(re.findall(r"<text[^>]*>[^<\n]+</text>", letters)), rows


def picture(pieces: Sequence[Piece], title: str) -> str:
    """The recording as an SVG that moves by CSS alone; where nothing may move it shows the end.

    A cover hides the rows that are not printed yet, and when the screen is full they move up.
    """
    styles, letters, rows = drawn(pieces)
    seconds = pieces[-1].at + REST
    width, height = round(COLUMNS * LETTER), round(ROWS * LINE)
    covers = [(at, min(count, ROWS) * LINE) for at, count in rows]
    lifts = [(at, -max(0, count - ROWS) * LINE) for at, count in rows]
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {width + 2 * SIDE} {height + TOP + SIDE}">
<title>{escape(title)}</title>
<style>
text {{ font: 20px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace }}
{styles}
.cover {{ animation: cover {seconds:g}s step-end infinite }}
.lift {{ animation: lift {seconds:g}s step-end infinite }}
@keyframes cover {{ {moves(covers, seconds)} }}
@keyframes lift {{ {moves(lifts, seconds)} }}
@media (prefers-reduced-motion: reduce) {{ .cover, .lift {{ animation: none }} }}
</style>
<clipPath id="screen"><rect width="{width}" height="{height}"/></clipPath>
<rect width="100%" height="100%" rx="8" fill="{THEME.background_color.hex}"/>
<g transform="translate(24 22)">
<circle r="7" fill="#ff5f57"/><circle cx="22" r="7" fill="#febc2e"/><circle cx="44" r="7" fill="#28c840"/>
</g>
<text x="50%" y="29" text-anchor="middle" fill="{THEME.foreground_color.hex}">{escape(title)}</text>
<g transform="translate({SIDE} {TOP})" clip-path="url(#screen)">
<g class="lift" transform="translate(0 {lifts[-1][1]:g})">
{letters}
</g>
<rect class="cover" transform="translate(0 {covers[-1][1]:g})" width="{width}" height="{height}"
 fill="{THEME.background_color.hex}"/>
</g>
</svg>
"""


def moves(places: Sequence[tuple[float, float]], seconds: float) -> str:
    """Keyframes from (second, pixels down)."""
    news = [here for before, here in pairwise([(0.0, None), *places]) if here[1] != before[1]]
    return " ".join(f"{100 * at / seconds:.4g}% {{ transform: translateY({it:g}px) }}" for at, it in news)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("place", type=Path, help="PLACE.cast and PLACE.svg are written")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the program and its arguments")
    args = parser.parse_args()
    if not args.command:
        parser.error("a program to record is needed")
    title = shlex.join([Path(args.command[0]).name, *args.command[1:]])
    pieces = record(args.command)
    if not pieces:
        sys.exit(f"{title}: printed nothing; nothing is recorded")
    for suffix, text in ((".cast", cast(pieces, title)), (".svg", picture(pieces, title))):
        args.place.with_name(args.place.name + suffix).write_text(text)


if __name__ == "__main__":
    main()
