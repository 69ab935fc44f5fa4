"""Which refusals are kept, with whom, and how the agent is looked at for notices."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import cast

import pytest
from msgspec.structs import replace
from support.waiting import eventually

from agent.cluster.pod_state import PodState
from agent.core.allocation.allocations_in_use import AllocationsInUse
from agent.core.allocation.known_pods import KnownPods
from agent.core.allocation.ledger import Ledger
from agent.core.attribution.refused_requests import RefusedAllocate
from agent.core.event_notices import Notice, PodRef
from agent.core.model import Allocation, AllocationState, Owner
from agent.core.publishing.agent_status import UNKNOWN, AgentStatus
from agent.core.publishing.event_texts import notices
from agent.daemon.event_notice_source import MAX_SHOWN_IDS, MAX_SHOWN_REFUSALS, RecentRefusals, follow
from agent.scheduler_api import Candidate, PodContainer

XPU = "example.com/xpu"


def pod(name: str, count: int = 1, *, over: bool = False) -> Candidate:
    return Candidate(f"uid-{name}", "default", name, (PodContainer("main", {XPU: count}),), over=over)


def refused(containers: Sequence[Sequence[str]]) -> RefusedAllocate:
    return RefusedAllocate(XPU, tuple(map(tuple, containers)), "no")


@dataclass
class Desk:
    """Refusals with the pods and the time that a test sets."""

    pods: tuple[Candidate, ...] = ()
    taken: frozenset[tuple[str, str]] = frozenset()
    now: float = 0.0
    refusals: RecentRefusals = field(init=False)

    def __post_init__(self) -> None:
        self.refusals = RecentRefusals(cast("PodState", self), cast("Ledger", self), 3.0, lambda: self.now)

    @property
    def candidates(self) -> KnownPods:
        return KnownPods.of(self.pods)

    def in_use(self) -> AllocationsInUse:
        return AllocationsInUse.of(
            (
                age,
                Allocation(
                    uid, XPU, "acme", ("a",), ("a",), AllocationState.DONE, 0.0, owner=Owner(uid, name)
                ),
            )
            for age, (uid, name) in enumerate(self.taken)
        )

    def waiting(self, *ids: str) -> list[str]:
        """Who may have asked for these IDs."""
        self.refusals.add(refused([ids]))
        self.now += 3.0
        return [it.name for it in self.refusals.last[-1].waiting]


def test_who_may_have_asked_waits_for_as_many_ids_and_has_none() -> None:
    pods = (pod("web"), pod("two", 2), pod("done", over=True), pod("served"))
    desk = Desk(pods, frozenset({("uid-served", "main")}))

    assert desk.waiting("a") == ["web"]
    assert desk.waiting("a", "b") == ["two"]
    assert desk.waiting("a", "a") == ["web"]
    assert desk.waiting() == []


def test_who_waited_is_who_waited_then_and_not_later() -> None:
    desk = Desk((pod("web"),))
    desk.refusals.add(refused([["a"]]))
    desk.pods = (pod("web", over=True), pod("late"))
    desk.now = 3.0

    assert desk.refusals.last[0].waiting == (PodRef("default", "web", "uid-web"),)


def test_a_refusal_is_shown_once_its_pod_has_had_the_time_to_say_so() -> None:
    desk = Desk()
    desk.refusals.add(refused([["a"]]))

    desk.now = 2.9
    assert not desk.refusals.last
    desk.now = 3.0
    assert [it.number for it in desk.refusals.last] == [1]


def test_a_burst_is_kept_but_for_those_between_the_first_and_the_newest_and_the_first_ids() -> None:
    desk = Desk()
    for _ in range(MAX_SHOWN_REFUSALS + 5):
        desk.refusals.add(refused([[f"id-{n}" for n in range(10_000)]]))
    desk.now = 3.0

    last = desk.refusals.last
    assert [it.number for it in last] == [*range(1, MAX_SHOWN_REFUSALS), MAX_SHOWN_REFUSALS + 5]
    assert {len(it.ids) for it in last} == {MAX_SHOWN_IDS}


@pytest.mark.parametrize("rate", [1, 16, 21, 22, 100, 1000])
def test_every_refusal_is_told_or_counted_at_whatever_rate_they_come(rate: int) -> None:
    desk, seconds = Desk(), 20
    told, before = 0, WELL
    for second in range(seconds + 4):
        for _ in range(rate if second < seconds else 0):
            desk.refusals.add(refused([["a"]]))
            desk.now += 1 / rate
        desk.now = second + 1.0
        after = replace(WELL, refusals=desk.refusals.last)
        for notice in notices(before, after):
            counted = re.match(r"(\d+) more", notice.message)
            told += int(counted[1]) if counted else 1
        before = after

    assert told == rate * seconds


def test_only_the_last_refusals_are_shown() -> None:
    desk = Desk()
    for _ in range(MAX_SHOWN_REFUSALS + 5):
        desk.refusals.add(refused([["a"]]))
        desk.now += 3.0

    assert [it.number for it in desk.refusals.last] == list(range(6, MAX_SHOWN_REFUSALS + 6))


WELL = UNKNOWN
WRONG = replace(WELL, config_error="no such key")


@dataclass
class Looks:
    """An agent that is looked at, and what was told of it."""

    view: AgentStatus | None = UNKNOWN
    told: list[Notice] = field(default_factory=list)
    count: int = 0

    def look(self) -> AgentStatus | None:
        self.count += 1
        return self.view

    async def at(self, view: AgentStatus | None) -> list[str]:
        """Let the agent be looked at like this; the reasons told since the start."""
        self.view = view
        wanted = self.count + 2
        await eventually(lambda: self.count >= wanted)
        return [it.reason for it in self.told]


@pytest.fixture
async def looks() -> AsyncIterator[Looks]:
    looks = Looks()
    task = asyncio.create_task(follow(looks.look, lambda: (), looks.told.append, every=0.001))
    yield looks
    task.cancel()
    await asyncio.wait([task])


async def test_each_look_tells_what_has_changed_since_the_one_before(looks: Looks) -> None:
    assert await looks.at(WELL) == []
    assert await looks.at(WRONG) == ["ConfigRefused"]
    assert await looks.at(WELL) == ["ConfigRefused", "ConfigTaken"]


async def test_an_agent_that_stands_by_tells_nothing_before_it_serves(looks: Looks) -> None:
    assert await looks.at(None) == []
    assert await looks.at(WRONG) == ["ConfigRefused"]
