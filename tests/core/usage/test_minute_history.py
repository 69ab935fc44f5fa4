"""What containers used in each minute of a day."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.usage.minute_history import MAX_HISTORIES, MINUTES, SavedMinutes, UsageHistory
from agent.core.usage.usage_report import ContainerUse

GIB = 1 << 30
#: Unix time of a full minute.
NOON = 1_800_000_000.0 - 1_800_000_000.0 % 60
FIRST = int(NOON // 60)


def use(pod: str = "p", memory: int | None = GIB, utilization: float | None = 0.5) -> ContainerUse:
    return ContainerUse(
        "ns", pod, f"uid-{pod}", "main", "acme", "GPU-a", memory=memory, utilization=utilization
    )


def points(history: UsageHistory, pod: str = "p") -> list[tuple[int, int | None, float | None]]:
    return [*history.of("ns", pod, "main", "GPU-a")]


def test_a_minute_has_the_most_memory_and_the_mean_utilization_of_its_samples() -> None:
    history = UsageHistory()
    for second, memory, utilization in ((0, GIB, 0.2), (20, 3 * GIB, 0.4), (59, 2 * GIB, 0.9)):
        history.add(NOON + second, [use(memory=memory, utilization=utilization)])
    assert points(history) == [(FIRST, 3 * GIB, 0.5)]
    assert history.keys() == [("ns", "p", "main", "GPU-a")]


def test_what_is_unknown_in_a_minute_differs_from_no_use_and_from_no_sample() -> None:
    history = UsageHistory()
    history.add(NOON, [use(memory=None, utilization=None)])
    history.add(NOON + 60, [use(memory=0, utilization=0.0)])
    history.add(NOON + 240, [use()])
    assert points(history) == [
        (FIRST, None, None),
        (FIRST + 1, 0, 0.0),
        (FIRST + 4, GIB, 0.5),
    ]


def test_one_known_sample_makes_the_minute_known() -> None:
    history = UsageHistory()
    history.add(NOON, [use(memory=None, utilization=None)])
    history.add(NOON + 5, [use(memory=GIB, utilization=0.25)])
    history.add(NOON + 10, [use(memory=None, utilization=None)])
    assert points(history) == [(FIRST, GIB, 0.25)]


def test_an_ended_container_stays_for_a_day() -> None:
    history = UsageHistory()
    history.add(NOON, [use()])
    history.add(NOON + 60 * (MINUTES - 1), [])
    assert points(history) == [(FIRST, GIB, 0.5)]
    history.add(NOON + 60 * MINUTES, [])
    assert history.keys() == []


def test_a_history_has_a_day_of_minutes_at_most() -> None:
    history = UsageHistory()
    for minute in range(MINUTES + 100):
        history.add(NOON + 60 * minute, [use()])
    assert [minute for minute, _, _ in points(history)] == [*range(FIRST + 100, FIRST + 100 + MINUTES)]


def test_a_clock_that_was_set_back_costs_only_the_minutes_after_the_new_time() -> None:
    history = UsageHistory()
    for minute in range(5):
        history.add(NOON + 60 * minute, [use(utilization=1.0)])
    history.add(NOON + 120, [use(utilization=0.5)])
    assert [minute for minute, _, _ in points(history)] == [FIRST, FIRST + 1, FIRST + 2]
    assert points(history)[-1] == (FIRST + 2, GIB, 0.5)


def test_a_new_container_displaces_the_one_that_ended_first() -> None:
    history = UsageHistory()
    history.add(NOON, [use("first"), use("second")])
    history.add(NOON + 60, [use("second")])
    many = [use(f"p{n}") for n in range(MAX_HISTORIES - 1)]
    history.add(NOON + 120, many)
    assert history.left_out == 0
    assert not points(history, "first")
    assert points(history, "second")
    assert len(history.keys()) == MAX_HISTORIES


def test_no_living_container_is_displaced_and_those_without_room_are_counted() -> None:
    history = UsageHistory()
    many = [use(f"p{n}") for n in range(MAX_HISTORIES + 7)]
    history.add(NOON, many)
    assert (len(history.keys()), history.left_out) == (MAX_HISTORIES, 7)
    history.add(NOON + 5, many[:MAX_HISTORIES])
    assert history.left_out == 0


def test_a_day_of_64_containers_takes_less_than_a_megabyte() -> None:
    tracemalloc.start()
    try:
        history = UsageHistory()
        uses = [use(f"pod-{n}") for n in range(64)]
        before = tracemalloc.get_traced_memory()[0]
        for minute in range(MINUTES + 1):
            history.add(NOON + 60 * minute, uses)
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(points(history, "pod-63")) == MINUTES
    assert taken <= 1_000_000
    # The file, too: its byte strings have 6 bytes a minute.
    assert all(len(it.memory) + len(it.utilization) <= 10 * MINUTES for it in history.saved())


def test_a_history_continues_after_it_was_saved_with_the_gap_between() -> None:
    history = UsageHistory()
    history.add(NOON, [use(), use("q", memory=None)])
    history = UsageHistory(history.saved())
    assert points(history) == [(FIRST, GIB, 0.5)]
    history.add(NOON + 600, [use()])
    assert points(history) == [(FIRST, GIB, 0.5), (FIRST + 10, GIB, 0.5)]
    assert points(history, "q") == [(FIRST, None, 0.5)]


def test_the_mean_of_a_minute_counts_the_samples_before_a_restart_as_those_after() -> None:
    unbroken, restarted = UsageHistory(), UsageHistory()
    for second, utilization in ((0, 0.9), (5, 0.9), (10, 0.9), (15, 0.9), (20, 0.9), (55, 0.1)):
        if second == 55:
            restarted = UsageHistory(restarted.saved())
        for history in (unbroken, restarted):
            history.add(NOON + second, [use(utilization=utilization)])
    assert points(restarted) == points(unbroken) == [(FIRST, GIB, 0.7667)]


def test_what_is_unknown_before_a_restart_does_not_count_for_the_mean() -> None:
    history = UsageHistory()
    history.add(NOON, [use(utilization=None)])
    history = UsageHistory(history.saved())
    history.add(NOON + 5, [use(utilization=0.5)])
    assert points(history) == [(FIRST, GIB, 0.5)]


@pytest.mark.parametrize("count", [-1, 1 << 60])
def test_a_number_of_samples_that_no_minute_has_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match="samples"):
        UsageHistory([SavedMinutes("ns", "p", "main", "GPU-a", FIRST, b"\0" * 4, b"\0" * 2, count)])


@pytest.mark.parametrize(
    ("memory", "utilization"),
    [(b"", b""), (b"\0" * 4, b"\0" * 4), (b"\0" * 5, b"\0" * 2), (b"\0" * 4 * 1441, b"\0" * 2 * 1441)],
    ids=["empty", "of two lengths", "torn", "longer than a day"],
)
def test_bytes_that_are_no_history_are_refused(memory: bytes, utilization: bytes) -> None:
    with pytest.raises(ValueError, match=r"minutes|multiple"):
        UsageHistory([SavedMinutes("ns", "p", "main", "GPU-a", FIRST, memory, utilization)])


ANY_BYTES = st.integers(0, 3).flatmap(
    lambda n: st.tuples(st.binary(min_size=4 * n, max_size=4 * n), st.binary(min_size=2 * n, max_size=2 * n))
)


@given(
    st.integers(), ANY_BYTES, st.lists(st.tuples(st.integers(0, 300), st.integers(), st.floats()), max_size=5)
)
def test_no_saved_bytes_and_no_figure_break_a_history(
    first: int, saved: tuple[bytes, bytes], samples: list[tuple[int, int, float]]
) -> None:
    try:
        history = UsageHistory([SavedMinutes("ns", "p", "main", "GPU-a", first, *saved)])
    except ValueError:
        history = UsageHistory()
    for minute, memory, utilization in samples:
        history.add(NOON + 60 * minute, [use(memory=memory, utilization=utilization)])
    for _, used, share in points(history):
        assert used is None or used >= 0
        assert share is None or 0.0 <= share <= 1.0
    assert [minute for minute, _, _ in points(history)] == sorted(
        {minute for minute, _, _ in points(history)}
    )
    assert len(points(history)) <= MINUTES
