"""External use: keeps the ledger as the annotations of pods say."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

import anyio
import structlog

from agent.cluster.pod_state import PodState
from agent.core.allocation.ledger import Ledger
from agent.core.attribution.external_use_rules import external_allocations, external_changes
from agent.core.cell import Cell
from agent.core.endless_tasks import for_ever, set_on_change
from agent.core.model import NodeSnapshot, Plan
from agent.core.placement.double_booking import double_bookings
from agent.scheduler_api import Cards, Scheduler

log = structlog.get_logger(__name__)


class ExternalUseKeeper:
    """Records external use, and cards that were given twice by it, in the ledger."""

    def __init__(
        self,
        pods: PodState,
        ledger: Ledger,
        plan: Cell[Plan],
        snapshot: Cell[NodeSnapshot],
        changed: Callable[[], Awaitable[None]],
        clock: Callable[[], float],
        *,
        moved: Callable[[], Collection[str]] = frozenset,
        schedulers: Sequence[Scheduler] = (),
    ) -> None:
        """`changed` is awaited after the ledger was changed. `clock`: Unix seconds.

        `moved`: uids of the pods that have other cards than were chosen for them. `schedulers`: the
        registered ones, in the order in which their annotations are read.
        """
        self._pods = pods
        self._ledger = ledger
        self._plan = plan
        self._snapshot = snapshot
        self._changed = changed
        self._clock = clock
        self._moved = moved
        self._schedulers = schedulers
        self._changes = asyncio.Event()
        #: Whether any pod was ever seen. This node always has some, the agent's own pod at least.
        self._has_seen_pods = False

    async def run(self) -> None:
        """Follow pods and devices, for ever."""
        cells: tuple[Cell[Any], ...] = (self._pods.pods, self._plan, self._snapshot)
        async with anyio.create_task_group() as group:
            group.start_soon(for_ever, set_on_change, self._changes, *cells)
            while True:
                self._changes.clear()
                await self.once()
                await self._changes.wait()

    async def once(self) -> None:
        """Look once, and change the ledger accordingly."""
        # Double bookings show once the ledger is as the pods say.
        changed = [self._follow_pods(), self._follow_double_bookings()]
        if any(changed):
            await self._changed()

    def _follow_pods(self) -> bool:
        """Record external use as the pods say; return whether the ledger changed."""
        pods, now = self._pods.pods.value, self._clock()
        self._has_seen_pods = self._has_seen_pods or bool(pods)
        found = external_allocations(self._schedulers, pods, self._plan.value, self._vendor_cards(), now)
        changed, ended = external_changes(
            self._ledger.in_use().external(), found, pods, pods_known=self._has_seen_pods
        )
        for allocation in changed:
            self._ledger.record(allocation)
            owner = allocation.owner
            log.info(
                "cards in use by a scheduler's word",
                pod=f"{owner.namespace}/{owner.pod}" if owner else "",
                vendor=allocation.vendor,
                devices=list(allocation.devices),
            )
        for released in ended:
            self._ledger.release(released.allocation, released.reason, now)
            log.info("cards no longer in use by a scheduler's word", allocation=released.allocation)
        return bool(changed or ended)

    def _follow_double_bookings(self) -> bool:
        """Remark double bookings in the ledger; return whether any came or went."""
        known = self._ledger.in_use().external()
        if not (known and self._has_seen_pods):
            return False
        pods, plan, snapshot = self._pods.pods.value, self._plan.value, self._snapshot.value
        found = double_bookings(self._ledger.in_use(), pods, plan, snapshot, self._moved(), self._schedulers)
        changed = [(it, why) for it in known if (why := found.get(it.id, "")) != it.reason]
        for allocation, why in changed:
            self._ledger.remark(allocation.id, why)
            if why:
                log.warning("card given twice", allocation=allocation.id, why=why)
        return bool(changed)

    def _vendor_cards(self) -> Mapping[str, Cards]:
        """Vendor to its cards, for vendors of a resource with placement by schedulers."""
        names = {it.vendor for it in self._plan.value.values() if it.rule.placement != "local"}
        found = {name: self._cards(name) for name in names}
        return {name: cards for name, cards in found.items() if cards}

    def _cards(self, vendor: str) -> Cards:
        """The vendor's cards: present ones first, then cards that are away and may be in use."""
        statuses = sorted(self._snapshot.value.of(vendor), key=lambda it: it.gone)
        return {it.uuid: it.device.minor for it in statuses if not it.device.parent}
