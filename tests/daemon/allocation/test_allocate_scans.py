"""An Allocate reads as little with hundreds of allocations in use as with a few."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import pytest
from core.room import Room
from core.scenes import SHARE, held

from agent.core.allocation.ledger import Ledger
from agent.core.allocation.scene import Scene
from agent.core.devices.cards_of_resources import Offer
from agent.core.devices.plan import plan
from agent.core.model import Allocation, Owner
from agent.vendor_api.agent import Placement, ResourceRule, Sharing

OTHER = "acme.com/other"
SHARES = 600


class WatchedAllocation(Allocation):
    """An allocation that counts how often any of its kind is read."""

    __slots__ = ()
    reads: ClassVar[int] = 0

    def __getattribute__(self, name: str) -> Any:
        WatchedAllocation.reads += 1
        return super().__getattribute__(name)


def watched(known: Allocation) -> Allocation:
    return WatchedAllocation(**{name: getattr(known, name) for name in Allocation.__slots__})


class FullRoom(Room):
    """A node with two cards in many shares, of which some pods have a number already."""

    def __init__(self, in_use: int, sharing: Sharing, **more: Any) -> None:
        super().__init__(**more)
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

    def scene(self) -> Scene:
        return replace(self._known, external=self.ledger.external())

    async def save(self, *, durable: bool) -> None:
        """Keep nothing: what a save costs is another question."""

    async def admit_pod(self, card: str) -> None:
        """Take a container through all three calls, and have the kubelet confirm it."""
        [device_id] = self.allocator.preferred(SHARE, self._ids[card][SHARES // 2 :], [], 1)
        await self.allocate(SHARE, [[device_id]])
        await self.allocator.pre_start(SHARE, [device_id])
        self.ledger.confirm(self.ledger.all()[-1].id, Owner(f"uid-{card}", "main", "default", card), "k1")
        self.ledger.usage()


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
        await room.admit_pod("c0")
        before = WatchedAllocation.reads
        await room.admit_pod("c1")
        reads.append(WatchedAllocation.reads - before)

    assert reads[0] == reads[1]


def test_a_read_of_each_allocation_is_counted() -> None:
    ledger = Ledger([watched(held("a", "c0")), watched(held("b", "c1"))])
    before = WatchedAllocation.reads

    assert [it.id for it in ledger.in_use() if it.resource == SHARE] == []

    assert WatchedAllocation.reads - before == 2
