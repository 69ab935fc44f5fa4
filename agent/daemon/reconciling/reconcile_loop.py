"""Keeps the ledger true: reads the evidence, decides, applies. One pass at a time, each change told once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import anyio
import structlog

from agent.core.allocation.ledger import Ledger
from agent.core.allocation.missing_slices import foreign_slices, slice_changes
from agent.core.allocation.reconcile_changes import (
    Change,
    Confirm,
    Doubt,
    Find,
    Forget,
    RecallChange,
    Release,
    Remark,
    Remove,
    Revive,
)
from agent.core.allocation.reconcile_evidence import CheckpointAnswer, Evidence
from agent.core.allocation.reconcile_rules import confirmations, reconcile, revived
from agent.core.cell import Cell
from agent.core.errors import VendorError
from agent.core.model import Allocation, AllocationSource, AllocationState
from agent.daemon.allocation.allocator import Allocator
from agent.daemon.reconciling.evidence_sources import EvidenceSources
from agent.daemon.reconciling.recovery import Recovery
from agent.vendor_api.agent import Vendor

log = structlog.get_logger(__name__)

T = TypeVar("T")
ReleaseSlices = Callable[[str, str], Awaitable[None]]


class Reconciler:
    """The loop from evidence to ledger. Whoever wants to know how often it did what reads `actions`."""

    def __init__(
        self,
        ledger: Ledger,
        sources: EvidenceSources,
        allocator: Allocator,
        recaller: Recovery,
        vendors: Callable[[], Sequence[Vendor]],
        release: ReleaseSlices,
        ask_again: Callable[[str], None],
        changed: Callable[[], Awaitable[None]],
        clock: Callable[[], float],
        *,
        every: float = 30.0,
        grace: float = 60.0,
        doubt_again: float = 300.0,
        written_within: float = 4.0,
    ) -> None:
        """`release` removes a vendor's slices of one mark; `ask_again` has the kubelet write its checkpoint.

        `changed` is awaited after a pass that changed the ledger. `written_within`: seconds that the kubelet
        gets to write its checkpoint, where a request waits for it.
        """
        self._ledger = ledger
        self._sources = sources
        self._allocator = allocator
        self._recaller = recaller
        self._vendors = vendors
        self._release = release
        self._ask_again = ask_again
        self._changed = changed
        self._clock = clock
        self._every = every
        self._grace = grace
        self._doubt_again = doubt_again
        self._written_within = written_within
        self._turn = anyio.Lock()
        self._wanted = asyncio.Event()
        self._passing: set[asyncio.Task[Sequence[Change | RecallChange]]] = set()
        #: The life of the kubelet whose checkpoint was last proven.
        self._known_life = ""
        self._doubted: dict[str, float] = {}
        self._ownerless: dict[tuple[str, str], float] = {}
        #: Vendor and mark to why its slices could not be removed, as it was said.
        self._unfreed: dict[tuple[str, str], str] = {}
        self.actions: Counter[str] = Counter()
        #: Vendor and card to how many slices of others lie there, as last seen.
        self.foreign: Mapping[tuple[str, str], int] = {}

    @property
    def complaints(self) -> Mapping[str, str]:
        """Source to why it could not be read the last time."""
        return self._sources.complaints

    @property
    def unreadable(self) -> Mapping[str, int]:
        """Source to how often it could not be read."""
        return self._sources.unreadable

    async def run(self) -> None:
        """A full pass now and then, and where one is wanted, for ever."""
        while True:
            with anyio.move_on_after(jittered(self._every)):
                await self._wanted.wait()
            self._wanted.clear()
            await self.once()

    def look_again(self) -> None:
        """Have a full pass soon, as where the kubelet asked for what it cannot have."""
        self._wanted.set()

    async def take_back(self) -> None:
        """Know who has what of our cards, before the kubelet is told of them: a first list is to be true.

        They can be asked for slices then, too: a full pass follows, the first after a start.
        """
        recalled = await self._recaller.at_once()
        self.actions["recall"] += len(recalled)
        if recalled:
            await self._changed()
        self.look_again()

    async def make_room(self) -> bool:
        """Let go of what is over before the next pass does, for a request without room; whether anything was.

        A scheduler gives away the room of a pod as soon as it has ended. Where the kubelet's checkpoint has
        such a pod still, the kubelet is asked to write it anew, and given a moment for it.
        """
        before = self.actions["release"]
        await self._whole_pass()
        until = anyio.current_time() + self._written_within  # the moment begins once it was asked
        while self.actions["release"] == before and self._asked_lately() and anyio.current_time() < until:
            await anyio.sleep(self._written_within / 40)
            await self._whole_pass()
        return self.actions["release"] > before

    async def _whole_pass(self) -> None:
        """A pass that goes on where the caller is cut off: what it has let go of by then must be told."""
        passing = asyncio.create_task(self.once())
        self._passing.add(passing)
        passing.add_done_callback(self._passing.discard)
        await asyncio.shield(passing)

    def _asked_lately(self) -> bool:
        """Whether the kubelet was asked a moment ago, by this pass or one before, to write its checkpoint."""
        now = self._clock()
        return any(now - at < self._written_within for at in self._doubted.values())

    async def follow(self, news: Cell[T]) -> None:
        """A quick pass whenever the kubelet has written its checkpoint: then owners are known."""
        async for _ in news.watch():
            await self.once(full=False)

    async def follow_lives(self, kubelet: Cell[T]) -> None:
        """Hear of each kubelet that begins."""
        async for _ in kubelet.watch():
            await self.kubelet_began()

    async def kubelet_began(self) -> None:
        """Know what a new life of the kubelet has kept, while its file lists all of it.

        A pass may come too late: PodResources has it wait, and the first answer that this life asks for has
        the file written without who is over.
        """
        life = self._sources.life
        if life in ("", self._known_life):
            return
        granted = await self._sources.granted(prove=True)
        if granted is None or life != self._sources.life:
            return
        self._known_life = life
        if [it for it in confirmations(self._mine(), Evidence(granted, life=life)) if self._apply(it)]:
            await self._changed()

    async def once(self, *, full: bool = True) -> Sequence[Change | RecallChange]:
        """Read, decide, apply; what was done. A full pass also asks for the hardware's slices."""
        async with self._turn:
            making = [it.name for it in self._vendors() if it.makes is not None] if full else []
            # What was released is looked at, too: the kubelet may have it after all.
            if self._recaller.is_idle and not len(self._ledger) and not making:
                self.foreign = {} if full else self.foreign
                return ()
            return await self._pass(making, full=full)

    async def _pass(self, making: Sequence[str], *, full: bool) -> Sequence[Change | RecallChange]:
        # What a new life of the kubelet has kept is told from what it forgot while it still lists all of it.
        prove = full or self._sources.life != self._known_life
        began, owned = self._clock(), self._owned()
        evidence = await self._sources.evidence(making, prove=prove)
        if full:
            self._count_foreign(making, evidence)
        if evidence.proven and evidence.granted is not None:
            self._known_life = evidence.life
        recalled = await self._recaller.once(evidence)
        self.actions["recall"] += len(recalled)
        changes = self._decided(evidence, began, owned)
        if any(isinstance(it, Release) for it in changes) and not evidence.proven:
            # What is let go of is not let go of on a file that nobody has proven.
            began, owned = self._clock(), self._owned()
            evidence = await self._sources.evidence(prove=True)
            changes = self._decided(evidence, began, owned)
        # Nothing is awaited from here to the last change that needs no hardware: what was decided on is so.
        exchanged = self._recognise() if evidence.granted is None else self._exchange(evidence.granted)
        done: list[Change] = [
            it for it in changes if not isinstance(it, Release | Remove) and self._apply(it)
        ]
        done += await self._let_go(changes)
        if recalled or exchanged or any(not isinstance(it, Doubt) for it in done):
            await self._changed()
        return [*recalled, *done]

    def _count_foreign(self, making: Sequence[str], evidence: Evidence) -> None:
        """Of who cannot be asked now, what was seen before stays."""
        read = evidence.partitions or {}
        unread = set(making) - read.keys()
        before = {key: count for key, count in self.foreign.items() if key[0] in unread}
        self.foreign = {**before, **foreign_slices(read)}

    def _owned(self) -> frozenset[str]:
        """The allocations that have an owner."""
        return frozenset(it.id for it in self._ledger.in_use() if it.owner is not None)

    def _mine(self) -> list[Allocation]:
        """What is in use. Of what a scheduler alone gave, the kubelet knows nothing."""
        return [it for it in self._ledger.in_use() if it.source is not AllocationSource.ANNOTATION]

    def _decided(self, evidence: Evidence, now: float, owned: Collection[str]) -> list[Change]:
        """What follows; `now` and `owned` are from before the first source was read, as old as the oldest
        word of it.
        """
        busy = self._allocator.busy
        in_use = self._mine()
        # Another life may have begun, and have been heard, since the last source was read.
        evidence = replace(evidence, steady=evidence.steady and evidence.life == self._sources.life)
        fresh = {it.id for it in in_use}.difference(owned)
        abandoned = self._allocator.abandoned
        changes = reconcile(in_use, evidence, now, self._grace, busy, fresh, abandoned)
        said = {it.allocation for it in changes if isinstance(it, Release | Forget)}
        mine = slice_changes(in_use, evidence, busy)
        rest = [it for it in mine if isinstance(it, Remove) or it.allocation not in said]
        released = (it for it in self._ledger.all() if it.state is AllocationState.RELEASED)
        back = revived(released, self._ledger.held(), evidence)
        return [*changes, *back, *self._aged(rest, evidence, now)]

    def _aged(
        self, changes: Sequence[Find | Remark | Remove], evidence: Evidence, now: float
    ) -> Sequence[Find | Remark | Remove]:
        """Without slices that have had no owner for a moment only: the ledger may be about to name one."""
        found = {(it.vendor, it.allocation) for it in changes if isinstance(it, Remove)}
        asked = evidence.partitions or {}
        self._ownerless = {
            key: since for key, since in self._ownerless.items() if key in found or key[0] not in asked
        }
        for key in found:
            self._ownerless.setdefault(key, now)
        return [it for it in changes if not isinstance(it, Remove) or self._is_old(it, now)]

    def _is_old(self, it: Remove, now: float) -> bool:
        since = self._ownerless[it.vendor, it.allocation]
        return self._recaller.has_looked and now - since >= self._grace

    # Applying

    def _exchange(self, granted: Sequence[CheckpointAnswer]) -> bool:
        """Whether claims changed hands."""
        exchanged = self._allocator.swaps.exchange(self._allocator.promises, granted)
        for name in exchanged:
            self.actions["exchange"] += 1
            it = self._ledger.get(name)
            if it is not None:
                claim = f"{it.claim.namespace}/{it.claim.pod}" if it.claim else "none"
                log.warning("claim follows what the kubelet did", claim=claim, **_words(it))
        return bool(exchanged)

    def _recognise(self) -> bool:
        """Whether claims came back of whom PodResources alone shows."""
        found = self._allocator.swaps.recognise(self._allocator.promises)
        for name in found:
            self.actions["recognise"] += 1
            if (it := self._ledger.get(name)) is not None:
                log.info("claim known again", **_words(it))
        return bool(found)

    def _apply(self, change: Confirm | Revive | Doubt | Forget | Remark | Find) -> bool:
        """Whether it was done."""
        it = self._ledger.get(change.allocation)
        if it is None:
            return False
        match change:
            case Confirm():
                self._confirm(it, change)
            case Doubt():
                return self._doubt(it)
            case Revive():
                self._ledger.revive(it.id)
                self._tell("revive", "allocation released wrongly, the kubelet has it", it)
            case Forget():
                self._ledger.forgot(it.id, forgotten=change.forgotten)
                self._tell("forget", "allocation forgotten by the kubelet", it, forgotten=change.forgotten)
            case Remark():
                self._ledger.remark(it.id, change.text)
                self._tell("remark", "allocation remarked", it, remark=change.text or "well again")
            case Find():
                self._ledger.found(it.id, change.partitions)
                self._tell("find", "slices found", it, slices=list(change.partitions))
        return True

    def _tell(self, action: str, event: str, it: Allocation, **more: object) -> None:
        self.actions[action] += 1
        log.warning(event, **_words(it), **more)

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

    async def _let_go(self, changes: Sequence[Change]) -> list[Change]:
        """Release what is over and remove what nobody owns, first what needs no hardware. Hardware takes
        time: each is looked at again.
        """
        decided_on = {it.id: it for it in self._ledger.in_use()}
        done: list[Change] = []
        for change in sorted(changes, key=self._needs_hardware):
            if isinstance(change, Release):
                it = self._ledger.get(change.allocation)
                same = it is not None and it is decided_on.get(it.id) and it.id not in self._allocator.busy
                if it is not None and same and await self._over(it, change.reason):
                    done.append(change)
            elif isinstance(change, Remove) and await self._remove(change):
                done.append(change)
        return done

    def _needs_hardware(self, change: Change) -> bool:
        it = self._ledger.get(change.allocation)
        return isinstance(change, Remove) or (it is not None and self._has_slices(it))

    async def _over(self, it: Allocation, reason: str) -> bool:
        """Release it: first on the hardware, for the ledger is what remembers that this must be done."""
        if self._has_slices(it):
            self._allocator.busy.add(it.id)  # no container starts on what is being removed
            try:
                if not await self._freed(it.vendor, it.id):
                    return False
            finally:
                self._allocator.busy.discard(it.id)
        self._ledger.release(it.id, reason, self._clock())
        self._doubted.pop(it.id, None)
        self.actions["release"] += 1
        log.info("allocation released", reason=reason, **_words(it))
        return True

    def _has_slices(self, it: Allocation) -> bool:
        makes = any(one.name == it.vendor and one.prepares(it.resource) for one in self._vendors())
        return bool(it.partitions) or makes

    async def _remove(self, change: Remove) -> bool:
        if self._ledger.get(change.allocation) in self._ledger.in_use():
            return False  # somebody owns it by now
        if not await self._freed(change.vendor, change.allocation):
            return False
        self._ownerless.pop((change.vendor, change.allocation), None)
        self.actions["remove"] += 1
        log.warning("slices without an owner removed", vendor=change.vendor, allocation=change.allocation)
        return True

    async def _freed(self, vendor: str, mark: str) -> bool:
        try:
            await self._release(vendor, mark)
        except VendorError as exc:
            self.actions["release_failed"] += 1
            if self._unfreed.get((vendor, mark)) != str(exc):  # a pass comes every few seconds
                log.warning("slices not removed, tried again", vendor=vendor, allocation=mark, error=str(exc))
            self._unfreed[vendor, mark] = str(exc)
            return False
        self._unfreed.pop((vendor, mark), None)
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
    return {"allocation": it.id, "resource": it.resource, "devices": list(it.cards)}
