"""When a process that is lost again and again is left at rest."""

from __future__ import annotations

import pytest

from agent.isolation.restart_breaker import Breaker


def lost_at(*moments: float, served: float = 0.0) -> Breaker:
    breaker = Breaker(good=30, losses=5, window=60)
    for moment in moments:
        breaker.lost(moment, served)
    return breaker


@pytest.mark.parametrize(
    ("moments", "open_"),
    [
        ((0, 1, 2, 3), False),
        ((0, 1, 2, 3, 4), True),
        ((0, 15, 30, 45, 60), True),
        ((0, 15, 30, 45, 61), False),
        ((0, 15, 30, 45, 61, 62), True),
    ],
)
def test_five_losses_within_a_minute_open_it(moments: tuple[float, ...], open_: bool) -> None:
    assert lost_at(*moments).tripped is open_


def test_it_stays_open_while_the_tries_fail_however_rare_they_are() -> None:
    breaker = lost_at(0, 1, 2, 3, 4)

    breaker.lost(100, served=29)

    assert breaker.tripped


def test_good_service_closes_it_and_the_losses_before_count_no_more() -> None:
    breaker = lost_at(0, 1, 2, 3, 4)

    breaker.lost(50, served=30)

    assert not breaker.tripped
    for moment in (51, 52, 53):
        breaker.lost(moment, served=0)
    assert not breaker.tripped


def test_a_library_that_answers_that_its_driver_is_away_closes_it() -> None:
    breaker = lost_at(0, 1, 2, 3, 4)

    breaker.close()

    assert breaker.state(None) == "closed"


def test_it_is_half_open_while_a_process_has_not_proved_itself() -> None:
    breaker = lost_at(0, 1, 2, 3, 4)

    assert [breaker.state(served) for served in (None, 0.0, 29.9, 30.0)] == [
        "open",
        "half-open",
        "half-open",
        "closed",
    ]
    assert [lost_at(1).state(served) for served in (None, 0.0)] == ["closed", "closed"]


def test_the_reason_is_the_same_for_each_loss_of_a_kind() -> None:
    breaker = lost_at(0, 1, 2, 3, 4)
    first = breaker.reason("killed by SIGSEGV", 30)
    breaker.lost(40, served=0)

    assert first == breaker.reason("killed by SIGSEGV", 30)
    assert first == "failed 5 times within 60 s (last: killed by SIGSEGV); tried again after up to 30 s"
