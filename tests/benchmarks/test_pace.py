"""How often a quick measurement repeats."""

from __future__ import annotations

import pytest

from bench.pace import Pace


@pytest.mark.parametrize(("full", "quick"), [(9, 2), (4, 1), (3, 1), (1, 1), (1_000, 250)])
def test_a_quick_measurement_repeats_a_quarter_as_often_and_once_at_least(full: int, quick: int) -> None:
    assert Pace(quick=True).runs(full) == quick
    assert Pace().runs(full) == full
