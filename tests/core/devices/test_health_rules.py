"""Bad news at once, good news proven."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import strategies

from agent.core.devices import health_rules
from agent.core.devices.health_rules import LOST_CONTACT, HealthRecord
from agent.core.devices.health_thresholds import HealthThresholds
from agent.core.model import Health
from agent.vendor_api.agent import Device, Fault, HealthEvent, Proof, State

TIMING = HealthThresholds()
HOT = Fault("hot", "91 C")
XID = Fault("xid-48", "double bit error", cleared_by=(Proof.RESET, Proof.REBOOT))
OFF_THE_BUS = Fault("xid-79", "fell off the bus", cleared_by=(Proof.REBOOT,))
NOT_WATCHED = Fault("not-watched", "event set unavailable", state=State.UNKNOWN)


def bad(fault: Fault, uuid: str | None = None) -> HealthEvent:
    return HealthEvent(uuid, fault)


def good(proof: Proof | None = None) -> HealthEvent:
    return HealthEvent(None, None, proof)


def polls(record: HealthRecord, *at: float, fault: Fault | None = None) -> HealthRecord:
    for now in at:
        record = health_rules.polled(record, fault, now, TIMING)
    return record


def told(record: HealthRecord, now: float) -> bool:
    return health_rules.ticked(record, now, TIMING).told_healthy


def test_an_event_flips_at_once() -> None:
    record = health_rules.observed(HealthRecord(), bad(HOT), now=5)

    assert record.health() == Health(State.UNHEALTHY, "hot", "91 C", since=5)
    assert not told(record, 5)


@pytest.mark.parametrize(("failed", "state"), [(1, "healthy"), (2, "healthy"), (3, "unhealthy")])
def test_it_takes_three_failed_polls_to_flip(failed: int, state: str) -> None:
    record = polls(HealthRecord(), *range(failed), fault=HOT)

    assert record.health().state == state
    assert told(record, failed) is (state == "healthy")


def test_a_fault_that_every_poll_repeats_is_no_news() -> None:
    """Records that differ are written to disk."""
    record = polls(HealthRecord(), 0, 10, 20, fault=HOT)

    assert polls(record, *range(30, 300, 10), fault=HOT) == record


def test_failed_polls_count_only_in_a_row() -> None:
    record = polls(HealthRecord(), 0, 10, fault=HOT)
    record = polls(record, 20)
    record = polls(record, 30, 40, fault=HOT)

    assert record.health().state is State.HEALTHY


@pytest.mark.parametrize(
    ("clean_polls", "state"),
    [
        ((10,), "unhealthy"),  # one is not two
        ((10, 11, 19.9), "unhealthy"),  # two, but not 10 s
        ((10, 20), "healthy"),
        ((10, 11, 20), "healthy"),
        ((30,), "unhealthy"),  # long, but one
    ],
)
def test_good_needs_two_clean_polls_and_ten_seconds(clean_polls: tuple[float, ...], state: str) -> None:
    sick = health_rules.observed(HealthRecord(), bad(HOT), now=0)

    assert polls(sick, *clean_polls).health().state == state


def test_any_bad_news_starts_the_wait_anew() -> None:
    sick = polls(health_rules.observed(HealthRecord(), bad(HOT), now=0), 10)

    by_poll = polls(polls(sick, 15, fault=HOT), 20, 29)
    by_event = polls(health_rules.observed(sick, bad(HOT), now=15), 20, 29)

    assert by_poll.health().state is by_event.health().state is State.UNHEALTHY
    assert polls(by_poll, 30).health().state is polls(by_event, 30).health().state is State.HEALTHY


def test_a_sticky_fault_stays_through_any_number_of_clean_polls() -> None:
    record = polls(health_rules.observed(HealthRecord(), bad(XID), now=0), *range(10, 10_000, 10))

    assert record.fault == XID
    assert not told(record, 10_000)


def test_a_sticky_fault_stays_through_good_events_and_wrong_proofs() -> None:
    record = health_rules.observed(HealthRecord(), bad(XID), now=0)

    for event in (good(), good(Proof.OPERATOR), good(Proof.DRIVER_RELOAD)):
        record = health_rules.observed(record, event, now=10)
    record = polls(record, 20, 40, 60)

    assert record.fault == XID


@pytest.mark.parametrize("proof", list(Proof))
def test_each_proof_that_a_fault_names_clears_it_after_clean_polls(proof: Proof) -> None:
    sick = health_rules.observed(HealthRecord(), bad(Fault("xid", cleared_by=(proof,))), now=0)

    shown = health_rules.observed(sick, good(proof), now=100)

    assert not shown.sticky
    assert not told(shown, 100)
    assert polls(shown, 101, 109).health().state is State.UNHEALTHY
    assert polls(shown, 101, 110).health().state is State.HEALTHY


def test_a_good_event_without_a_sticky_fault_leaves_the_word_to_the_polls() -> None:
    sick = health_rules.observed(HealthRecord(), bad(HOT), now=0)

    assert health_rules.observed(sick, good(), now=100).health().state is State.UNHEALTHY


def test_a_harder_fault_replaces_an_easier_one() -> None:
    for easy, hard in ((HOT, XID), (XID, OFF_THE_BUS), (NOT_WATCHED, HOT), (NOT_WATCHED, XID)):
        record = health_rules.observed(HealthRecord(), bad(easy), now=0)

        assert health_rules.observed(record, bad(hard), now=1).fault == hard


def test_an_easier_fault_never_hides_a_harder_one() -> None:
    for easy, hard in ((HOT, XID), (XID, OFF_THE_BUS), (NOT_WATCHED, HOT), (NOT_WATCHED, XID)):
        record = health_rules.observed(HealthRecord(), bad(hard), now=0)

        record = health_rules.observed(record, bad(easy), now=1)
        record = polls(record, 2, 3, 4, fault=easy)

        assert record.fault == hard


def test_unknown_for_want_of_a_source_is_told_healthy() -> None:
    record = health_rules.observed(HealthRecord(), bad(NOT_WATCHED), now=0)

    assert record.health().state is State.UNKNOWN
    assert record.health().reason == "not-watched"
    assert told(record, 1e6)


def test_a_device_that_is_watched_again_is_healthy_at_once() -> None:
    record = health_rules.observed(HealthRecord(), bad(NOT_WATCHED), now=0)

    record = health_rules.observed(record, good(), now=7)

    assert record.health() == Health(State.HEALTHY, since=7)


def test_a_device_that_is_watched_again_is_not_thereby_in_contact_again() -> None:
    record = health_rules.lost(health_rules.observed(HealthRecord(), bad(NOT_WATCHED), now=0), "hung", now=5)

    record = health_rules.observed(record, good(), now=7)

    assert record.health().reason == LOST_CONTACT


def test_lost_contact_keeps_the_last_told_state_for_thirty_seconds() -> None:
    record = health_rules.lost(HealthRecord(since=1), "the process ended", now=100)

    assert record.health() == Health(State.UNKNOWN, LOST_CONTACT, "the process ended", 100)
    assert told(record, 129.9)
    assert not told(record, 130)


def test_contact_lost_again_and_again_is_lost_since_the_first_time() -> None:
    once = health_rules.lost(HealthRecord(), "hung", now=100)

    assert health_rules.lost(once, "hung still", now=120) == once


def test_contact_regained_within_patience_restores_at_once() -> None:
    record = health_rules.ticked(health_rules.lost(HealthRecord(since=1), "hung", now=100), 129, TIMING)

    record = polls(record, 129)

    assert record.health() == Health(State.HEALTHY, since=1)
    assert told(record, 129)


@pytest.mark.parametrize("ticks", [(), (131,)])
def test_contact_regained_after_patience_needs_clean_polls(ticks: tuple[float, ...]) -> None:
    record = health_rules.lost(HealthRecord(), "hung", now=100)
    for now in ticks:
        record = health_rules.ticked(record, now, TIMING)

    back = polls(record, 140)

    assert back.health() == Health(State.UNHEALTHY, LOST_CONTACT, "hung", 140)
    assert polls(back, 149).health().state is State.UNHEALTHY
    assert polls(back, 150).health().state is State.HEALTHY


def test_what_the_kubelet_was_told_decides_even_where_the_clock_stepped_back() -> None:
    record = health_rules.ticked(health_rules.lost(HealthRecord(), "hung", now=100), 131, TIMING)

    assert polls(record, 90).health().state is State.UNHEALTHY


def test_a_fault_outlives_lost_contact() -> None:
    sick = health_rules.observed(HealthRecord(), bad(XID), now=0)

    away = health_rules.lost(sick, "the process ended", now=10)
    back = polls(away, 500, 600)

    assert away.health().reason == "xid-48"
    assert not told(away, 11)
    assert back.fault == XID


def test_a_fault_reported_while_contact_is_lost_counts() -> None:
    away = health_rules.lost(HealthRecord(), "the library no longer lists it", now=10)

    sick = health_rules.observed(away, bad(OFF_THE_BUS), now=11)

    assert sick.health().reason == "xid-79"
    assert not told(sick, 11)


def test_since_changes_only_with_the_state() -> None:
    record = health_rules.observed(HealthRecord(since=1), bad(HOT), now=5)

    for later in (bad(HOT), bad(XID), bad(OFF_THE_BUS), good(Proof.REBOOT)):
        record = health_rules.observed(record, later, now=50)
        assert record.health().since == 5

    assert polls(record, 60, 70).health().since == 70


def test_a_device_that_nothing_watches_says_so_once() -> None:
    record = polls(HealthRecord(), 0, 10, 20, fault=NOT_WATCHED)

    assert polls(record, 30, 40, fault=NOT_WATCHED).health() == record.health()
    assert record.health().since == 20


def test_the_deadline_is_the_end_of_patience_and_only_while_something_changes_then() -> None:
    away = health_rules.lost(HealthRecord(), "hung", now=100)
    sick = health_rules.ticked(health_rules.observed(HealthRecord(), bad(HOT), now=0), 0, TIMING)

    assert health_rules.deadline(HealthRecord(), TIMING) is None
    assert health_rules.deadline(away, TIMING) == 130
    assert health_rules.deadline(health_rules.ticked(away, 130, TIMING), TIMING) is None
    assert health_rules.deadline(health_rules.lost(sick, "hung", now=1), TIMING) is None


Step = tuple[str, Fault | None, Proof | None, float]
steps = st.tuples(
    st.sampled_from(["poll", "event", "proof", "lost", "tick"]),
    st.none() | strategies.faults,
    st.none() | strategies.proofs,
    st.floats(min_value=-20, max_value=40),  # seconds since the last step; clocks step back, too
)


def apply(record: HealthRecord, step: Step, now: float) -> HealthRecord:
    what, fault, proof, _ = step
    if what == "poll":
        record = health_rules.polled(record, fault, now, TIMING)
    elif what == "event":
        record = health_rules.observed(record, HealthEvent(None, fault, proof), now)
    elif what == "proof" and proof is not None:
        record = health_rules.proven(record, proof, now)
    elif what == "lost":
        record = health_rules.lost(record, "gone", now)
    return health_rules.ticked(record, now, TIMING)


@given(st.lists(steps, max_size=40))
def test_no_order_of_news_hides_a_fault(history: list[Step]) -> None:
    record, now = HealthRecord(), 1000.0

    for step in history:
        now += step[3]
        before, record = record, apply(record, step, now)

        fault = record.fault
        assert not (record.told_healthy and fault is not None and fault.state is not State.UNKNOWN)
        if before.fault is not None and before.sticky and not record.sticky:
            assert step[2] in before.fault.cleared_by
            assert not record.told_healthy
        if record.health().state is State.UNHEALTHY:
            assert not record.told_healthy
        health_rules.deadline(record, TIMING)


@given(strategies.records, steps)
def test_any_remembered_record_is_carried_on(record: HealthRecord, step: Step) -> None:
    record = apply(replace(record, bad=0), step, now=2e9)

    assert record.health().state in State


def test_reading_a_device_well_does_not_bring_back_its_watch() -> None:
    unwatched = health_rules.observed(HealthRecord(), bad(Fault("unmonitored", state=State.UNKNOWN)), 0.0)

    it = polls(unwatched, 10.0, 20.0, 30.0, 40.0)

    assert it.health().state is State.UNKNOWN


def test_what_only_the_polls_called_unwatched_ends_with_them() -> None:
    unwatched = polls(HealthRecord(), 0.0, 10.0, 20.0, fault=Fault("unmonitored", state=State.UNKNOWN))

    it = polls(unwatched, 30.0, 40.0, 50.0)

    assert it.health().state is State.HEALTHY


def test_a_transient_fault_ends_though_the_polls_call_the_device_unwatched() -> None:
    hot = health_rules.observed(HealthRecord(), bad(Fault("hot")), 0.0)

    it = polls(hot, 10.0, 20.0, 30.0, fault=Fault("unmonitored", state=State.UNKNOWN))

    assert it.health().state is not State.UNHEALTHY


def test_a_transient_fault_ends_though_events_tell_again_and_again_that_nothing_watches() -> None:
    it = health_rules.observed(HealthRecord(), bad(HOT), 0.0)

    for now in (10.0, 20.0, 30.0):
        it = health_rules.observed(polls(it, now), bad(NOT_WATCHED), now)

    assert it.fault == NOT_WATCHED
    assert told(it, 30.0)


@pytest.mark.parametrize("failed", [1, 2])
def test_failed_polls_do_not_make_the_polls_those_who_called_it_unwatched(failed: int) -> None:
    before = polls(HealthRecord(), *range(failed), fault=HOT)
    after = health_rules.observed(HealthRecord(), bad(NOT_WATCHED), 0.0)
    after = polls(after, *range(failed), fault=HOT)

    for it in (health_rules.observed(before, bad(NOT_WATCHED), 5.0), after):
        assert polls(it, 10.0, 20.0, 30.0, 40.0).fault == NOT_WATCHED


def test_who_said_last_that_nothing_watches_the_device_ends_it() -> None:
    by_event = health_rules.observed(HealthRecord(), bad(Fault("events-lost", state=State.UNKNOWN)), 0.0)
    by_polls = polls(by_event, 10.0, 20.0, 30.0, fault=NOT_WATCHED)
    by_event_again = health_rules.observed(by_polls, bad(Fault("events-lost", state=State.UNKNOWN)), 31.0)

    assert polls(by_event, 40.0, 50.0, 60.0).health().reason == "events-lost"
    assert polls(by_polls, 40.0, 50.0, 60.0).health().state is State.HEALTHY
    assert polls(by_event_again, 40.0, 50.0, 60.0).health().reason == "events-lost"


def test_an_operators_word_stands_for_every_proof_and_clean_polls_do_the_rest() -> None:
    sick = health_rules.observed(HealthRecord(), bad(OFF_THE_BUS), now=0)

    it = health_rules.cleared(sick, now=100)

    assert not it.sticky
    assert not told(it, 100)
    assert polls(it, 101, 109).health().state is State.UNHEALTHY
    assert polls(it, 101, 110).health().state is State.HEALTHY


def test_what_the_device_still_shows_after_an_operators_word_sticks_again() -> None:
    sick = health_rules.observed(HealthRecord(), bad(OFF_THE_BUS), now=0)

    it = polls(health_rules.cleared(sick, now=100), 101, 102, 103, fault=OFF_THE_BUS)

    assert it.fault == OFF_THE_BUS


def test_an_operators_word_on_a_transient_fault_keeps_what_is_proven_already() -> None:
    mending = polls(health_rules.observed(HealthRecord(), bad(HOT), now=0), 10)

    assert health_rules.cleared(mending, now=15) == mending


@pytest.mark.parametrize(
    ("before", "now", "restarted"),
    [
        ({"energy": 5}, {"energy": 4}, True),
        ({"energy": 5, "time": 9}, {"energy": 6, "time": 1}, True),
        ({"energy": 5}, {"energy": 5}, False),
        ({"energy": 5}, {"energy": 6}, False),
        ({"energy": 5}, {}, False),  # it was not told this time
        ({}, {"energy": 0}, False),
    ],
)
def test_a_counter_that_is_smaller_than_before_shows_that_it_began_anew(
    before: dict[str, int], now: dict[str, int], restarted: bool
) -> None:
    record = health_rules.with_baseline(HealthRecord(), Device("a", 0, counters=before))

    assert (
        health_rules.proofs_of_poll(record, Device("a", 0, counters=now))
        == (Proof.DRIVER_RELOAD,) * restarted
    )


def test_a_counter_that_was_not_told_is_kept_and_outlives_the_end_of_a_fault() -> None:
    record = health_rules.with_baseline(
        health_rules.with_baseline(HealthRecord(), Device("a", 0, counters={"energy": 5})), Device("a", 0)
    )

    record = polls(health_rules.observed(record, bad(HOT), now=0), 10, 20)

    assert record.health().state is State.HEALTHY
    assert record.counters == {"energy": 5}


def test_counters_make_no_record_another_one() -> None:
    assert (
        health_rules.with_baseline(HealthRecord(), Device("a", 0, counters={"energy": 5})) == HealthRecord()
    )


# What the driver wants done


@pytest.mark.parametrize(
    ("before", "now", "reset"),
    [
        (True, False, True),
        (True, True, False),
        (True, None, False),  # it was not told this time
        (False, False, False),
        (None, False, False),
    ],
)
def test_a_recovery_that_is_due_no_longer_shows_a_reset(
    before: bool | None, now: bool | None, reset: bool
) -> None:
    record = health_rules.with_baseline(HealthRecord(), Device("a", 0, recovery_due=before))

    assert health_rules.proofs_of_poll(record, Device("a", 0, recovery_due=now)) == (Proof.RESET,) * reset


def test_a_device_that_reads_badly_shows_no_reset_and_waits_for_it_still() -> None:
    record = health_rules.with_baseline(HealthRecord(), Device("a", 0, recovery_due=True))
    bad_look = Device("a", 0, fault=Fault("unreadable"), recovery_due=False)

    assert health_rules.proofs_of_poll(record, bad_look) == ()
    assert health_rules.with_baseline(record, bad_look).recovery_due


def test_an_event_tells_what_is_due_too() -> None:
    record = health_rules.observed(HealthRecord(), HealthEvent("a", XID, recovery_due=True), now=0)
    assert record.recovery_due

    assert health_rules.observed(record, HealthEvent("a", HOT), now=1).recovery_due
    assert not health_rules.observed(record, HealthEvent("a", None, Proof.RESET), now=1).recovery_due
