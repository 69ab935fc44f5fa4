"""Takes back what only the kubelet knows: ours once after each start, and others' whenever they appear."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import structlog

from agent.core.allocation.cards_of_answers import AnswerTies
from agent.core.allocation.ledger import Ledger
from agent.core.allocation.reconcile_changes import RecallChange
from agent.core.allocation.reconcile_evidence import FOREIGN, CheckpointAnswer, Evidence
from agent.core.allocation.recovered_allocations import recall, recall_pods
from agent.core.cell import Cell
from agent.core.model import AllocationSource, Plan
from agent.daemon.reconciling.evidence_sources import EvidenceSources, foreign_id

log = structlog.get_logger(__name__)


class Recovery:
    """Ours is what we answered before our checkpoint was lost or replaced by an older one: after the first
    look the kubelet has nothing of ours that we have not. What another plugin answered holds the cards that
    it names whenever it comes, whatever its resource.
    """

    def __init__(
        self,
        ledger: Ledger,
        sources: EvidenceSources,
        plan: Cell[Plan],
        clock: Callable[[], float],
        ties: Cell[AnswerTies] | None = None,
    ) -> None:
        """`ties` says which cards an answer names; another value each time that the cards are others."""
        self._ties = ties or Cell(AnswerTies())
        self._ledger = ledger
        self._sources = sources
        self._plan = plan
        self._clock = clock
        #: What of ours is not taken back yet, for its cards are not known; None before the first look.
        self._left: set[str] | None = None
        #: What other plugins made of a card, by allocation: it is known before we have registered alone.
        self._sizes: Mapping[str, int] = {}
        #: Others' that have nothing to do with these cards, as far as these ties and this plan know.
        self._strange: frozenset[str] = frozenset()
        self._judged: tuple[AnswerTies, Plan] | None = None
        #: What names cards that are not here: allocation to vendor, empty where nobody knows it, and answer.
        self.unfit: Mapping[str, tuple[str, CheckpointAnswer]] = {}
        self.is_done = False
        self._turn = asyncio.Lock()

    @property
    def has_looked(self) -> bool:
        """Whether it is known what the kubelet has of us."""
        return self._left is not None

    @property
    def is_idle(self) -> bool:
        """Whether no answer of anybody has to be looked for."""
        return self.is_done and not self._ties.value.has_cards

    async def at_once(self) -> Sequence[RecallChange]:
        """Record what others gave of our cards, before the kubelet is told of them; what it was."""
        granted = await self._sources.granted(prove=False, sizes=True)
        if granted is None:
            return await self.once(Evidence(None, pods=await self._sources.pods_now()))
        async with self._turn:
            self._sizes = {**self._sizes, **{it.allocation: it.of for it in granted if it.of}}
        return await self.once(Evidence(granted, proven=False))

    async def once(self, evidence: Evidence) -> Sequence[RecallChange]:
        """Record what can be taken back now; what it was."""
        async with self._turn:
            if evidence.granted is None:
                return self._from_pods(evidence)
            recalled = await self._looked(evidence.granted, proven=evidence.proven)
            self.unfit = {name: it for name, it in self.unfit.items() if _is_there(it[1], evidence)}
            return recalled

    async def _looked(self, granted: Sequence[CheckpointAnswer], *, proven: bool) -> Sequence[RecallChange]:
        plan, ties = self._plan.value, self._ties.value
        if self._judged is None or self._judged[0] is not ties or self._judged[1] is not plan:
            self._strange = frozenset()
        fresh = self._fresh(granted)
        if fresh and (self._left is None or not proven):
            first = await self._sources.granted(prove=True, sizes=True)
            if first is None:
                return ()  # nothing is taken from a file that proves wrong
            self._sizes = {**self._sizes, **{it.allocation: it.of for it in first if it.of}}
            fresh = self._fresh(first)
        sized = [replace(it, of=self._sizes.get(it.allocation, 0)) for it in fresh]
        recalled = recall(sized, plan, self._clock(), ties)
        found = {it.allocation.id for it in recalled.found}
        there = {it.allocation for it in granted}
        left = {it.allocation for it in fresh} - found
        self._left = {it for it in left if not it.startswith(FOREIGN)}
        self._strange = (self._strange & there) | {it for it in left if it.startswith(FOREIGN)}
        self._say(recalled.unfit)
        self._judged = (ties, plan)
        # Other plugins' answers stand there too, and wait for cards of ours that never come.
        self.is_done = not self._left and (bool(plan) or not self._strange)
        return self._taken_back(recalled.found)

    def _say(self, unfit: Mapping[str, tuple[str, CheckpointAnswer]]) -> None:
        """Keep what still stands there, and say once what is new."""
        standing = self._strange | (self._left or set())
        known = {name: it for name, it in self.unfit.items() if name in standing}
        for name in unfit.keys() - known.keys():
            vendor, it = unfit[name]
            log.warning("a pod has cards that are not here", vendor=vendor, resource=it.resource, uid=it.uid)
        self.unfit = {**known, **unfit}

    def _fresh(self, granted: Sequence[CheckpointAnswer]) -> list[CheckpointAnswer]:
        """What is not known here, and was not found to be of no card of ours."""
        return [
            it
            for it in granted
            if it.allocation not in self._strange
            and (self._left is None or it.allocation in self._left or it.allocation.startswith(FOREIGN))
            and self._ledger.get(it.allocation) is None
        ]

    def _from_pods(self, evidence: Evidence) -> Sequence[RecallChange]:
        """What PodResources shows of our cards, where nothing else is left to know it from."""
        # What schedulers gave by themselves was never asked of us: it says nothing of what was.
        bare = (AllocationSource.POD_RESOURCES, AllocationSource.ANNOTATION)
        known = any(it.source not in bare for it in self._ledger.in_use())
        if evidence.pods is None or known or (self.is_done and not self._left):
            return ()
        found = recall_pods(evidence.pods, self._plan.value, foreign_id, self._clock(), self._ties.value)
        return self._taken_back([it for it in found if self._ledger.get(it.allocation.id) is None])

    def _taken_back(self, recalled: Sequence[RecallChange]) -> Sequence[RecallChange]:
        for it in recalled:
            self._ledger.record(it.allocation)
            log.info(
                "allocation read back",
                source=it.allocation.source,
                allocation=it.allocation.id,
                resource=it.allocation.resource,
                devices=list(it.allocation.cards),
            )
            if it.doubt:
                log.warning(
                    "allocation counted on the cards of its IDs", allocation=it.allocation.id, reason=it.doubt
                )
        return recalled


def _is_there(it: CheckpointAnswer, evidence: Evidence) -> bool:
    """Whether its pod may be there: where nobody is registered, the kubelet writes of nobody who goes."""
    if evidence.pods is None or (evidence.running is not None and it.uid in evidence.running):
        return True
    shown = (its.get(it.container, {}).get(it.resource, frozenset()) for its in evidence.pods.values())
    return any(ids.issuperset(it.ids) for ids in shown)
