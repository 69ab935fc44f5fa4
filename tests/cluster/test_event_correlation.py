"""Few Events of many notices: what is one Event, what counts in it, and what is not written at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.cluster.event_correlation import BURST, COMBINED, REFILL, SIMILAR, WINDOW, Correlator, Series
from agent.core.event_notices import Notice, PodRef

SICK = Notice("DeviceUnhealthy", "acme card GPU-0 is unhealthy: hot")


def told(number: int) -> Notice:
    return replace(SICK, message=f"acme card GPU-{number} is unhealthy: hot")


def observe(correlator: Correlator, *notices: Notice, now: float = 0.0) -> list[Series]:
    return [correlator.observe(it, now)[0] for it in notices]


def test_the_same_notice_again_counts_in_its_series() -> None:
    correlator = Correlator()

    first, _ = correlator.observe(SICK, 1.0)
    again, _ = correlator.observe(SICK, 2.0 + WINDOW - 1)

    assert again is first
    assert (first.count, first.first, first.last) == (2, 1.0, 1.0 + WINDOW)
    assert correlator.observe(SICK, 1.0 + 2 * WINDOW)[0] is first


def test_after_ten_quiet_minutes_it_is_another_event() -> None:
    correlator = Correlator()

    first, _ = correlator.observe(SICK, 1.0)
    again, _ = correlator.observe(SICK, 1.5 + WINDOW)

    assert again is not first
    assert (first.count, again.count) == (1, 1)


@pytest.mark.parametrize(
    "other",
    [
        replace(SICK, reason="DeviceHealthy"),
        replace(SICK, kind="Normal"),
        replace(SICK, message="another"),
        replace(SICK, pod=PodRef("default", "web")),
    ],
)
def test_another_object_reason_kind_or_text_is_another_event(other: Notice) -> None:
    first, second = observe(Correlator(), SICK, other)

    assert first is not second


def test_from_the_tenth_text_on_similar_notices_share_one_event() -> None:
    correlator = Correlator()
    alone = observe(correlator, *map(told, range(SIMILAR - 1)))

    together = observe(correlator, *map(told, range(SIMILAR, 2 * SIMILAR)))

    assert len(set(map(id, alone))) == SIMILAR - 1
    assert len(set(map(id, together))) == 1
    assert together[0].count == SIMILAR
    assert together[0].notice.message == COMBINED + told(SIMILAR).message


def test_texts_of_long_ago_are_similar_to_nothing() -> None:
    correlator = Correlator()
    observe(correlator, *map(told, range(SIMILAR - 1)))

    (late,) = observe(correlator, told(99), now=WINDOW + 1)

    assert late.notice == told(99)


def test_an_object_has_a_burst_and_then_one_write_now_and_then() -> None:
    correlator = Correlator()

    burst = [correlator.observe(SICK, 0.0)[1] for _ in range(BURST + 3)]

    assert burst == [True] * BURST + [False] * 3
    assert not correlator.observe(SICK, REFILL - 1)[1]
    assert correlator.observe(SICK, REFILL)[1]
    assert not correlator.observe(SICK, REFILL)[1]


def test_an_object_that_was_quiet_for_long_has_saved_up_no_more_than_its_burst() -> None:
    correlator = Correlator()
    correlator.observe(SICK, 0.0)

    later = [correlator.observe(SICK, 1000 * REFILL)[1] for _ in range(BURST + 1)]

    assert later == [True] * BURST + [False]


def test_an_object_that_has_no_write_left_takes_none_of_another() -> None:
    correlator = Correlator()
    for _ in range(BURST + 1):
        correlator.observe(SICK, 0.0)

    assert correlator.observe(replace(SICK, pod=PodRef("default", "web")), 0.0)[1]


def test_what_was_not_written_is_counted_nevertheless() -> None:
    correlator = Correlator()

    series = [correlator.observe(SICK, 0.0)[0] for _ in range(BURST + 5)]

    assert series[0].count == BURST + 5


def test_only_so_many_events_objects_and_reasons_are_remembered() -> None:
    correlator = Correlator(remembered=8)

    for number in range(100):
        correlator.observe(replace(told(number), pod=PodRef("default", f"pod-{number}")), 0.0)

    tables = (correlator._series, correlator._texts, correlator._buckets)
    assert [len(it._table) for it in tables] == [8, 8, 8]


def test_only_so_many_texts_of_a_reason_are_remembered() -> None:
    correlator = Correlator()

    observe(correlator, *map(told, range(100)))

    (texts,) = correlator._texts._table.values()
    assert len(texts.seen) == SIMILAR - 1


NOTICES = st.builds(
    Notice,
    reason=st.sampled_from(["DeviceUnhealthy", "VendorFailed"]),
    message=st.sampled_from([str(number) for number in range(30)]),
    kind=st.sampled_from(["Normal", "Warning"]),
    pod=st.sampled_from([None, PodRef("default", "web"), PodRef("default", "db")]),
)


@given(st.lists(st.tuples(NOTICES, st.floats(0, 400)), max_size=200))
def test_nothing_is_lost_uncounted_and_no_object_is_written_more_than_its_rate(
    steps: list[tuple[Notice, float]],
) -> None:
    correlator, now = Correlator(), 0.0
    found: dict[int, Series] = {}
    writes: dict[PodRef | None, list[float]] = {}

    for notice, pause in steps:
        now += pause
        series, may_write = correlator.observe(notice, now)
        found[id(series)] = series
        assert (series.notice.pod, series.notice.reason) == (notice.pod, notice.reason)
        assert series.first <= series.last == now
        if may_write:
            writes.setdefault(notice.pod, []).append(now)

    assert sum(it.count for it in found.values()) == len(steps)
    for times in writes.values():
        for at, since in enumerate(times):
            later = len(times) - at
            assert later <= BURST + (times[-1] - since) / REFILL + 1e-6
