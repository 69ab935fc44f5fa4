"""The recording of the demo: made by a script from what a program prints, and of today's demo."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from pages.record import Piece, lines, steady

ROOT = Path(__file__).parent.parent
KEPT = ROOT / "docs/images/demo"
SVG = "{http://www.w3.org/2000/svg}"
ROWS, LINE = 24, 24.4


def record(place: Path, *command: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "pages.record", str(place), sys.executable, *command]
    return subprocess.run(words, capture_output=True, text=True, cwd=ROOT, timeout=150, check=False)


def events(place: Path) -> list[tuple[float, str]]:
    _, *told = map(json.loads, place.with_suffix(".cast").read_text().splitlines())
    return [(at, text) for at, _, text in told]


def printed(place: Path) -> str:
    return "".join(text for _, text in events(place))


def drawn(place: Path) -> list[str]:
    """The picture's lines that are not empty, from top to bottom."""
    rows: dict[float, str] = {}
    lift = ElementTree.parse(place.with_suffix(".svg")).find(f".//{SVG}g[@class='lift']")
    assert lift is not None
    for text in lift.iter(f"{SVG}text"):
        y = float(text.attrib["y"])
        rows[y] = rows.get(y, "") + (text.text or "").replace("\N{NO-BREAK SPACE}", " ")
    return [rows[y] for y in sorted(rows)]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "short"


def test_a_recording_has_what_the_program_printed_and_in_which_colour(place: Path) -> None:
    done = record(place, "-c", r"print('\033[32mfine\033[0m & <well>'); print('  the end')")

    assert done.returncode == 0, done.stderr
    assert printed(place) == "\033[32mfine\033[0m & <well>\r\n  the end\r\n"
    assert drawn(place) == ["fine & <well>", "  the end"]


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        ("   holds (0.43 s)", "   holds"),
        ("Every step held, in 15.2 s.", "Every step held."),
        ("an xpu-agent.io/allocation=4ab4266fe453e314", "an xpu-agent.io/allocation=0123456789abcdef"),
        ("top --state-dir /var/tmp/xpu-k2_a/state", "top --state-dir /tmp/xpu-0123abcd/state"),
        ("2 of 2 allocatable (all)", "2 of 2 allocatable (all)"),
    ],
)
def test_what_differs_each_time_is_levelled_also_where_it_comes_in_halves(told: str, kept: str) -> None:
    for cut in range(len(told)):
        halves = [Piece(0.0, told[:cut]), Piece(0.1, f"{told[cut:]}\r\n")]

        assert [it.text for it in lines(halves)] == [f"{kept}\r\n"]


def test_pauses_are_whole_half_seconds_and_without_one_it_is_one_piece() -> None:
    noisy = [Piece(0.1, "a"), Piece(0.2, "b"), Piece(0.81, "c"), Piece(2.2, "d"), Piece(2.3, "e")]

    assert list(steady(noisy)) == [Piece(0.0, "ab"), Piece(0.5, "c"), Piece(2.0, "de")]


@pytest.mark.parametrize(("rows", "lifted"), [(3, 0), (ROWS, 0), (ROWS + 6, 6)])
def test_where_nothing_moves_the_picture_shows_the_end(place: Path, rows: int, lifted: int) -> None:
    assert record(place, "-c", f"for it in range({rows}): print('line', it)").returncode == 0

    svg = ElementTree.parse(place.with_suffix(".svg"))
    moved = {
        it.get("class"): it.attrib["transform"] for it in svg.iter() if it.get("class") in ("lift", "cover")
    }
    assert moved == {
        "lift": f"translate(0 {-lifted * LINE:g})",
        "cover": f"translate(0 {(rows - lifted) * LINE:g})",
    }


def test_of_a_program_that_fails_nothing_is_recorded(place: Path) -> None:
    done = record(place, "-c", "print('so far', flush=True); raise SystemExit(3)")

    assert done.returncode == 1
    assert "so far" in done.stderr
    assert "exit status 3; nothing is recorded" in done.stderr
    assert list(place.parent.iterdir()) == []


def test_the_kept_recording_is_what_the_demo_prints_today(tmp_path: Path) -> None:
    done = record(tmp_path / "demo", "-m", "agent", "demo", "--fast")

    assert done.returncode == 0, done.stderr
    assert printed(KEPT) == printed(tmp_path / "demo"), "the demo prints something else now: make recording"
    assert "XPU_VISIBLE_DEVICES=SIM-" in printed(KEPT), "it shows what a pod was given"
    assert "Every step held" in printed(KEPT)


def test_the_kept_picture_has_the_lines_of_the_kept_recording() -> None:
    plain = re.sub(r"\033\[[0-9;]*m", "", printed(KEPT))

    assert drawn(KEPT) == [line for line in plain.splitlines() if line]


def test_the_kept_picture_needs_nothing_from_elsewhere() -> None:
    """GitHub shows pictures under a policy that lets them load nothing and run no script."""
    svg = KEPT.with_suffix(".svg").read_text()

    assert re.findall(r"\w+://[^\"' )]*", svg) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"<script|@import|href|url\((?!#)", svg)


def test_the_readme_shows_the_picture_and_says_what_is_in_it() -> None:
    said = re.search(r"!\[([^\]]+)\]\(docs/images/demo\.svg\)", (ROOT / "README.md").read_text())

    assert said is not None
    assert len(said[1].split()) > 10
