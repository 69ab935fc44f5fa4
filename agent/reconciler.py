"""Keeps the ledger true: reads the evidence, decides, applies. One pass at a time, each change told once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

import anyio
import structlog

from agent.core.allocator import Allocator
from agent.core.cell import Cell
from agent.core.errors import VendorError
from agent.core.ledger import Ledger
from agent.core.model import Allocation, AllocationState, Plan
from agent.core.reconcile import (
    POD_RESOURCES,
    Change,
    Confirm,
    Doubt,
    Evidence,
    Granted,
    Recall,
    Release,
    Remark,
    Remove,
    recall,
    recall_pods,
    reconcile,
    slices,
)
from agent.core.vendor import Vendor
from agent.evidence import FOREIGN, Sources, foreign_id

log = structlog.get_logger(__name__)

T = TypeVar("T")
Undo = Callable[[str, str], Awaitable[None]]


class Reconciler:
    """The loop from evidence to ledger. Whoever wants to know how often it did what reads `actions`."""

    def __init__(
        self,
        ledger: Ledger,
        sources: Sources,
        allocator: Allocator,
        plan: Cell[Plan],
        vendors: Callable[[], Sequence[Vendor]],
        release: Undo,
        ask_again: Callable[[str], None],
        changed: Callable[[], Awaitable[None]],
        clock: Callable[[], float],
        *,
        every: float = 30.0,
        grace: float = 60.0,
        doubt_again: float = 300.0,
        rebooted: bool = False,
    ) -> None:
        """`release` removes a vendor's slices of one mark; `ask_again` has the kubelet write its checkpoint.

        `changed` is awaited after a pass that changed the ledger.
        """
        self._ledger = ledger
        self._sources = sources
        self._allocator = allocator
        self._plan = plan
        self._vendors = vendors
        self._release = release
        self._ask_again = ask_again
        self._changed = changed
        self._clock = clock
        self._every = every
        self._grace = grace
        self._doubt_again = doubt_again
        self._turn = anyio.Lock()
        #: What only the kubelet knew at the first look and is not taken back yet; None before that look.
        self._unrecalled: set[str] | None = None
        self._recalling = True
        #: The life of the kubelet whose checkpoint was last proven.
        self._known_life = ""
        self._rebooted = {it.id for it in ledger.in_use()} if rebooted else set()
        self._doubted: dict[str, float] = {}
        self._ownerless: dict[tuple[str, str], float] = {}
        self.actions: Counter[str] = Counter()

    @property
    def complaints(self) -> Mapping[str, str]:
        """Source to why it could not be read the last time."""
        return self._sources.complaints

    @property
    def unreadable(self) -> Mapping[str, int]:
        """Source to how often it could not be read."""
        return self._sources.unreadable

    async def run(self) -> None:
        """A full pass now and then, for ever."""
        while True:
            await anyio.sleep(jittered(self._every))
            await self.once()

    async def follow(self, news: Cell[T]) -> None:
        """A quick pass whenever the kubelet has written its checkpoint: then owners are known."""
        async for _ in news.watch():
            await self.once(full=False)

    async def once(self, *, full: bool = True) -> Sequence[Change | Recall]:
        """Read, decide, apply; what was done. A full pass also asks for the hardware's slices."""
        async with self._turn:
            making = [it.name for it in self._vendors() if it.prepares] if full else []
            if not (self._ledger.in_use() or self._recalling or making):
                return ()
            return await self._pass(making, full=full)

    async def _pass(self, making: Sequence[str], *, full: bool) -> Sequence[Change | Recall]:
        # What a new life of the kubelet has kept is told from what it forgot while it still lists all of it.
        prove = full or self._sources.life != self._known_life
        evidence = await self._sources.evidence(making, prove=prove)
        if evidence.proven and evidence.granted is not None:
            self._known_life = evidence.life
        recalled = await self._recall(evidence)
        changes: list[Change] = list(self._decided(evidence))
        if any(isinstance(it, Release) for it in changes) and not evidence.proven:
            # What is let go of is not let go of on a file that nobody has proven.
            evidence = await self._sources.evidence(prove=True)
            changes = list(self._decided(evidence))
        exchanged = evidence.granted is not None and self._exchange(evidence.granted)
        done = [*recalled, *[it for it in changes if await self._apply(it)]]
        if exchanged or any(not isinstance(it, Doubt) for it in done):
            await self._changed()
        return done

    def _decided(self, evidence: Evidence) -> list[Change]:
        now, busy = self._clock(), self._allocator.busy
        changes = reconcile(self._ledger.in_use(), evidence, now, self._grace, busy)
        said = {it.allocation for it in changes if isinstance(it, Release | Remark)}
        mine = slices(self._ledger.in_use(), evidence, self._rebooted, busy)
        kept = [it for it in mine if not (isinstance(it, Remark) and it.allocation in said)]
        return [*changes, *self._aged(kept, evidence, now)]

    def _aged(
        self, changes: Sequence[Remark | Remove], evidence: Evidence, now: float
    ) -> Sequence[Remark | Remove]:
        """Without slices that have had no owner for a moment only: the ledger may be about to name one."""
        found = {(it.vendor, it.mark) for it in changes if isinstance(it, Remove)}
        asked = evidence.partitions or {}
        self._ownerless = {
            key: since for key, since in self._ownerless.items() if key in found or key[0] not in asked
        }
        for key in found:
            self._ownerless.setdefault(key, now)
        return [
            it
            for it in changes
            if isinstance(it, Remark)
            or (not self._recalling and now - self._ownerless[it.vendor, it.mark] >= self._grace)
        ]

    # Taking back what only the kubelet knows

    async def _recall(self, evidence: Evidence) -> Sequence[Recall]:
        """Take back what the kubelet had at the first look; later it has nothing of ours that we have not.

        That is what we answered before our checkpoint was lost or replaced by an older one, and what another
        plugin answered that served these resources before us.
        """
        if not self._recalling:
            return ()
        if evidence.granted is None:
            return self._recall_pods(evidence)
        if self._unrecalled is None:
            unknown = {it.allocation for it in evidence.granted if self._ledger.get(it.allocation) is None}
            if unknown and await self._sources.granted(prove=True) is None:
                return ()  # nothing is taken from a file that proves wrong
            self._unrecalled = unknown
        there = [it for it in evidence.granted if it.allocation in self._unrecalled]
        plan = self._plan.value
        recalled = recall(there, plan, self._clock())
        self._unrecalled = {it.allocation for it in there} - {it.allocation.id for it in recalled}
        # Other plugins' allocations stand there too, and wait for a resource of ours that never comes.
        ours = any(not it.startswith(FOREIGN) for it in self._unrecalled)
        if not ours and (plan or not self._unrecalled):
            self._recalling = False
        return self._take_back(recalled)

    def _recall_pods(self, evidence: Evidence) -> Sequence[Recall]:
        """What PodResources shows of our resources, where nothing else is left to know it from."""
        if evidence.pods is None or any(it.source != POD_RESOURCES for it in self._ledger.in_use()):
            return ()
        found = recall_pods(evidence.pods, self._plan.value, foreign_id, self._clock())
        return self._take_back([it for it in found if self._ledger.get(it.allocation.id) is None])

    def _take_back(self, recalled: Sequence[Recall]) -> Sequence[Recall]:
        for it in recalled:
            self._ledger.record(it.allocation)
            self.actions["recall"] += 1
            log.info("allocation read back", source=it.allocation.source, **_words(it.allocation))
        return recalled

    # Applying

    def _exchange(self, granted: Sequence[Granted]) -> bool:
        """Whether claims changed hands."""
        exchanged = self._allocator.exchange(granted)
        for name in exchanged:
            self.actions["exchange"] += 1
            it = self._ledger.get(name)
            if it is not None:
                claim = f"{it.claim.namespace}/{it.claim.pod}" if it.claim else "none"
                log.warning("claim follows what the kubelet did", claim=claim, **_words(it))
        return bool(exchanged)

    async def _apply(self, change: Change) -> bool:
        """Whether it was done."""
        if isinstance(change, Remove):
            return await self._remove(change)
        it = self._ledger.get(change.allocation)
        if it is None:
            return False
        if isinstance(change, Release):
            return await self._over(it, change.reason)
        if isinstance(change, Doubt):
            return self._doubt(it)
        if isinstance(change, Remark):
            self._ledger.remark(it.id, change.text)
            self.actions["remark"] += 1
            if not change.text:
                self._rebooted.discard(it.id)
            log.warning("allocation remarked", remark=change.text or "well again", **_words(it))
            return True
        self._confirm(it, change)
        return True

    def _confirm(self, it: Allocation, change: Confirm) -> None:
        self._ledger.confirm(it.id, change.owner, change.life)
        if change.owner == it.owner and it.state is AllocationState.DONE:
            return  # a new life of the kubelet is no news of its owner
        self.actions["confirm"] += 1
        owner = change.owner
        log.info(
            "allocation confirmed",
            pod=f"{owner.namespace}/{owner.pod}" if owner.pod else owner.uid,
            container=owner.container,
            **_words(it),
        )

    async def _over(self, it: Allocation, reason: str) -> bool:
        """Release it: first on the hardware, for the ledger is what remembers that this must be done."""
        if self._has_slices(it) and not await self._freed(it.vendor, it.id):
            return False
        self._ledger.release(it.id, reason, self._clock())
        self._doubted.pop(it.id, None)
        self.actions["release"] += 1
        log.info("allocation released", reason=reason, **_words(it))
        return True

    def _has_slices(self, it: Allocation) -> bool:
        prepares = any(one.name == it.vendor and one.prepares for one in self._vendors())
        return bool(it.partitions) or prepares

    async def _remove(self, change: Remove) -> bool:
        if not await self._freed(change.vendor, change.mark):
            return False
        self._ownerless.pop((change.vendor, change.mark), None)
        self.actions["remove"] += 1
        log.warning("slices without an owner removed", vendor=change.vendor, allocation=change.mark)
        return True

    async def _freed(self, vendor: str, mark: str) -> bool:
        try:
            await self._release(vendor, mark)
        except VendorError as exc:
            self.actions["release_failed"] += 1
            log.warning("slices not removed, tried again", vendor=vendor, allocation=mark, error=str(exc))
            return False
        return True

    def _doubt(self, it: Allocation) -> bool:
        """Have the kubelet write down what it knows; again only after a while, for it may not know yet."""
        now = self._clock()
        if now - self._doubted.get(it.id, float("-inf")) < self._doubt_again:
            return False
        self._doubted[it.id] = now
        self.actions["doubt"] += 1
        self._ask_again(it.resource)
        return True


def jittered(seconds: float) -> float:
    """The interval, ten percent more or less, so that a cluster's agents do not march in step."""
    return seconds * random.uniform(0.9, 1.1)


def _words(it: Allocation) -> dict[str, object]:
    return {"allocation": it.id, "resource": it.resource, "devices": list(it.devices)}
