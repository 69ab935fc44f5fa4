"""What schedulers do beside Allocate: cards by their word alone, and their locks on the node."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

import anyio
import pytest
from core.values import allocation
from schedulers.koordinator.cards import card, node
from support.waiting import eventually

from agent.cluster.pod_state import PodState
from agent.core.allocation.known_pods import KnownPods
from agent.core.allocation.ledger import Ledger
from agent.core.allocation.node_lock_rules import AHEAD, EXPIRED, EXPIRES
from agent.core.cell import Cell
from agent.core.devices.cards_of_resources import Offer
from agent.core.devices.plan import plan
from agent.core.model import AllocationSource, DeviceStatus, NodeSnapshot, Owner, Plan
from agent.daemon.external_use import ExternalUseKeeper
from agent.daemon.node_lock_keeper import NodeLockKeeper
from agent.daemon.scheduler_plugins import registered
from agent.scheduler_api import Candidate, PodContainer
from agent.schedulers.common.node_lock import LOCKS
from agent.schedulers.koordinator.allocated_annotation import ALLOCATED
from agent.vendor_api.agent import Placement, ResourceRule

GPU, SGPU = "nvidia.com/gpu", "metax-tech.com/gpu"
NVIDIA = [card(index, vendor="nvidia") for index in range(2)]
METAX = [card(5)]
EVERYBODY = node([*NVIDIA, *METAX])
STAMP = "2026-11-20T21:34:09Z"
TAKEN = 1795210449.0
(KEY,) = LOCKS


def pod(name: str, *cards: DeviceStatus, limits: dict[str, int] | None = None) -> Candidate:
    """One that was given these cards; by default it asks no device plugin."""
    asked = limits or {
        "koordinator.sh/gpu-core": 100 * len(cards),
        "koordinator.sh/gpu-memory-ratio": 100 * len(cards),
    }
    gpu = [{"minor": it.device.minor, "id": it.uuid} for it in cards]
    written = {ALLOCATED: json.dumps({"gpu": gpu})} if cards else {}
    containers = (PodContainer("main", asked),)
    return Candidate(f"uid-{name}", "default", name, containers, written, scheduler="koord-scheduler")


#: Every node has some, the agent's own at least.
OURS = pod("xpu-agent", limits={"example.com/none": 1})


class Here:
    """Schedulers with the ledger and the cells around them, on clocks that stand."""

    def __init__(self, *, every: float = 3600.0) -> None:
        self.scheduled = PodState()
        self.ledger = Ledger()
        self.snapshot = Cell(EVERYBODY)
        self.plan: Cell[Plan] = Cell({})
        self.places(nvidia="auto", metax="auto")
        self.changes = 0
        self.keys: tuple[str, ...] = LOCKS
        self.now = TAKEN
        self.steady = 1.0
        self.moved: frozenset[str] = frozenset()
        self.schedulers = ExternalUseKeeper(
            self.scheduled,
            self.ledger,
            self.plan,
            self.snapshot,
            self.changed,
            lambda: self.steady,
            moved=lambda: self.moved,
            schedulers=registered(),
        )
        self.locks = NodeLockKeeper(
            self.scheduled,
            self.ledger,
            lambda: self.keys,
            lambda: self.steady,
            wall=lambda: self.now,
            every=every,
        )

    async def changed(self) -> None:
        self.changes += 1
        self.locks.look_again()

    def places(self, **placements: Placement) -> None:
        names = {"nvidia": GPU, "metax": SGPU}
        offers = [
            Offer(vendor, (ResourceRule(names[vendor], placement=it),)) for vendor, it in placements.items()
        ]
        self.plan.set(plan(offers, EVERYBODY))

    async def pods(self, *its: Candidate) -> None:
        self.scheduled.pods.set(KnownPods.of((OURS, *its)))
        await self.schedulers.once()
        self.locks.once()

    @property
    def used(self) -> dict[str, tuple[str, ...]]:
        """Pod to the cards that it has by a scheduler's word alone."""
        its = self.ledger.external().values()
        return {it.owner.pod: it.devices for it in its if it.owner is not None}


def uuids(cards: Sequence[DeviceStatus]) -> tuple[str, ...]:
    return tuple(it.uuid for it in cards)


async def test_cards_are_in_use_from_the_word_to_the_end_of_its_pod() -> None:
    here = Here()

    await here.pods(pod("one", *NVIDIA), pod("two", *METAX))
    assert here.used == {"one": uuids(NVIDIA), "two": uuids(METAX)}
    await here.pods(pod("two", *METAX))
    assert here.used == {"two": uuids(METAX)}
    await here.pods(replace(pod("two", *METAX), ended=True))
    assert here.used == {}
    assert here.changes == 3


