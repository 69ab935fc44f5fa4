"""Who may ask is waited for before it is answered: as long as the resource's rule has it, and no longer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from core.room import Room, heeding
from core.scenes import SHARE, SLICE, WHOLE, bound, held, shown

from agent.cluster.pod_state import PodState
from agent.core.allocation.admission import Admitted, admit
from agent.core.allocation.known_pods import KnownPods
from agent.core.allocation.scene import Scene
from agent.core.cell import Cell
from agent.core.errors import AllocationError, NotPromised, UnhealthyDevice
from agent.daemon.allocation import allocator, pod_waiter
from agent.daemon.allocation.allocate_calls import AllocateCalls
from agent.daemon.allocation.pod_waiter import PodWaiter
from agent.scheduler_api import Candidate
from agent.scheduler_api.candidate import PodList
from agent.vendor_api.agent import Placement


@dataclass
class Node:
    """A room, the pods that are followed, and an API server that lists others when it is asked."""

    room: Room
    within: float = 60.0
    listed: Callable[[], Awaitable[Sequence[Candidate]]] | None = None
    lists: int = 0
    scheduled: PodState = field(default_factory=PodState)

    def __post_init__(self) -> None:
        self.scheduled.pods.set(KnownPods.of(self.room.candidates))
        self.scheduled.ask = self.ask
        self.room.heard = lambda: self.scheduled.candidates
        self.askers = PodWaiter(
            Cell(self.room.scene().plan),
            lambda: self.room.allocator.promises,
            self.scheduled,
            within=self.within,
        )
        self.room.scenes = 0
        self.timed = AllocateCalls(self.room.allocator, pod_waiter=self.askers)

    async def ask(self) -> PodList | None:
        self.lists += 1
        return PodList(tuple(await self.listed())) if self.listed else None

    def pods(self) -> list[str | None]:
        return [it.claim.pod if it.claim else None for it in self.room.ledger.all()]


def having(device_id: str, **more: Any) -> Room:
    """A room where a pod had a device, which its kubelet gives out again."""
    room = heeding(**more)
    room.ledger.record(held("gone", device_id))
    return room


def listing(*pods: Candidate) -> Callable[[], Awaitable[Sequence[Candidate]]]:
    async def listed() -> Sequence[Candidate]:
        for _ in range(3):  # it takes time: whose patience is spent does not hear it
            await asyncio.sleep(0)
        return pods

    return listed


async def test_pods_that_nobody_told_of_are_listed_once_where_a_scheduler_may_have_chosen() -> None:
    node = Node(heeding(), listed=listing(bound("web", "c1")))

    await node.timed.expect(WHOLE, 1)

    assert node.timed.preferred(WHOLE, ["c0", "c1"], [], 1) == ["c1"]
    await node.timed.allocate(WHOLE, [["c1"]])
    assert node.lists == 1
    assert node.pods() == ["web"]


@pytest.mark.parametrize(
    ("placement", "pods", "lists"),
    [
        ("local", (), 0),
        ("auto", (bound("job"),), 0),
        ("auto", (bound("pair", count=2),), 1),
        ("auto", (bound("runs", pending=False),), 1),
        ("claim", (bound("web", "c0"),), 0),
    ],
    ids=[
        "where none chooses",
        "a pod is known that asks",
        "another count is known",
        "one that runs asks no more",
        "a promise is known",
    ],
)
async def test_pods_are_not_listed_without_need(
    placement: Placement, pods: tuple[Candidate, ...], lists: int
) -> None:
    node = Node(heeding(*pods, placement=placement))

    await node.timed.allocate(WHOLE, [["c0"]])

    assert node.lists == lists


@pytest.mark.parametrize("resource", ["acme.com/none", WHOLE], ids=["unknown", "its vendor is left out"])
async def test_nobody_is_expected_of_a_resource_that_nobody_serves(resource: str) -> None:
    room = heeding(placement="claim")
    room.left_out = True
    node = Node(room)

    await node.timed.expect(resource, 1)
    with pytest.raises(AllocationError):
        await node.timed.allocate(resource, [["c0"]])

    assert node.lists == 0


async def test_a_promise_that_is_heard_of_while_it_is_waited_for_counts() -> None:
    node = Node(heeding(placement="claim"))

    async def heard() -> Sequence[Candidate]:
        node.scheduled.pods.set(KnownPods.of((bound("web", "c1"),)))
        return ()

    node.listed = heard
    await node.timed.allocate(WHOLE, [["c1"]])

    assert node.pods() == ["web"]


async def test_a_card_that_fails_while_pods_are_listed_is_not_given_out() -> None:
    node = Node(heeding())

    async def failing() -> Sequence[Candidate]:
        node.room.failed = frozenset({"c1"})
        return ()

    node.listed = failing
    with pytest.raises(UnhealthyDevice):
        await node.timed.allocate(WHOLE, [["c1"]])

    assert node.room.ledger.all() == ()


async def test_who_waits_for_a_promise_holds_nobody_up() -> None:
    node = Node(heeding(bound("web", "c4", resource=SHARE), placement="claim"))
    asked = asyncio.Event()

    async def listed() -> Sequence[Candidate]:
        asked.set()
        return ()

    node.listed = listed
    waits = asyncio.create_task(node.timed.allocate(WHOLE, [["c1"]]))
    await asked.wait()

    await node.timed.allocate(SHARE, [["c4::0"]])

    assert not waits.done()
    node.scheduled.pods.set(KnownPods.of((bound("job", "c1"),)))
    await waits
    assert node.pods() == ["web", "job"]


async def test_a_request_without_a_promise_is_refused_in_the_end() -> None:
    node = Node(heeding(bound("job"), placement="claim"), within=0.0)

    with pytest.raises(NotPromised):
        await node.timed.allocate(WHOLE, [["c0"]])

    assert node.lists <= 1


async def test_what_is_refused_anyhow_waits_for_nobody_and_leaves_no_patience_to_the_next() -> None:
    node = Node(heeding(placement="claim"), within=0.0)
    await node.timed.expect(WHOLE, 1)
    node.askers._within = 60.0

    lists = node.lists
    with pytest.raises(UnhealthyDevice):
        await node.timed.allocate(WHOLE, [["sick"]])
    assert node.lists == lists
    node.listed = listing(bound("web", "c1"))
    await node.timed.allocate(WHOLE, [["c1"]])

    assert node.pods() == ["web"]


async def test_a_request_that_never_came_to_its_allocate_leaves_no_patience_to_the_next() -> None:
    node = Node(heeding(placement="claim"), within=0.0)
    await node.timed.expect(WHOLE, 1)
    node.askers._within = 60.0

    node.listed = listing(bound("web", "c1"))
    await node.timed.expect(WHOLE, 1)

    assert node.timed.preferred(WHOLE, ["c0", "c1"], [], 1) == ["c1"]


async def test_what_a_request_left_long_ago_is_no_patience_of_an_allocate() -> None:
    node = Node(heeding(placement="claim"), listed=listing(bound("web", "c1")))
    node.askers._until[WHOLE, 1] = asyncio.get_running_loop().time() - 2 * node.within

    await node.timed.allocate(WHOLE, [["c1"]])

    assert node.pods() == ["web"]


@pytest.mark.parametrize("placement", ["auto", "claim"])
async def test_who_was_refused_is_not_who_is_waited_for(placement: Placement) -> None:
    node = Node(heeding(bound("early", "c0"), placement=placement))
    with pytest.raises(UnhealthyDevice):
        await node.timed.allocate(WHOLE, [["sick"]])

    node.listed = listing(bound("late", "c1", created=9))
    await node.timed.expect(WHOLE, 1)

    assert node.timed.preferred(WHOLE, ["c0", "c1"], [], 1) == ["c1"]


async def test_whom_pod_resources_alone_shows_is_not_who_is_waited_for() -> None:
    node = Node(heeding(bound("web", "c5", resource=SHARE)))
    node.room.ledger.record(shown("web", "c5::0"))

    await node.timed.expect(SHARE, 1)

    assert node.lists == 1


async def test_both_calls_of_a_request_wait_for_as_long_as_one() -> None:
    node = Node(heeding(placement="claim"), within=0.05)
    await node.timed.expect(WHOLE, 1)
    node.askers._within = 60.0

    with pytest.raises(NotPromised):
        await node.timed.allocate(WHOLE, [["c0"]])


# How often the node is looked at


@pytest.mark.parametrize(
    ("room", "resource", "containers", "looks"),
    [
        pytest.param(heeding(placement="local"), WHOLE, [["c0"]], 1, id="nothing is awaited"),
        pytest.param(heeding(placement="local"), WHOLE, [["c0"], ["c1"]], 1, id="two containers"),
        pytest.param(having("c0", placement="local"), WHOLE, [["c0"]], 2, id="the kubelet is asked"),
        pytest.param(Room(prepares=True), SLICE, [["c2::0"]], 2, id="a slice is made"),
        pytest.param(heeding(bound("web", "c0")), WHOLE, [["c0"]], 2, id="its pod is looked for"),
        pytest.param(heeding(), WHOLE, [["c0"]], 2, id="pods are listed first"),
    ],
)
async def test_an_allocate_looks_at_the_node_once_and_again_after_each_wait(
    monkeypatch: pytest.MonkeyPatch, room: Room, resource: str, containers: list[list[str]], looks: int
) -> None:
    """As often as that, its request is admitted."""
    node, admissions = Node(room), 0

    def admitted(scene: Scene, resource: str, ids: Sequence[str]) -> Admitted:
        nonlocal admissions
        admissions += 1
        return admit(scene, resource, ids)

    monkeypatch.setattr(allocator, "admit", admitted)
    monkeypatch.setattr(pod_waiter, "admit", admitted)

    await node.timed.allocate(resource, containers)

    assert (node.room.scenes, admissions) == (looks, looks * len(containers))
