"""What a row says of its runs, and when the check fails."""

from __future__ import annotations

import pytest

from bench.rows import NO_SLACK, Bound, Figure, Runs, Series, middle, percentile, with_rival


@pytest.mark.parametrize(
    ("ours", "met", "failed"),
    [(10.0, True, False), (12.0, False, False), (15.0, False, False), (15.1, False, True)],
)
def test_a_row_fails_where_its_figure_is_more_than_half_above_the_target(
    ours: float, met: bool, failed: bool
) -> None:
    row = Figure("a", "ms", 10.0).row([ours])

    assert (row.met, row.failed) == (met, failed)


@pytest.mark.parametrize(("ours", "failed"), [(10.0, False), (10.01, True)])
def test_a_row_without_slack_fails_where_it_misses_its_target(ours: float, failed: bool) -> None:
    row = Figure("a", "ms", 10.0, tolerance=NO_SLACK).row([ours])

    assert row.failed is failed
    assert row.met is not failed


def test_a_row_without_a_target_is_neither_met_nor_failed() -> None:
    row = Figure("a", "ms").row([1e9])

    assert row.met is None
    assert not row.failed


@pytest.mark.parametrize(
    ("bound", "target", "text"),
    [
        (Bound("spike", times=2.3), 460.0, "2.3 x spike"),
        (Bound("spike", plus=3), 203.0, "spike + 3"),
        (Bound("our start", times=1.2), 240.0, "1.2 x our start"),
        (Bound("spike", times=2, plus=1), 401.0, "2 x spike + 1"),
    ],
)
def test_a_bound_sets_the_target_by_the_median_of_the_other_figure(
    bound: Bound, target: float, text: str
) -> None:
    row = Figure("a", "ms", bound=bound).row([1.0], other=[100.0, 200.0, 900.0])

    assert (row.target, row.bound) == (target, text)


def test_a_figure_is_the_median_of_its_runs_for_each_subject() -> None:
    row = Figure("a", "ms").row(Runs([3.0, 1.0, 2.0], spike=[5.0, 7.0]))

    assert (row.ours, row.runs, row.spike, row.rival) == (2.0, (3.0, 1.0, 2.0), 6.0, None)


def test_runs_are_kept_by_the_role_of_their_subject() -> None:
    series = Series()
    series.add("ours", 1.0)
    series.add("spike", 2.0, 3.0)
    series.add("ours", 4.0)

    assert series.all() == Runs([1.0, 4.0], [2.0, 3.0], ())


def test_a_rival_s_figure_goes_to_the_row_of_the_same_name() -> None:
    mine = [Figure("a", "ms").row([1.0]), Figure("b", "ms").row([2.0])]

    merged = with_rival(mine, [Figure("b", "ms").row([9.0]), Figure("c", "ms").row([8.0])])

    assert [(row.name, row.ours, row.rival) for row in merged] == [("a", 1.0, None), ("b", 2.0, 9.0)]


@pytest.mark.parametrize(("percent", "expected"), [(50, 50.0), (99, 99.0), (100, 100.0), (1, 1.0)])
def test_a_percentile_is_a_value_that_was_measured(percent: int, expected: float) -> None:
    values = [float(value) for value in range(100, 0, -1)]

    assert percentile(values, percent) == expected


def test_the_99th_percentile_of_few_values_is_the_largest() -> None:
    assert percentile([2.0, 9.0, 1.0], 99) == 9.0
    assert percentile([4.0], 50) == 4.0


def test_no_runs_have_no_figure() -> None:
    assert middle([]) is None
    assert middle([1.0, 2.00006]) == 1.5


def test_a_row_s_json_says_whether_the_target_is_met() -> None:
    values = Figure("a", "ms", bound=Bound("spike", times=2)).row(Runs([3.0], [1.0]), other=[1.0]).as_json()

    assert (values["met"], values["target"], values["bound"], values["spike"]) == (
        False,
        2.0,
        "2 x spike",
        1.0,
    )
