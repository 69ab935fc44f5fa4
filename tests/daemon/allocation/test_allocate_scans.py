"""An Allocate reads as little with hundreds of pods and of their allocations as with a few."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar

import pytest
from core.room import Room
from core.scenes import CHOSEN, SHARE, bound, held

from agent.cluster.pod_state import PodState
from agent.core.allocation.known_pods import KnownPods
from agent.core.allocation.ledger import Ledger
from agent.core.allocation.scene import Scene
from agent.core.cell import Cell
from agent.core.devices.cards_of_resources import Offer
from agent.core.devices.plan import plan
from agent.core.model import Allocation, Owner
from agent.daemon.allocation.pod_waiter import PodWaiter
from agent.scheduler_api import Candidate
from agent.vendor_api.agent import Placement, ResourceRule, Sharing

OTHER = "acme.com/other"
SHARES = 600
NOTHING: Mapping[str, Sequence[str]] = MappingProxyType({})
#: Pod to the cards that a scheduler promised to the pod.
PROMISED = {"first": ("c0",), "second": ("c0",), "third": ("c1",)}


class WatchedAllocation(Allocation):
    """An allocation that counts how often any of its kind is read."""

    __slots__ = ()
    reads: ClassVar[int] = 0

    def __getattribute__(self, name: str) -> Any:
        WatchedAllocation.reads += 1
        return super().__getattribute__(name)


def watched(known: Allocation) -> Allocation:
    return WatchedAllocation(**{name: getattr(known, name) for name in Allocation.__slots__})


class WatchedPod(Candidate):
    """A pod that counts how often any of its kind is read."""

    __slots__ = ()
    reads: ClassVar[int] = 0

    def __getattribute__(self, name: str) -> Any:
        WatchedPod.reads += 1
        return super().__getattribute__(name)


def watched_pod(known: Candidate) -> Candidate:
    return WatchedPod(**{name: getattr(known, name) for name in Candidate.__slots__})


class FullRoom(Room):
    """A node with two cards in many shares, of which some pods have a number already."""

    def __init__(
        self,
        in_use: int,
        sharing: Sharing,
        promised: Mapping[str, Sequence[str]] = NOTHING,
        confirms: bool = True,
        **more: Any,
    ) -> None:
        """Three pods wait. `promised`: pod to the cards that a scheduler promised."""
        super().__init__(**more)
        self.confirms = confirms
        rules = (
            ResourceRule(SHARE, devices=("c0", "c1"), sharing=sharing, placement=self.placement),
            ResourceRule(OTHER, devices=("c0", "c1"), placement=self.placement),
        )
        known = super().scene()
        snapshot = replace(
            known.snapshot,
            devices=tuple(
                replace(it, device=replace(it.device, memory=SHARES << 30)) for it in known.snapshot.devices
            ),
        )
        planned = plan([Offer("acme", rules, dynamic=True)], snapshot)
        self._known = replace(known, plan=planned, snapshot=snapshot)
        self._ids = {card.uuid: [*card] for card in planned[SHARE].cards}
        for n in range(in_use):
            card = f"c{n % 2}"
            allocation = held(f"pod-{n}", self._ids[card][n // 2], resource=SHARE, life="k1")
            self.ledger.record(watched(replace(allocation, devices=(card,), unit=sharing.unit or "")))
        self.pods = PodState()
        served = [bound(f"pod-{n}", resource=SHARE, pending=False, created=1.0) for n in range(in_use)]
        waiting = [
            bound(name, *promised.get(name, ()), resource=SHARE, created=created)
            for created, name in enumerate(PROMISED, 2)
        ]
        self.pods.pods.set(KnownPods.of(map(watched_pod, (*served, *waiting))))
        self.pod_waiter = PodWaiter(Cell(planned), lambda: self.allocator.promises, self.pods)

    def scene(self) -> Scene:
        return replace(self._known, external=self.ledger.external(), candidates=self.pods.candidates)

    async def save(self, *, durable: bool) -> None:
        """Keep nothing: what a save costs is another question."""

    async def admit_pod(self, card: str, name: str) -> None:
        """Take the container of this pod through all three calls, and have the kubelet confirm it."""
        free = [it for it in self._ids[card][SHARES // 2 :] if not self.ledger.holders(SHARE, [it])]
        await self.pod_waiter.expect(SHARE, 1)
        [device_id] = self.allocator.preferred(SHARE, free, [], 1)
        await self.pod_waiter.wait(SHARE, [[device_id]])
        await self.allocate(SHARE, [[device_id]])
        await self.allocator.pre_start(SHARE, [device_id])
        if self.confirms:
            owner = Owner(f"uid-{name}", "main", "default", name)
            self.ledger.confirm(self.ledger.all()[-1].id, owner, "k1")
        self.ledger.usage()

    def runs(self, name: str) -> None:
        """Let the agent hear that this pod runs."""
        known = self.pods.pods.value
        self.pods.pods.set(known.after((), [replace(known.by_uid[f"uid-{name}"], pending=False)]))


@pytest.mark.parametrize("prepares", [False, True], ids=["", "made hardware"])
@pytest.mark.parametrize("placement", ["local", "auto"])
@pytest.mark.parametrize(
    "sharing",
    [Sharing("replicas", SHARES), Sharing("replicas", SHARES, span_cards=False), Sharing("memory", unit="1")],
    ids=["replicas", "replicas of one card", "memory"],
)
async def test_an_admission_reads_no_more_of_five_hundred_allocations_than_of_fifty(
    sharing: Sharing, placement: Placement, prepares: bool
) -> None:
    reads = []
    for in_use in (50, 500):
        room = FullRoom(in_use, sharing, placement=placement, prepares=prepares)
        await room.admit_pod("c0", "first")
        before = WatchedAllocation.reads
        await room.admit_pod("c1", "second")
        reads.append(WatchedAllocation.reads - before)

    assert reads[0] == reads[1]


@pytest.mark.parametrize("confirms", [False, True], ids=["burst", ""])
@pytest.mark.parametrize(
    ("placement", "promised"),
    [("auto", {}), ("auto", PROMISED), ("claim", PROMISED)],
    ids=["nothing promised", "promised", "scheduler has to choose"],
)
async def test_an_admission_reads_no_more_of_five_hundred_pods_than_of_fifty(
    placement: Placement, promised: Mapping[str, Sequence[str]], confirms: bool
) -> None:
    reads = []
    for served in (50, 500):
        sharing = Sharing("replicas", SHARES)
        room = FullRoom(served, sharing, promised, confirms, placement=placement, dialects=(CHOSEN,))
        for name in ("first", "second"):
            await room.admit_pod("c0", name)
            room.runs(name)
        before = WatchedPod.reads
        await room.admit_pod("c1", "third")
        reads.append(WatchedPod.reads - before)

    assert reads[0] == reads[1] > 0


def test_a_read_of_each_allocation_is_counted() -> None:
    ledger = Ledger([watched(held("a", "c0")), watched(held("b", "c1"))])
    before = WatchedAllocation.reads

    assert [it.id for it in ledger.in_use() if it.resource == SHARE] == []

    assert WatchedAllocation.reads - before == 2