async def test_what_is_as_before_changes_nothing() -> None:
    here = Here()

    for _ in range(2):
        await here.pods(pod("one", *NVIDIA))

    assert here.changes == 1


def _gone(here: Here) -> None:
    here.snapshot.set(node([NVIDIA[0], *METAX]))


def _kept_for_its_holder(here: Here) -> None:
    here.snapshot.set(node([NVIDIA[0], replace(NVIDIA[1], gone=True), *METAX]))


def _nothing_listed(here: Here) -> None:
    here.snapshot.set(NodeSnapshot())


def _chosen_here(here: Here) -> None:
    here.places(nvidia="local", metax="auto")


def _not_served(here: Here) -> None:
    here.places(metax="auto")


@pytest.mark.parametrize("becomes", [_gone, _kept_for_its_holder, _nothing_listed, _chosen_here, _not_served])
async def test_a_pod_that_runs_keeps_its_cards_whatever_becomes_of_them_here(
    becomes: Callable[[Here], None],
) -> None:
    here = Here()
    await here.pods(pod("one", *NVIDIA), pod("two", *METAX))

    becomes(here)
    await here.pods(pod("one", *NVIDIA), pod("two", *METAX))
    assert here.used == {"one": uuids(NVIDIA), "two": uuids(METAX)}

    await here.pods()
    assert here.used == {}


async def test_a_card_that_is_away_is_in_use_as_soon_as_a_pod_names_it() -> None:
    here = Here()
    _kept_for_its_holder(here)

    await here.pods(pod("one", *NVIDIA))

    assert here.used == {"one": uuids(NVIDIA)}


async def test_where_cards_are_chosen_here_no_word_takes_one() -> None:
    here = Here()
    here.places(nvidia="local", metax="auto")

    await here.pods(pod("one", *NVIDIA), pod("two", *METAX))

    assert here.used == {"two": uuids(METAX)}


async def test_a_minor_is_that_of_the_card_that_is_here_before_one_that_is_gone() -> None:
    here = Here()
    before, after = card(1, vendor="nvidia"), card(1, vendor="nvidia", uuid="GPU-in-its-place")
    here.snapshot.set(node([NVIDIA[0], replace(before, gone=True), after]))
    it = pod("one", NVIDIA[1])

    await here.pods(replace(it, annotations={ALLOCATED: json.dumps({"gpu": [{"minor": 1}]})}))

    assert here.used == {"one": (after.uuid,)}


async def test_nobody_is_gone_while_no_pod_was_ever_seen() -> None:
    first, here = Here(), Here()
    await first.pods(pod("one", *NVIDIA))
    for it in first.ledger.all():
        here.ledger.record(it)

    await here.schedulers.once()
    assert here.used == {"one": uuids(NVIDIA)}

    await here.pods()
    assert here.used == {}


async def test_a_card_that_another_pod_has_is_remarked_until_that_one_is_gone() -> None:
    here = Here()
    swapped, alone = pod("swapped", limits={GPU: 1}), pod("alone", NVIDIA[0])
    owner = Owner(swapped.uid, "main", "default", "swapped")
    here.ledger.record(allocation("a1", ["GPU-1"], resource=GPU, owner=owner, devices=uuids(NVIDIA[:1])))

    def remark() -> str:
        return here.ledger.external()[NVIDIA[0].uuid].reason

    await here.pods(swapped, alone)
    assert f"{NVIDIA[0].uuid} is held by default/swapped" in remark()
    assert here.changes == 1
    await here.pods(swapped, alone)
    assert here.changes == 1
    here.moved = frozenset([swapped.uid])
    await here.pods(swapped, alone)
    assert remark().startswith("delete default/swapped: ")
    await here.pods(alone)
    assert remark() == ""
    assert here.changes == 3


async def test_what_is_remarked_stands_until_pods_are_known() -> None:
    here = Here()
    name, owner = "annotation-1", Owner("uid-alone", "", "default", "alone")
    given = allocation(name, [], resource="koordinator.sh/gpu", owner=owner, devices=uuids(NVIDIA[:1]))
    here.ledger.record(replace(given, source=AllocationSource.ANNOTATION, reason="of before"))

    await here.schedulers.once()

    assert here.ledger.in_use()[0].reason == "of before"
    assert here.changes == 0


@pytest.mark.parametrize("locked", [False, True])
async def test_an_answer_is_looked_at_where_a_lock_may_be_over_by_it(locked: bool) -> None:
    here = Here()
    rounds: list[bool] = []
    once = here.locks.once

    def counted() -> None:
        rounds.append(locked)
        once()

    here.locks.once = counted  # type: ignore[method-assign]
    if locked:
        here.scheduled.locks.annotations.set({KEY: f"{STAMP},default,web"})
    async with anyio.create_task_group() as group:
        group.start_soon(here.locks.run)
        await anyio.wait_all_tasks_blocked()
        before = len(rounds)
        here.locks.look_again()
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()

    assert len(rounds) - before == locked


