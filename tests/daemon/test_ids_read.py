"""How often device IDs are read while the node state is refreshed: a node can have 128,000 in use."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import SupportsIndex

import anyio
import pytest
from core.values import GPU, allocation

from agent.core.allocation.ledger import Ledger
from agent.core.devices.inventory import Inventory
from agent.core.devices.offers import VendorRules
from agent.core.model import VendorState, VendorStatus
from agent.daemon.node_state import MANY_IDS, NodeState
from agent.vendor_api.agent import ContainerEdits, Device, ResourceRule, Sharing, Vendor


class CountedId(str):
    """A device ID that counts how often an ID is read."""

    __slots__ = ()
    reads = 0

    @classmethod
    def _count(cls) -> None:
        CountedId.reads += 1

    def __hash__(self) -> int:
        self._count()
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        self._count()
        return super().__eq__(other)

    def __lt__(self, other: str) -> bool:
        self._count()
        return super().__lt__(other)

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        self._count()
        return super().__getitem__(key)

    def rpartition(self, sep: str) -> tuple[str, str, str]:
        self._count()
        return super().rpartition(sep)


def reads(work: Callable[[], object]) -> int:
    """How often IDs are read meanwhile."""
    before = CountedId.reads
    work()
    return CountedId.reads - before


UUIDS = ("GPU-a", "GPU-b")
#: How pods hold their cards: form of the IDs, IDs of one pod, and the other card that they lie on.
WAYS = {
    "a pod has each card": ("bl62ea", "u6v54g", 0, ()),
    "pods have parts": ("bl62ea", "u6v54g", 10, ()),
    "pods have parts of other cards": ("bl62ea", "u6v54g", 10, ("GPU-b",)),
    "another plugin gave the IDs": ("0", "1", 10, ()),
}


def held_node(units: int, way: str) -> tuple[NodeState, Ledger, Callable[[], None]]:
    """A node with two cards of so many units, all held but for the last ones, and what lists the cards."""
    first, second, of_a_pod, diverged = WAYS[way]
    allocations = []
    for stem, uuid in ((first, "GPU-a"), (second, "GPU-b")):
        between = "-" if stem.isdigit() else "::"
        ids = [CountedId(f"{stem}{between}{n}") for n in range(units - 10)]
        size = of_a_pod or len(ids)
        for at in range(0, len(ids), size):
            known = allocation(f"{uuid}-{at}", ids[at : at + size], devices=(uuid,))
            allocations.append(replace(known, unit="0.001", diverged=diverged if uuid == "GPU-a" else ()))
    ledger = Ledger(allocations)
    state = NodeState(Inventory(), ledger, lambda: 0.0)
    vendor = Vendor("acme", "a:B", GPU, lambda *_: ContainerEdits())
    rule = ResourceRule(GPU, sharing=Sharing("memory", unit="0.001"))
    opened = [VendorStatus("acme", VendorState.STARTING)]
    state.configure({"acme": vendor}, [VendorRules(vendor, (rule,))], opened)
    memory = -(-units * 1024 // 1000) << 20
    cards = [Device(uuid, n, memory=memory, minor=n) for n, uuid in enumerate(UUIDS)]
    state.discovered("acme", cards)
    return state, ledger, lambda: state.discovered("acme", cards)


@pytest.mark.parametrize("way", WAYS)
def test_a_refresh_in_which_nothing_changed_reads_no_id(way: str) -> None:
    state, ledger, discover = held_node(1_000, way)
    discover()

    assert reads(discover) == 0
    assert reads(state.tick) == 0
    assert reads(lambda: ledger.remark("GPU-b-0", "a person should know this")) == 0
    assert reads(discover) == 0


def recorded_and_released(state: NodeState, ledger: Ledger, ids: Iterable[str]) -> None:
    """A pod gets these IDs of the first card, and ends."""
    ledger.record(replace(allocation("new", ids, devices=("GPU-a",)), unit="0.001"))
    state.refresh()
    ledger.release("new", "over", now=1)
    state.refresh()


@pytest.mark.parametrize("way", ["a pod has each card", "pods have parts"])
def test_a_pod_that_comes_and_goes_costs_the_reads_of_its_own_ids_however_many_others_there_are(
    way: str,
) -> None:
    counts = []
    for units in (1_000, 4_000):
        state, ledger, discover = held_node(units, way)
        discover()
        new = [CountedId(f"bl62ea::{n}") for n in range(units - 10, units)]
        counts.append(reads(lambda: recorded_and_released(state, ledger, new)))  # noqa: B023 - called at once

    assert counts[0] == counts[1] > 0


async def test_pods_that_come_one_after_the_other_leave_no_refresh_with_the_ids_of_them_all() -> None:
    """The kubelet may admit 64 pods of 2,000 units each between two discoveries of the cards."""
    state, ledger, discover = held_node(4_000, "a pod has each card")
    discover()
    ledger.release("GPU-a-0", "over", now=1)
    discover()
    reads_of_a_pod = []
    async with anyio.create_task_group() as group:
        group.start_soon(state.follow_held_ids)
        for at in range(0, 3_000, 100):
            ids = [CountedId(f"bl62ea::{n}") for n in range(at, at + 100)]
            ledger.record(replace(allocation(f"new-{at}", ids, devices=("GPU-a",)), unit="0.001"))
            before = CountedId.reads
            await anyio.wait_all_tasks_blocked()
            reads_of_a_pod.append(CountedId.reads - before)
        group.cancel_scope.cancel()

    assert ledger.unread_ids < MANY_IDS
    assert sum(1 for count in reads_of_a_pod if count) == 3_000 // MANY_IDS, "no refresh for a few IDs"
    assert max(reads_of_a_pod) < 2 * min(filter(None, reads_of_a_pod))
