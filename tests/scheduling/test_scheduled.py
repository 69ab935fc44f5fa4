"""The pods as they are known: those that are followed, with those that were listed at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import anyio
import pytest

from agent.core.claims import Candidate
from agent.scheduling import scheduled
from agent.scheduling.scheduled import SHOWN_AFTER, Scheduled

WEB, JOB, OTHER = (
    Candidate(f"uid-{it}", "default", it, created=n) for n, it in enumerate(("web", "job", "other"))
)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def looked(its: Scheduled, *listed: Candidate) -> tuple[Candidate, ...]:
    async def ask() -> Sequence[Candidate]:
        return listed

    its.ask = ask
    await its.look()
    return its.candidates


async def test_who_was_listed_is_a_candidate_beside_who_is_followed_oldest_first() -> None:
    its = Scheduled()
    its.pods.set((JOB,))

    assert await looked(its, OTHER, WEB) == (WEB, JOB, OTHER)


async def test_a_list_knows_a_pod_better_than_what_was_followed_before_it() -> None:
    its = Scheduled()
    its.pods.set((WEB,))
    promised = replace(WEB, annotations={"cards": "c0"})

    assert await looked(its, promised) == (promised,)


async def test_who_is_over_stays_so_whatever_a_list_says() -> None:
    its, over = Scheduled(), replace(WEB, over=True)
    its.pods.set((over,))

    assert await looked(its, WEB) == (over,)


async def test_what_is_followed_later_counts_and_need_not_have_all_of_the_list_yet() -> None:
    its, clock = Scheduled(), Clock()
    its._clock = clock
    await looked(its, WEB, JOB)

    runs = replace(WEB, pending=False)
    its.pods.set((runs, OTHER))

    assert its.candidates == (runs, JOB, OTHER)


async def test_who_was_listed_and_never_shows_is_gone() -> None:
    its, clock = Scheduled(), Clock()
    its._clock = clock
    await looked(its, WEB)
    its.pods.set((OTHER,))

    clock.now = SHOWN_AFTER + 1

    assert its.candidates == (OTHER,)


async def test_a_mirror_that_forges_a_pods_uid_replaces_it_in_no_list() -> None:
    its = Scheduled()
    its.pods.set((WEB,))
    forged = Candidate(WEB.uid, "default", "forged", created=9, static=True)

    assert await looked(its, forged) == (WEB,)


async def test_nobody_waits_long_for_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduled, "SOON", 0.0)
    its = Scheduled()
    its.pods.set((WEB,))

    async def ask() -> Sequence[Candidate]:
        await anyio.sleep_forever()
        return (JOB,)

    its.ask = ask
    await its.look()

    assert its.candidates == (WEB,)


async def test_without_an_api_server_nobody_is_listed() -> None:
    its = Scheduled()

    await its.look()

    assert its.candidates == ()