async def test_a_lock_is_over_once_its_pod_has_its_cards() -> None:
    here = Here()
    asking = pod("web", limits={GPU: 1})
    here.scheduled.locks.annotations.set({KEY: f"{STAMP},default,web"})

    await here.pods(asking)
    assert here.scheduled.locks.over.value == {}

    here.ledger.record(
        allocation("a1", ["GPU-1"], resource=GPU, owner=Owner(asking.uid, "main", "default", "web"))
    )
    await here.pods(asking)
    assert [*here.scheduled.locks.over.value.values()] == ["its pod has its devices"]


async def test_a_lock_of_a_pod_that_asks_no_device_plugin_is_over_in_the_same_round() -> None:
    here = Here()
    here.scheduled.locks.annotations.set({KEY: f"{STAMP},default,one"})

    await here.pods(pod("one", *NVIDIA))

    assert [*here.scheduled.locks.over.value.values()] == ["its pod has its devices"]


async def test_a_lock_of_a_vendor_that_serves_here_is_over_alike_and_no_other_is_touched() -> None:
    here = Here()
    here.keys = (*LOCKS, "acme.com/mutex.lock")
    value = f"{STAMP},default,one"
    here.scheduled.locks.annotations.set({"acme.com/mutex.lock": value, "other.com/mutex.lock": value})

    await here.pods(pod("one", *NVIDIA))

    assert [it.key for it in here.scheduled.locks.over.value] == ["acme.com/mutex.lock"]


async def test_a_lock_that_time_ended_is_remembered_once_it_is_freed_and_no_other_is() -> None:
    here = Here()
    for seconds, name in ((EXPIRES, "late"), (0.0, "young"), (EXPIRES, "late")):
        here.now = TAKEN + seconds
        here.scheduled.locks.annotations.set({KEY: f"{STAMP},default,{name}"})
        await here.pods()
        here.scheduled.locks.annotations.set({})
        await here.pods()

    assert here.scheduled.locks.over.value == {}
    (said,) = here.scheduled.locks.stale
    assert f"{STAMP},default,late has not come for its devices, {EXPIRED}" in said


async def test_a_lock_of_a_time_to_come_is_over_once_it_has_been_seen_for_long_enough() -> None:
    here = Here()
    here.now = TAKEN - 86400.0
    here.scheduled.locks.annotations.set({KEY: f"{STAMP},default,web"})
    await here.pods()
    here.steady += EXPIRES - 1
    await here.pods()
    assert here.scheduled.locks.over.value == {}

    here.steady += 1
    await here.pods()
    assert [*here.scheduled.locks.over.value.values()] == [AHEAD]
    assert AHEAD in here.scheduled.locks.stale[-1]
    here.scheduled.locks.annotations.set({})
    await here.pods()
    assert here.scheduled.locks.dated_ahead == {}


async def test_time_alone_ends_a_lock_without_any_news() -> None:
    here = Here(every=0.01)
    here.scheduled.locks.annotations.set({KEY: f"{STAMP},default,web"})
    async with anyio.create_task_group() as group:
        group.start_soon(here.locks.run)
        here.now += EXPIRES

        await eventually(lambda: [*here.scheduled.locks.over.value.values()] == [EXPIRED])
        group.cancel_scope.cancel()


async def test_news_of_pods_plan_devices_and_answers_are_heard_at_once() -> None:
    here = Here()
    async with anyio.create_task_group() as group:
        group.start_soon(here.schedulers.run)
        group.start_soon(here.locks.run)
        here.snapshot.set(node(METAX))
        here.scheduled.pods.set(KnownPods.of((OURS, pod("one", *NVIDIA), pod("two", *METAX))))
        await eventually(lambda: "two" in here.used)
        here.snapshot.set(EVERYBODY)
        await eventually(lambda: "one" in here.used)
        here.places(nvidia="auto", metax="local")
        here.scheduled.pods.set(KnownPods.of((OURS, pod("three", *METAX))))
        await eventually(lambda: "two" not in here.used)
        here.places(nvidia="auto", metax="auto")
        await eventually(lambda: "three" in here.used)
        here.scheduled.locks.annotations.set({KEY: f"{STAMP},default,two"})
        asking = replace(pod("two", limits={GPU: 1}), uid="uid-again")
        here.scheduled.pods.set(KnownPods.of((OURS, asking)))
        await eventually(lambda: not here.used)
        here.ledger.record(
            allocation("a1", ["GPU-1"], resource=GPU, owner=Owner(asking.uid, "main", "default", "two"))
        )
        here.locks.look_again()
        await eventually(lambda: here.scheduled.locks.over.value)
        group.cancel_scope.cancel()
