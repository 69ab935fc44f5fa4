"""What schedulers do beside Allocate: cards for pods that ask no device plugin, and locks on the node."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

import anyio
import structlog

from agent.cluster.pod_state import PodState
from agent.core.allocation.double_booking import overlaps
from agent.core.allocation.external_pods import changes, external
from agent.core.allocation.ledger import Ledger
from agent.core.allocation.node_locks import ahead, locks, over, stale
from agent.core.cell import Cell
from agent.core.endless_tasks import for_ever
from agent.core.model import AllocationSource, NodeSnapshot, Plan
from agent.scheduler_api import Cards, Scheduler

log = structlog.get_logger(__name__)

#: Locks that time alone ended and that are still shown.
STALE = 16


class ExternalUseKeeper:
    """Keeps the ledger as the pods' annotations say, and says which locks are over."""

    def __init__(
        self,
        scheduled: PodState,
        ledger: Ledger,
        plan: Cell[Plan],
        snapshot: Cell[NodeSnapshot],
        changed: Callable[[], Awaitable[None]],
        clock: Callable[[], float],
        *,
        keys: Callable[[], Collection[str]] = tuple,
        moved: Callable[[], Collection[str]] = frozenset,
        schedulers: Sequence[Scheduler] = (),
        every: float = 30.0,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`changed` is awaited after the ledger was changed; `keys`: of the locks that are freed here.

        `moved`: uids of the pods that have other cards than were chosen for them. `wall` is the time that
        schedulers go by. `schedulers`: the registered ones, in the order in which they are heard.
        """
        self._scheduled = scheduled
        self._ledger = ledger
        self._plan = plan
        self._snapshot = snapshot
        self._changed = changed
        self._clock = clock
        self._keys = keys
        self._moved = moved
        self._schedulers = schedulers
        self._every = every
        self._wall = wall
        self._news = anyio.Event()
        #: Whether any pods were ever seen: this node has some always, the agent's own at least.
        self._heard = False

    def look_again(self) -> None:
        """Something was answered or refused, which may end a lock."""
        if self._scheduled.locks.value:
            self._news.set()

    async def run(self) -> None:
        """Follow pods, devices, ledger and locks for ever; now and then time alone ends a lock."""
        cells: tuple[Cell[Any], ...] = (
            self._scheduled.pods,
            self._scheduled.locks,
            self._plan,
            self._snapshot,
        )
        async with anyio.create_task_group() as group:
            for cell in cells:
                group.start_soon(for_ever, self._hear, cell)
            while True:
                self._news = anyio.Event()
                await self.once()
                with anyio.move_on_after(self._every):
                    await self._news.wait()

    async def once(self) -> None:
        """Look, and change what is to be changed."""
        # What two have is seen once the ledger is as the pods say.
        changed = [self._follow_pods(), self._follow_overlaps()]
        if any(changed):
            await self._changed()
        self._follow_locks()

    async def _hear(self, cell: Cell[Any]) -> None:
        async for _ in cell.watch():
            self._news.set()

    def _follow_pods(self) -> bool:
        """Whether the ledger is another one now."""
        pods, now = self._scheduled.pods.value, self._clock()
        self._heard = self._heard or bool(pods)
        found = external(self._schedulers, pods, self._plan.value, self._heeding(), now)
        news, gone = changes(self._ledger.in_use(), found, pods, heard=self._heard)
        for it in news:
            self._ledger.record(it)
            pod = f"{it.owner.namespace}/{it.owner.pod}" if it.owner else ""
            log.info(
                "cards in use by a scheduler's word", pod=pod, vendor=it.vendor, devices=list(it.devices)
            )
        for over_ in gone:
            self._ledger.release(over_.allocation, over_.reason, now)
            log.info("cards no longer in use by a scheduler's word", allocation=over_.allocation)
        return bool(news or gone)

    def _follow_overlaps(self) -> bool:
        """Whether it is news of a card by a scheduler's word that another pod has it, or has it no more."""
        known = [it for it in self._ledger.in_use() if it.source is AllocationSource.ANNOTATION]
        if not (known and self._heard):
            return False
        pods, plan, snapshot = self._scheduled.pods.value, self._plan.value, self._snapshot.value
        found = overlaps(self._ledger.in_use(), pods, plan, snapshot, self._moved(), self._schedulers)
        news = [(it, why) for it in known if (why := found.get(it.id, "")) != it.reason]
        for it, why in news:
            self._ledger.remark(it.id, why)
            if why:
                log.warning("card given twice", allocation=it.id, why=why)
        return bool(news)

    def _heeding(self) -> Mapping[str, Cards]:
        """The cards of the vendors with a resource whose cards schedulers choose."""
        names = {it.vendor for it in self._plan.value.values() if it.rule.placement != "local"}
        found = {name: self._cards(name) for name in names}
        return {name: cards for name, cards in found.items() if cards}

    def _cards(self, vendor: str) -> Cards:
        """Those that are here, before those that are away now and may be in use."""
        its = sorted(self._snapshot.value.of(vendor), key=lambda it: it.gone)
        return {it.uuid: it.device.minor for it in its if not it.device.parent}

    def _follow_locks(self) -> None:
        pods, now = self._scheduled.pods.value, self._wall()
        its = locks(self._scheduled.locks.value, self._keys())
        seen = self._clock()
        self._scheduled.ahead = ahead(its, self._scheduled.ahead, now, seen)
        waited = self._scheduled.waited(seen)
        reasons = {it: over(it, pods, self._ledger.in_use(), now, waited.get(it, 0.0)) for it in its}
        done = {it: why for it, why in reasons.items() if why}
        known = self._scheduled.stale
        self._scheduled.stale = (*known, *(it for it in stale(done) if it not in known))[-STALE:]
        self._scheduled.over.set(done)
