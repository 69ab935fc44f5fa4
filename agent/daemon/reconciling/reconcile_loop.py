"""Keeps the ledger true: reads the evidence, decides, and has the changes applied. One pass at a time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import anyio
from msgspec import Struct

from agent.core.allocation.known_pods import KnownPods
from agent.core.allocation.ledger import Ledger
from agent.core.cell import Cell
from agent.core.endless_tasks import for_ever, set_on_change
from agent.core.model import Allocation, AllocationSource, AllocationState
from agent.core.reconciling.allocations_to_judge import (
    NONE_AGREED,
    Agreed,
    AllocationsToJudge,
    allocations_to_judge,
)
from agent.core.reconciling.missing_slices import foreign_slices, slice_changes
from agent.core.reconciling.reconcile_changes import (
    AskKubelet,
    Change,
    Confirm,
    Find,
    RecoveredAllocation,
    Release,
    Remark,
    Remove,
    SetForgotten,
)
from agent.core.reconciling.reconcile_evidence import Evidence
from agent.core.reconciling.reconcile_rules import TAKEN_WITHIN, confirmations, reconcile, revivals
from agent.daemon.allocation.allocator import Allocator
from agent.daemon.reconciling.evidence_sources import EvidenceSources
from agent.daemon.reconciling.ledger_updates import LedgerUpdates
from agent.daemon.reconciling.recovery import Recovery

T = TypeVar("T")


class ReconcileTiming(Struct, frozen=True):
    """How often the ledger is compared with the evidence, and what is waited for; seconds."""

    every: float = 30.0
    #: After which an allocation, or a slice, without an owner is released.
    grace: float = 60.0
    #: What the kubelet gets to write its checkpoint, where a request waits for it.
    written_within: float = 4.0
    #: From the first answer to a quick pass, so that answers close together cost one pass.
    burst: float = 0.25
    #: What the kubelet gets to hear that a pod has ended: the API server tells kubelet and agent at once.
    heard_within: float = 0.5


class Reconciler:
    """The loop from evidence to ledger. `actions` counts what it did."""

    def __init__(
        self,
        ledger: Ledger,
        sources: EvidenceSources,
        allocator: Allocator,
        recovery: Recovery,
        updates: LedgerUpdates,
        changed: Callable[[], Awaitable[None]],
        clock: Callable[[], float],
        timing: ReconcileTiming,
    ) -> None:
        """`changed` is awaited after a pass that changed the ledger."""
        self._ledger = ledger
        self._sources = sources
        self._allocator = allocator
        self._recovery = recovery
        self._updates = updates
        self._changed = changed
        self._clock = clock
        self._timing = timing
        self._turn = anyio.Lock()
        self._wanted = asyncio.Event()
        #: Set where a quick pass is wanted.
        self._wanted_soon = asyncio.Event()
        self._next_look: asyncio.TimerHandle | None = None
        self._passes: set[asyncio.Task[Sequence[Change | RecoveredAllocation]]] = set()
        #: The life of the kubelet that wrote the last proven checkpoint.
        self._known_life = ""
        #: Vendor and mark of slices without an owner to the time at which they were first seen.
        self._ownerless: dict[tuple[str, str], float] = {}
        #: The allocations that a quick pass need not judge unless something changes.
        self._agreed: Agreed = NONE_AGREED
        self.actions = updates.actions
        #: Vendor and card to the number of slices there that this agent did not make, as last seen.
        self.foreign: Mapping[tuple[str, str], int] = {}

    @property
    def complaints(self) -> Mapping[str, str]:
        """Source to the reason why it could not be read the last time."""
        return self._sources.complaints

    @property
    def unreadable(self) -> Mapping[str, int]:
        """Source to the number of times that it could not be read."""
        return self._sources.unreadable

    async def run(self) -> None:
        """A full pass now and then, and where one is wanted, for ever."""
        while True:
            with anyio.move_on_after(jittered(self._timing.every)):
                await self._wanted.wait()
            self._wanted.clear()
            await self.reconcile()

    def look_again(self) -> None:
        """Have a full pass soon, as after a refusal: ledger and kubelet may differ."""
        self._wanted.set()

    def look_soon(self) -> None:
        """Have a quick pass, once PodResources may be asked again."""
        self._wanted_soon.set()

    async def recover_at_start(self) -> None:
        """Recover allocations before the first list goes to the kubelet: that list must be true.

        A full pass follows, since the vendors can be asked for slices by then.
        """
        recovered = await self._recovery.record_before_first_list()
        self.actions["recall"] += len(recovered)
        if recovered:
            await self._changed()
        self.look_again()

    async def make_room(self) -> bool:
        """Release at once what is over, for a request without room; return whether anything was released.

        A scheduler gives away the room of a pod as soon as the pod has ended. Where the kubelet's checkpoint
        still has the pod, the kubelet is asked to write the checkpoint, and given a moment for it.
        """
        before = self.actions["release"]
        await self._reconcile_shielded()
        within = self._timing.written_within
        until = anyio.current_time() + within  # the moment begins once the kubelet was asked
        while self.actions["release"] == before and self._updates.has_asked_within(within):
            if anyio.current_time() >= until:
                break
            await anyio.sleep(within / 40)
            await self._reconcile_shielded()
        return self.actions["release"] > before

    async def _reconcile_shielded(self) -> None:
        """A pass that is not cancelled with its caller: what the pass has released must be saved."""
        task = asyncio.create_task(self.reconcile())
        self._passes.add(task)
        task.add_done_callback(self._passes.discard)
        await asyncio.shield(task)

    async def follow(self, checkpoint: Cell[T], pods_listable: Callable[[], Awaitable[None]]) -> None:
        """Quick passes, for ever: when the kubelet has written its checkpoint, and when `look_soon` asks.

        The kubelet's file names the owners.
        `pods_listable` returns once PodResources may be asked again. What the kubelet writes until then is
        read in one pass: a pass that began earlier would wait with an old file. The first pass after a pause
        waits a moment for more answers.
        """
        async with anyio.create_task_group() as group:
            group.start_soon(for_ever, set_on_change, self._wanted_soon, checkpoint)
            while True:
                if not self._wanted_soon.is_set():
                    await self._wanted_soon.wait()
                    await anyio.sleep(self._timing.burst)
                self._wanted_soon.clear()
                await self.reconcile(full=False)
                await pods_listable()

    async def follow_pods(self, pods: Cell[KnownPods]) -> None:
        """A quick pass when a pod with an allocation has ended, as the API server says.

        That word is no proof. The kubelet is asked after a moment: the kubelet may hear later.
        """
        alive: frozenset[str] = frozenset()
        async for known in pods.watch():
            before, alive = alive, known.alive
            in_use = self._ledger.in_use()
            if any(in_use.of_pod(resource, uid) for uid in before - alive for resource in in_use.counts):
                await anyio.sleep(self._timing.heard_within)
                self.look_soon()

    async def follow_lives(self, kubelet: Cell[T]) -> None:
        """Confirm allocations in each new life of the kubelet."""
        async for _ in kubelet.watch():
            await self.confirm_in_new_life()

    async def confirm_in_new_life(self) -> None:
        """Confirm the allocations that a new life of the kubelet has kept, while its file lists them all.

        A pass may come too late, because it waits for PodResources. With the first answer of the new life the
        kubelet writes its file without the pods that are over.
        """
        life = self._sources.life
        if life in ("", self._known_life):
            return
        granted = await self._sources.checkpoint_answers(prove=True)
        if granted is None or life != self._sources.life:
            return
        self._known_life = life
        changes = confirmations(self._allocations_from_allocate(), Evidence(granted, life=life))
        if [it for it in changes if self._updates.apply(it)]:
            await self._changed()

    async def reconcile(self, *, full: bool = True) -> Sequence[Change | RecoveredAllocation]:
        """Read, decide, apply; return what was done. A full pass also asks the vendors for their slices."""
        async with self._turn:
            makers = self._updates.makers() if full else []
            # Released allocations count, too: the kubelet may have them after all.
            if self._recovery.is_idle and not len(self._ledger) and not makers:
                self.foreign = {} if full else self.foreign
                return ()
            return await self._reconcile(makers, full=full)

    async def _reconcile(
        self, makers: Sequence[str], *, full: bool
    ) -> Sequence[Change | RecoveredAllocation]:
        # What a new life of the kubelet has kept, and what it has forgotten, shows only in the first file of
        # that life. So that file is read with its checksum, and so is one that may lack an answer for good.
        prove = full or self._sources.life != self._known_life or self._may_release_untaken()
        began, owned = self._clock(), self._ids_with_owner()
        evidence = await self._sources.evidence(makers, prove=prove)
        if full:
            self._count_foreign(makers, evidence)
        if evidence.proven and evidence.granted is not None:
            self._known_life = evidence.life
        recovered = await self._recovery.record(evidence)
        self.actions["recall"] += len(recovered)
        to_judge = self._to_judge(evidence, full=full)
        changes = self._decide(evidence, to_judge, began, owned)
        if any(isinstance(it, Release) for it in changes) and not (full and evidence.proven):
            # No allocation is released by what a part of the allocations shows, nor on a file without a
            # verified checksum.
            if not evidence.proven:
                began, owned = self._clock(), self._ids_with_owner()
                evidence = await self._sources.evidence(prove=True)
            to_judge = self._to_judge(evidence, full=True)
            changes = self._decide(evidence, to_judge, began, owned)
        if evidence.pods is not None and evidence.granted is not None:
            self._updates.keep_doubts({it.allocation for it in changes if isinstance(it, AskKubelet)})
        # Nothing is awaited from here to the last change that needs no hardware: the ledger is the one that
        # was decided on.
        if evidence.granted is None:
            swapped = self._updates.recognise_claims()
        else:
            swapped = self._updates.swap_claims(evidence.granted, to_judge.left_out)
        at_once = [it for it in changes if not isinstance(it, Release | Remove | AskKubelet)]
        done: list[Change] = [it for it in at_once if self._updates.apply(it)]
        ended = await self._updates.apply_releases(changes)
        for change in ended:
            if isinstance(change, Remove):
                self._ownerless.pop((change.vendor, change.allocation), None)
        done += ended
        done += await self._ask_kubelet(changes)
        if recovered or swapped or any(not isinstance(it, AskKubelet) for it in done):
            await self._changed()
        self._look_when_due(began)
        return [*recovered, *done]

    async def _ask_kubelet(self, changes: Sequence[Change]) -> list[Change]:
        """Have the kubelet write its checkpoint because of these doubts; return what was done.

        The owners in the present file are recorded before. The next file lacks the answers of pods that have
        ended, and perhaps no pass has read them.
        """
        doubts = [it for it in changes if isinstance(it, AskKubelet) and self._updates.may_ask(it)]
        granted = await self._sources.checkpoint_answers(prove=False) if doubts else None
        decided: list[Confirm | AskKubelet] = [*doubts]
        if granted is not None:
            written = Evidence(granted, proven=False)
            decided = [*confirmations(self._allocations_from_allocate(), written), *decided]
        return [it for it in decided if self._updates.apply(it)]

    def _look_when_due(self, judged_at: float) -> None:
        """Have a quick pass when an answer without an owner comes to an age at which it may be released.

        `judged_at`: the time by which the last pass has judged the answers.
        """
        if self._next_look is not None:
            self._next_look.cancel()
        since = [it.since for it in self._answers_without_owner()]
        times = (began + age for began in since for age in (TAKEN_WITHIN, self._timing.grace))
        if (due := min((time for time in times if time > judged_at), default=None)) is not None:
            wait = max(0.0, due - self._clock()) + 0.001
            self._next_look = asyncio.get_running_loop().call_later(wait, self._look_at_due)

    def _look_at_due(self) -> None:
        if self._answers_without_owner():
            self.look_soon()

    def _may_release_untaken(self) -> bool:
        """Whether an answer has waited TAKEN_WITHIN for its owner.

        A file with a verified checksum may show that the kubelet has dropped that answer.
        """
        life, now = self._sources.life, self._clock()
        answers = self._answers_without_owner()
        return any(it.life == life and now - it.since >= TAKEN_WITHIN for it in answers)

    def _answers_without_owner(self) -> list[Allocation]:
        return [*self._ledger.in_use().all_without_owner()]

    def _count_foreign(self, makers: Sequence[str], evidence: Evidence) -> None:
        """Count the slices that this agent did not make. An unread vendor's count stays as it was."""
        read = evidence.partitions or {}
        unread = set(makers) - read.keys()
        before = {key: count for key, count in self.foreign.items() if key[0] in unread}
        self.foreign = {**before, **foreign_slices(read)}

    def _ids_with_owner(self) -> frozenset[str]:
        """The allocations that have an owner."""
        return frozenset(it.id for it in self._ledger.in_use() if it.owner is not None)

    def _allocations_from_allocate(self) -> list[Allocation]:
        """Allocations in use that an Allocate made, without external use, which the kubelet does not know."""
        return [it for it in self._ledger.in_use() if it.source is not AllocationSource.ANNOTATION]

    def _to_judge(self, evidence: Evidence, *, full: bool) -> AllocationsToJudge:
        """What the pass judges: all allocations, or in a quick pass those for which something may be new."""
        # Another life of the kubelet may have begun, and been confirmed, since the last source was read.
        evidence = replace(evidence, steady=evidence.steady and evidence.life == self._sources.life)
        in_use = self._allocations_from_allocate()
        if full:
            return AllocationsToJudge(in_use, evidence)
        to_judge = allocations_to_judge(in_use, evidence, self._agreed, self._ledger.holders)
        self._agreed = to_judge.agreed
        return to_judge

    def _decide(
        self, evidence: Evidence, to_judge: AllocationsToJudge, now: float, owned: Collection[str]
    ) -> list[Change]:
        """The changes that follow from the evidence.

        `now` and `owned` are from before the first source was read: as old as the oldest evidence.
        """
        busy = self._allocator.busy
        in_use = to_judge.allocations
        fresh = {it.id for it in in_use}.difference(owned)
        abandoned = self._allocator.abandoned
        changes = reconcile(in_use, to_judge.evidence, now, self._timing.grace, busy, fresh, abandoned)
        settled = {it.allocation for it in changes if isinstance(it, Release | SetForgotten)}
        of_slices = slice_changes(in_use, evidence, busy)
        rest = [it for it in of_slices if isinstance(it, Remove) or it.allocation not in settled]
        released = (it for it in self._ledger.all() if it.state is AllocationState.RELEASED)
        back = revivals(released, self._ledger.holders, evidence)
        return [*changes, *back, *self._without_young_removals(rest, evidence, now)]

    def _without_young_removals(
        self, changes: Sequence[Find | Remark | Remove], evidence: Evidence, now: float
    ) -> Sequence[Find | Remark | Remove]:
        """The changes, without removals of slices that have lost their owner only now.

        The ledger may be about to name an owner.
        """
        ownerless = {(it.vendor, it.allocation) for it in changes if isinstance(it, Remove)}
        asked = evidence.partitions or {}
        self._ownerless = {
            key: since for key, since in self._ownerless.items() if key in ownerless or key[0] not in asked
        }
        for key in ownerless:
            self._ownerless.setdefault(key, now)
        return [it for it in changes if not isinstance(it, Remove) or self._is_old(it, now)]

    def _is_old(self, change: Remove, now: float) -> bool:
        since = self._ownerless[change.vendor, change.allocation]
        return self._recovery.has_looked and now - since >= self._timing.grace


def jittered(seconds: float) -> float:
    """The interval, ten percent more or less, so that the agents of a cluster do not act in step."""
    return seconds * random.uniform(0.9, 1.1)
