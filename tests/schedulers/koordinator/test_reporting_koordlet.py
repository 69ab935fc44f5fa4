"""Whether a koordlet counts: by whether the Device shows what its sources say, found out within a minute."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from agent.schedulers.koordinator.reporting_koordlet import (
    AT_ONCE,
    LONGEST,
    PATIENCE,
    KoordletObservation,
    KoordletStanding,
)

#: A pod that reports, and a Device that is its own; of neither it is known what the other does.
POD = KoordletObservation(is_here=True, shows=False)
SHOWS = KoordletObservation(written=1, shows=True)
DIFFERS = KoordletObservation(written=1, shows=False)
#: The Device is ours.
OURS = KoordletObservation(shows=False)


def after(
    looks: Iterable[tuple[float, KoordletObservation]], before: KoordletStanding | None = None
) -> KoordletStanding:
    standing = before or KoordletStanding()
    for now, look in looks:
        standing = standing.after(look, now)
    return standing


def test_without_a_pod_and_a_device_of_its_own_there_is_none_and_there_is_one_no_more_at_once() -> None:
    assert not KoordletStanding().after(OURS, 0).counts
    assert not after([(0, POD), (1, OURS)]).counts
    assert not after([(0, SHOWS), (1, OURS)]).counts


def test_one_whose_device_shows_what_its_sources_say_counts_for_ever_with_a_pod_and_without() -> None:
    standing = after([(0, SHOWS), (1e6, SHOWS)])

    assert standing.counts
    assert standing.ends(1e6) == float("inf")
    assert after(
        [(0, KoordletObservation(True, None, True)), (1e6, KoordletObservation(True, None, True))]
    ).counts


def test_one_whose_device_differs_counts_for_a_minute_from_then_on() -> None:
    standing = after([(0, SHOWS), (100, DIFFERS), (159, DIFFERS)])

    assert standing.counts
    assert standing.ends(159) == 1
    assert not standing.after(DIFFERS, 160).counts
    # One that puts it right in time has its minute again.
    assert after([(159.5, SHOWS), (200, DIFFERS), (259, DIFFERS)], standing).counts


def test_the_minute_does_not_run_while_nobody_knows() -> None:
    unknown = KoordletObservation(written=1, shows=None)

    standing = after([(0, DIFFERS), (30, unknown), (1000, unknown), (1001, DIFFERS), (1060, DIFFERS)])

    assert standing.counts
    assert not standing.after(DIFFERS, 1061).counts


def test_one_that_stopped_counts_again_with_a_new_write_of_its_own_and_by_nothing_else() -> None:
    stopped = after([(0, POD), (60, POD)])
    assert not stopped.counts

    # A pod that is made anew, our write, the Device as an old watch shows it: none of it is its doing.
    still = after([(61, OURS), (70, POD), (80, KoordletObservation(True, None, True))], stopped)
    assert not still.counts
    again = still.after(KoordletObservation(True, 2, False), 600)
    assert again.counts
    assert again.ends(600) == PATIENCE


def test_what_it_wrote_before_it_stopped_is_no_new_write() -> None:
    stopped = after([(0, DIFFERS), (60, DIFFERS)])

    assert not after([(61, DIFFERS), (700, DIFFERS)], stopped).counts
    assert stopped.after(KoordletObservation(written=2, shows=False), 61).counts
    # Nor is it after we wrote between: the same text may come back, and then somebody brought it back.
    assert after([(62, OURS), (63, DIFFERS)], stopped).counts


def test_one_that_undoes_our_writes_in_its_loop_is_tried_more_and_more_seldom() -> None:
    """It works, and its sources are others than we know: a directory of its own, a file that is broken."""
    standing, now, waited = KoordletStanding(), 0.0, []
    for number in range(6):
        its = KoordletObservation(True, number, False)
        standing, began = standing.after(its, now), now
        now += standing.ends(now)
        waited.append(now - began)
        standing = after([(now, its), (now + 1, OURS)], standing)
        assert not standing.counts
        now += 4

    assert waited == [60, 120, 240, 480, LONGEST, LONGEST]
    # One that follows our file is an ordinary one again.
    standing = after(
        [(now, KoordletObservation(True, 7, True)), (now + 1, KoordletObservation(True, 7, False))], standing
    )
    assert standing.ends(now + 1) == PATIENCE


def test_one_that_dies_again_and_again_right_after_its_first_write_has_a_minute_each_time() -> None:
    standing = after([(0, DIFFERS), (60, DIFFERS), (61, OURS)])

    standing = standing.after(KoordletObservation(written=2, shows=False), 60 + AT_ONCE)

    assert standing.ends(60 + AT_ONCE) == PATIENCE


@given(
    st.lists(st.tuples(st.floats(0.1, 59), st.booleans(), st.booleans()), max_size=30),
    st.booleans(),
)
def test_a_device_that_is_wrong_is_nobody_s_after_a_minute_and_a_koordlet_that_works_is_never_disturbed(
    steps: list[tuple[float, bool, bool]], works: bool
) -> None:
    """Whatever its sources say, and when: one that works writes within seconds, one that does not never."""
    standing, now, written, shows = KoordletStanding(), 0.0, 0, True
    wrong: float | None = None
    for pause, changes, pod in steps:
        now += pause
        if changes:
            shows = not shows
            standing = standing.after(KoordletObservation(pod, written, shows), now)
            wrong = None if shows else now
        if works and not shows:
            now, written, shows, wrong = now + 3, written + 1, True, None
        standing = standing.after(KoordletObservation(pod, written, shows), now)
        if works:
            assert standing.counts
        if wrong is not None and now - wrong >= PATIENCE:
            assert not standing.counts
