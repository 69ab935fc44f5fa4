"""How rows are shown."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from bench import report
from bench.rows import NO_SLACK, Bound, Figure, Row, Runs


def shown(rows: list[Row], rival: str = "") -> str:
    text = io.StringIO()
    report.show(Console(file=text, width=300), rows, rival)
    return text.getvalue()


def test_a_row_shows_all_figures_and_what_sets_the_target() -> None:
    row = Figure("start", "ms", bound=Bound("spike", times=2.3)).row(
        Runs([300.0], [100.0], [12.0]), other=[100.0]
    )

    line = next(line for line in shown([row], "nvidia-device-plugin").splitlines() if "start" in line)

    assert [cell.strip() for cell in line.strip("│").split("│")][:6] == [
        "start, ms",
        "300",
        "100",
        "12",
        "<= 230 (2.3 x spike)",
        "miss",
    ]


def test_the_other_plugin_s_figure_is_not_given_unless_it_was_measured() -> None:
    row = Figure("start", "ms").row([1.0])

    assert report.NOT_GIVEN in shown([row])
    assert report.NOT_GIVEN not in shown([row], "nvidia-device-plugin")


def test_the_load_average_is_shown_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (0.51, 1.26, 2.0))

    assert "load average 0.5 1.3 2.0" in shown([])
    assert report.document([], quick=True)["load"] == 1.3


@pytest.mark.parametrize(
    ("ours", "tolerance", "expected"),
    [
        (10.0, 1.5, "[green]pass[/]"),
        (12.0, 1.5, "[yellow]miss[/]"),
        (16.0, 1.5, "[red]miss[/]"),
        (12.0, NO_SLACK, "[red]miss[/]"),
    ],
)
def test_a_miss_that_the_check_lets_pass_is_yellow(ours: float, tolerance: float, expected: str) -> None:
    assert report.verdict(Figure("a", "ms", 10.0, tolerance=tolerance).row([ours])) == expected


@pytest.mark.parametrize(
    ("value", "text"), [(0.123456, "0.123"), (2.0, "2"), (12.34, "12.3"), (1234.6, "1,235"), (99.95, "100")]
)
def test_a_number_has_three_digits_that_say_something(value: float, text: str) -> None:
    assert report.number(value) == text


def test_a_row_in_one_line_names_the_others_that_were_measured() -> None:
    row = Figure("a", "ms", 2.0).row(Runs([1.5], spike=[1.0]))

    assert report.sentence(row) == "1.5 ms, spike 1, target <= 2"


def test_the_machine_of_the_table_is_known_by_processor_and_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "run.json"
    monkeypatch.setattr(report, "REFERENCE", file)
    assert not report.is_machine_of_the_table()

    file.write_text(json.dumps(report.machine()))
    assert report.is_machine_of_the_table()

    file.write_text(json.dumps({**report.machine(), "cores": 1000}))
    assert not report.is_machine_of_the_table()


def test_the_document_says_whether_the_other_plugin_was_given() -> None:
    assert report.document([], quick=False)["rival"] == "not given"
    assert report.document([], quick=False, rival="other")["rival"] == "other"
