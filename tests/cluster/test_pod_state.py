"""The pods as they are known: those that are followed, with those that were listed at once."""

from __future__ import annotations

from dataclasses import replace

import anyio
import pytest

from agent.cluster import pod_state
from agent.cluster.pod_state import SHOWN_AFTER, PodState
from agent.core.allocation.known_pods import KnownPods
from agent.core.model import FirstList
from agent.scheduler_api import Candidate
from agent.scheduler_api.candidate import PodList

WEB, JOB, OTHER = (
    Candidate(f"uid-{it}", "default", it, created=n, version=10 + n)
    for n, it in enumerate(("web", "job", "other"))
)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def following(its: PodState, *pods: Candidate, to: int) -> None:
    """Let the watch have these pods, up to this resourceVersion."""
    its.pods.set(KnownPods.of(pods))
    its.follow_to(to)


async def looked(its: PodState, *listed: Candidate, at: int = 20) -> tuple[Candidate, ...]:
    """Let the API server list these pods, at this resourceVersion."""

    async def ask() -> PodList:
        return PodList(listed, at)

    its.ask = ask
    await its.look()
    return tuple(its.candidates)


async def test_who_was_listed_is_a_candidate_beside_who_is_followed_oldest_first() -> None:
    its = PodState()
    following(its, JOB, to=11)

    assert await looked(its, OTHER, replace(WEB, version=13), JOB) == (WEB, JOB, OTHER)


async def test_a_list_knows_a_pod_better_than_what_was_followed_before_it() -> None:
    its = PodState()
    following(its, WEB, to=10)
    promised = replace(WEB, annotations={"cards": "c0"}, version=12)

    assert await looked(its, promised) == (promised,)


async def test_what_is_followed_knows_a_pod_better_than_a_list_from_before() -> None:
    its = PodState()
    await looked(its, WEB, JOB)
    runs = replace(WEB, pending=False, version=21)

    following(its, runs, to=21)

    assert tuple(its.candidates) == (runs,)


async def test_who_is_over_stays_so_whatever_a_list_says() -> None:
    its, over = PodState(), replace(WEB, over=True)
    following(its, over, to=10)

    assert await looked(its, WEB) == (over,)


async def test_what_is_followed_later_need_not_have_all_of_the_list_yet() -> None:
    its = PodState()
    await looked(its, WEB, JOB)

    following(its, WEB, to=10)

    assert tuple(its.candidates) == (WEB, JOB)


async def test_a_pod_that_was_listed_does_not_come_back_once_the_watch_has_seen_it_go() -> None:
    its = PodState()
    following(its, WEB, to=10)
    await looked(its, WEB, JOB)
    following(its, WEB, JOB, to=11)

    following(its, JOB, to=21)  # WEB is deleted, at 21

    assert tuple(its.candidates) == (JOB,)


async def test_a_pod_that_came_and_went_before_anybody_looked_does_not_come_back_either() -> None:
    its = PodState()
    await looked(its, JOB)

    following(its, to=21)

    assert tuple(its.candidates) == ()


async def test_a_pod_of_which_the_list_knows_no_more_is_over_before_the_watch_tells() -> None:
    its = PodState()
    following(its, WEB, JOB, to=11)

    web, job = await looked(its, JOB)

    assert (web.name, web.waits, job.waits) == ("web", False, True)


async def test_a_pod_that_is_younger_than_the_list_is_not_missed_in_it() -> None:
    its = PodState()
    await looked(its, WEB)

    following(its, WEB, replace(JOB, version=21), to=21)

    assert [it.waits for it in its.candidates] == [True, True]


async def test_of_two_lists_the_later_one_counts_whichever_answer_comes_last() -> None:
    its = PodState()
    await looked(its, JOB, at=21)

    assert await looked(its, WEB, JOB, at=20) == (JOB,)


async def test_an_api_server_that_does_not_say_leaves_the_last_list() -> None:
    its = PodState()
    await looked(its, WEB)

    async def away() -> None:
        return None

    its.ask = away
    await its.look()

    assert tuple(its.candidates) == (WEB,)


async def test_who_was_listed_and_never_shows_is_gone() -> None:
    its, clock = PodState(), Clock()
    its._clock = clock
    await looked(its, WEB)
    following(its, OTHER, to=5)

    clock.now = SHOWN_AFTER + 1

    assert tuple(its.candidates) == (OTHER,)


async def test_a_mirror_that_forges_a_pods_uid_replaces_it_in_no_list() -> None:
    its = PodState()
    following(its, WEB, to=10)
    forged = Candidate(WEB.uid, "default", "forged", created=9, static=True, version=12)

    assert await looked(its, WEB, forged) == (WEB,)


async def test_nobody_waits_long_for_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_state, "SOON", 0.0)
    its = PodState()
    its.pods.set(KnownPods.of((WEB,)))

    async def ask() -> PodList:
        await anyio.sleep_forever()
        return PodList((JOB,))

    its.ask = ask
    await its.look()

    assert tuple(its.candidates) == (WEB,)


async def test_without_an_api_server_nobody_is_listed() -> None:
    its = PodState()

    await its.look()

    assert tuple(its.candidates) == ()


# Whom the kubelet found

#: Nanoseconds of a second.
S = 10**9


