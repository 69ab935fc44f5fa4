"""Lines of a watch are taken at once as far as a node needs, and beyond that at a steady pace."""

from __future__ import annotations

import pytest

from agent.cluster.watch_pace import LEAST, WatchPace

RATE, BURST = 10_000.0, 100_000


@pytest.mark.parametrize("size", [5000, 50_000])
def test_a_burst_is_taken_at_once_and_what_comes_beyond_it_at_the_pace(size: int) -> None:
    flow = WatchPace(RATE, BURST)

    rests = [flow.rest(size, now=100.0) for _ in range(BURST // size + 2)]

    assert rests[:-2] == [0.0] * (BURST // size)
    assert rests[-2:] == pytest.approx([size / RATE, 2 * size / RATE])


def test_who_rests_as_told_keeps_the_pace() -> None:
    flow, now = WatchPace(RATE, BURST), 0.0

    for _ in range(1000):
        now += flow.rest(5000, now)

    assert now == pytest.approx((1000 * 5000 - BURST) / RATE)


def test_short_lines_are_counted_as_what_they_cost() -> None:
    flow = WatchPace(RATE, BURST)

    assert sum(flow.rest(60, now=0.0) == 0.0 for _ in range(1000)) == BURST // LEAST


def test_a_burst_may_come_again_after_a_while() -> None:
    flow = WatchPace(RATE, BURST)
    for _ in range(20):
        flow.rest(5000, now=0.0)

    assert flow.rest(5000, now=5.0) == 0.0
    assert [flow.rest(5000, now=1e6) for _ in range(20)] == [0.0] * 20
