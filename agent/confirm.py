"""Confirms who holds each allocation: reads the kubelet's checkpoint and PodResources, teaches the ledger."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

import structlog

from agent.core.allocator import ALLOCATION
from agent.core.ledger import Ledger
from agent.core.model import Allocation, Plan
from agent.core.reconcile import Change, Confirm, Granted, Pods, Recall, Release, recall, reconcile
from agent.kubelet.checkpoint import Entry, KubeletCheckpoint
from agent.kubelet.errors import KubeletError

log = structlog.get_logger(__name__)

#: How the id of an allocation begins that another plugin answered.
_FOREIGN = "kubelet-"


class Confirmer:
    """One pass at a time. A source that can not be read releases nothing."""

    def __init__(
        self,
        ledger: Ledger,
        read_checkpoint: Callable[[bool], KubeletCheckpoint],
        pods_in_use: Callable[[], Awaitable[Pods]],
        clock: Callable[[], float],
        settled: Callable[[], bool],
        grace: float = 60.0,
        recall_for: Callable[[], Plan] | None = None,
    ) -> None:
        self._ledger = ledger
        self._read_checkpoint = read_checkpoint
        self._pods_in_use = pods_in_use
        self._clock = clock
        self._settled = settled
        self._grace = grace
        #: Given where our own checkpoint was lost: what the kubelet knows of us then is taken back.
        self._recall_for = recall_for
        self._unrecalled: set[str] | None = None
        self._complaints: dict[str, str] = {}
        self.actions: Counter[str] = Counter()

    async def once(self, *, prove: bool = True) -> Sequence[Change | Recall]:
        """Read, decide, apply. Returns what changed. `prove` asks for the kubelet's checksum too."""
        if not self._ledger.in_use() and self._recall_for is None:
            return ()
        granted = await self._granted(prove or self._recall_for is not None)
        recalled = self._recall(granted)
        for it in recalled:
            self._take_back(it.allocation)
        allocations = self._ledger.in_use()
        pods = await self._pods()
        changes = [
            it
            for it in reconcile(allocations, granted, pods, self._clock(), self._grace)
            # Right after a restart the kubelet lists less than it has.
            if isinstance(it, Confirm) or self._settled()
        ]
        for change in changes:
            self._apply(change)
        return [*recalled, *changes]

    def _recall(self, granted: Sequence[Granted] | None) -> Sequence[Recall]:
        """Take back what the kubelet had at the first look; later it has nothing of ours that we have not.

        That is what we answered before our checkpoint was lost, and what another plugin answered that served
        these resources before us.
        """
        if granted is None or self._recall_for is None:
            return ()
        if self._unrecalled is None:
            self._unrecalled = {it.allocation for it in granted if self._ledger.get(it.allocation) is None}
        there = [it for it in granted if it.allocation in self._unrecalled]
        plan = self._recall_for()
        recalled = recall(there, plan, self._clock())
        self._unrecalled = {it.allocation for it in there} - {it.allocation.id for it in recalled}
        # Other plugins' allocations stand there too, and wait for a resource of ours that never comes.
        if not any(_is_ours(it) for it in self._unrecalled) and (plan or not self._unrecalled):
            self._recall_for = None
        return recalled

    async def _granted(self, prove: bool) -> list[Granted] | None:
        try:
            checkpoint = await asyncio.to_thread(self._read_checkpoint, prove)
        except KubeletError as exc:
            self._complain("kubelet checkpoint", exc)
            return None
        self._complaints.pop("kubelet checkpoint", None)
        return [
            Granted(_name(it), it.pod_uid, it.container, it.resource, it.ids) for it in checkpoint.entries
        ]

    async def _pods(self) -> Pods | None:
        try:
            pods = await self._pods_in_use()
        except KubeletError as exc:
            self._complain("PodResources", exc)
            return None
        self._complaints.pop("PodResources", None)
        return pods

    def _complain(self, source: str, exc: KubeletError) -> None:
        """Say it once per change; the loop comes again."""
        if self._complaints.get(source) != str(exc):
            log.warning("owners not confirmed", source=source, error=str(exc))
        self._complaints[source] = str(exc)
        self.actions["unreadable"] += 1

    def _take_back(self, it: Allocation) -> None:
        self._ledger.record(it)
        self.actions["recall"] += 1
        log.info("allocation read back from the kubelet", **_words(it))

    def _apply(self, change: Change) -> None:
        it = self._ledger.get(change.allocation)
        if it is None:
            return
        if isinstance(change, Release):
            self._ledger.release(it.id, change.reason, self._clock())
            self.actions["release"] += 1
            log.info("allocation released", reason=change.reason, **_words(it))
        else:
            self._ledger.confirm(it.id, change.owner, alive=change.alive)
            if it.owner != change.owner:
                self.actions["confirm"] += 1
                owner = change.owner
                log.info(
                    "allocation confirmed",
                    pod=f"{owner.namespace}/{owner.pod}" if owner.pod else owner.uid,
                    container=owner.container,
                    **_words(it),
                )


def _name(entry: Entry) -> str:
    """The allocation's id: our own mark, or one that is made of its place where another plugin answered."""
    place = f"{entry.pod_uid}/{entry.container}/{entry.resource}"
    digest = hashlib.sha256(place.encode(errors="replace")).hexdigest()
    return entry.edits.annotations.get(ALLOCATION) or f"{_FOREIGN}{digest[:16]}"


def _is_ours(name: str) -> bool:
    return not name.startswith(_FOREIGN)


def jittered(seconds: float) -> float:
    """The interval, ten percent more or less, so that a cluster's agents do not march in step."""
    return seconds * random.uniform(0.9, 1.1)


def _words(it: Allocation) -> dict[str, object]:
    return {"allocation": it.id, "resource": it.resource, "devices": list(it.devices)}