def bound(pod: Candidate, at: float) -> Candidate:
    return replace(pod, bound=at)


async def test_a_kubelet_finds_who_waits_as_it_lists_the_pods_and_nobody_who_comes_later() -> None:
    """The API server's clock may be another one."""
    its = PodState(wall=lambda: 200.0, lists_after=3600.0)
    following(its, bound(WEB, 900.0), replace(JOB, pending=False), to=11)
    began = its.kubelet_began(200 * S)
    until_the_list = began.send(None)
    following(its, bound(WEB, 900.0), bound(JOB, 900.0), to=12)  # before the list
    until_the_list.set_result(None)
    with pytest.raises(StopIteration):
        began.send(None)

    following(its, bound(WEB, 900.0), bound(JOB, 900.0), bound(OTHER, 100.0), to=13)

    assert its.found(its.candidates) == {WEB.uid, JOB.uid}


async def test_a_kubelet_that_begins_anew_finds_others_than_the_one_before() -> None:
    its = PodState(wall=lambda: 200.0, lists_after=0.0)
    following(its, WEB, to=11)
    await its.kubelet_began(200 * S)
    following(its, replace(WEB, pending=False), JOB, to=12)

    await its.kubelet_began(200 * S + 1)

    assert its.found(its.candidates) == {JOB.uid}


async def test_a_kubelet_that_begins_before_pods_are_followed_finds_who_was_bound_before_its_list() -> None:
    its = PodState(wall=lambda: 200.3, lists_after=0.0)
    await its.kubelet_began(100 * S)  # a dead one's socket is there still
    await its.kubelet_began(int(200.3 * S))

    following(its, bound(WEB, 199.0), bound(JOB, 200.0), bound(OTHER, 201.0), to=12)

    assert its.found(its.candidates) == {WEB.uid, JOB.uid}


async def test_a_kubelet_that_was_here_before_us_has_found_who_was_bound_before_it_listed_them() -> None:
    """Of one without a time nobody knows it."""
    its = PodState(wall=lambda: 300.0, lists_after=0.9)
    following(its, bound(WEB, 101.0), bound(JOB, 102.0), bound(OTHER, 0.0), to=12)

    began = its.kubelet_began(int(100.5 * S))
    with pytest.raises(StopIteration):
        began.send(None)  # the call ends at once: nothing is waited for

    assert its.found(its.candidates) == {WEB.uid}


async def test_who_is_bound_in_the_second_of_the_list_and_seen_later_was_not_found() -> None:
    """Times are of whole seconds; an agent that starts in that second sees some of them come."""
    its = PodState(wall=lambda: 200.5, lists_after=0.3)
    await its.kubelet_began(int(199.5 * S))  # it listed the pods 0.7 s ago
    web, job = bound(WEB, 199.0), bound(JOB, 199.0)
    following(its, web, to=11)

    following(its, web, job, to=12)

    assert its.found(its.candidates) == {WEB.uid}


async def test_pods_that_are_first_followed_just_after_the_list_tell_whom_the_kubelet_found() -> None:
    """What is bound later in that second was not in the list."""
    its = PodState(wall=lambda: 200.4, lists_after=0.3)
    await its.kubelet_began(200 * S)  # it listed the pods 0.1 s ago, and no pod was followed then
    web, job = bound(WEB, 200.0), bound(JOB, 200.0)
    following(its, web, to=11)

    following(its, web, job, to=12)

    assert its.found(its.candidates) == {WEB.uid}


async def test_an_agent_that_starts_later_knows_whom_the_one_before_saw_found() -> None:
    its, later = PodState(wall=lambda: 200.0, lists_after=0.0), PodState(wall=lambda: 202.0)
    following(its, bound(WEB, 200.0), to=11)
    await its.kubelet_began(200 * S)

    later.first.set(its.first.value)
    following(later, bound(WEB, 200.0), bound(JOB, 200.0), to=12)
    await later.kubelet_began(200 * S)

    assert later.found(later.candidates) == {WEB.uid}


async def test_what_is_known_while_the_api_server_is_away_is_not_what_a_kubelet_found() -> None:
    """The kubelet lists its pods once the server is back."""
    now = [200.0]
    its = PodState(wall=lambda: now[0], lists_after=0.0)
    following(its, replace(WEB, pending=False), to=11)
    its.is_away = True
    await its.kubelet_began(200 * S)
    assert its.first.value is None

    now[0], its.is_away = 230.0, False
    following(its, bound(JOB, 199.0), to=12)

    assert its.first.value == FirstList(200 * S, (JOB.uid,))


async def test_what_was_seen_of_another_kubelet_says_nothing_of_this_one() -> None:
    its = PodState(wall=lambda: 302.0)
    its.first.set(FirstList(200 * S, (OTHER.uid,)))
    following(its, bound(WEB, 300.0), to=12)

    await its.kubelet_began(300 * S)

    assert its.found(its.candidates) == {WEB.uid}
    assert its.first.value == FirstList(300 * S, (WEB.uid,))


async def test_a_clock_that_was_set_back_makes_no_kubelet_list_its_pods_any_later() -> None:
    its = PodState(wall=lambda: 200.0, lists_after=0.01)
    following(its, WEB, to=11)

    with anyio.fail_after(30):
        await its.kubelet_began(900 * S)
