"""Units of memory: exact for every card and size, and coarser ones by whole division."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.devices.memory_units import THOUSANDTHS, coarser, counted_in, units
from agent.vendor_api.agent import Sharing

GIB = 1 << 30
MEMORIES = st.integers(0, 1 << 42)
SIZES = st.sampled_from([*THOUSANDTHS])


@pytest.mark.parametrize(
    ("mebibytes", "expected"),
    [
        (16384, (16, 160, 1600, 16000)),
        (32768, (32, 320, 3200, 32000)),
        (41984, (41, 410, 4100, 41000)),
        (42976, (41, 419, 4196, 41968)),
        (49120, (47, 479, 4796, 47968)),
        (23552, (23, 230, 2300, 23000)),
        (1023, (0, 9, 99, 999)),
        (0, (0, 0, 0, 0)),
    ],
)
def test_a_card_has_the_units_that_gcushare_counts(mebibytes: int, expected: tuple[int, ...]) -> None:
    assert tuple(units(mebibytes << 20, size) for size in THOUSANDTHS) == expected


@given(MEMORIES, SIZES)
def test_units_are_as_many_as_fit_and_not_one_less(memory: int, size: str) -> None:
    whole, each = Fraction(memory >> 20, 1024), Fraction(size)

    count = units(memory, size)

    assert count * each <= whole < (count + 1) * each


@given(MEMORIES, SIZES)
def test_coarser_units_are_whole_numbers_of_finer_ones(memory: int, size: str) -> None:
    for other, of in coarser(size).items():
        assert units(memory, other) == units(memory, size) // of


def test_the_coarser_sizes_come_finest_first() -> None:
    assert coarser("0.001") == {"0.01": 10, "0.1": 100, "1": 1000}
    assert coarser("0.1") == {"1": 10}
    assert coarser("1") == {}


@pytest.mark.parametrize(
    ("sharing", "size"),
    [(Sharing(), ""), (Sharing("replicas", 4), ""), (Sharing("memory", unit="0.01"), "0.01")],
)
def test_what_counts_no_memory_has_no_unit(sharing: Sharing, size: str) -> None:
    assert counted_in(sharing) == size
