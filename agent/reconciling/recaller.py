"""Takes back what only the kubelet knows of us, once after each start."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import structlog

from agent.core.cell import Cell
from agent.core.changes import Recall
from agent.core.evidence import FOREIGN, Evidence, Granted
from agent.core.ledger import Ledger
from agent.core.model import Plan, Source
from agent.core.recall import Told, recall, recall_pods
from agent.reconciling.evidence import Sources, foreign_id

log = structlog.get_logger(__name__)


class Recaller:
    """Looks at what the kubelet had at the first look; later it has nothing of ours that we have not.

    That is what we answered before our checkpoint was lost or replaced by an older one, and what another
    plugin answered that served these resources before us.
    """

    def __init__(
        self,
        ledger: Ledger,
        sources: Sources,
        plan: Cell[Plan],
        clock: Callable[[], float],
        former: Callable[[], Mapping[str, str]] = dict,
        told: Told = lambda vendor, variables: None,
    ) -> None:
        """`former`: resources that other plugins give out to the vendor whose cards they are.

        `told`: which cards such a plugin's answer names.
        """
        self._former = former
        self._told = told
        self._ledger = ledger
        self._sources = sources
        self._plan = plan
        self._clock = clock
        #: What is not taken back yet, for its cards are not known; None before the first look.
        self._left: set[str] | None = None
        #: What other plugins made of a card, by allocation: it is known before we have registered alone.
        self._sizes: Mapping[str, int] = {}
        self.is_done = False
        self._turn = asyncio.Lock()

    @property
    def has_looked(self) -> bool:
        """Whether it is known what the kubelet has of us."""
        return self._left is not None

    async def at_once(self, resource: str) -> Sequence[Recall]:
        """Record what the kubelet's checkpoint says of a resource that others served; what it was."""
        granted = await self._sources.granted(prove=False, sizes=True)
        if self._fresh(resource, granted or ()):
            granted = await self._sources.granted(prove=True, sizes=True)
        if granted is None:
            return ()
        async with self._turn:
            fresh = self._fresh(resource, granted)  # proving took time, and each resource asks
            if self._left is not None:
                self._left |= {it.allocation for it in fresh}
            self._sizes = {**self._sizes, **{it.allocation: it.of for it in fresh}}
        return await self.once(Evidence(granted))

    def _fresh(self, resource: str, granted: Sequence[Granted]) -> list[Granted]:
        """What others gave of a resource, and of those that they served for our vendors, unknown here."""
        names = {resource, *self._former()}
        theirs = [it for it in granted if it.resource in names and it.allocation.startswith(FOREIGN)]
        return [it for it in theirs if self._ledger.get(it.allocation) is None]

    async def once(self, evidence: Evidence) -> Sequence[Recall]:
        """Record what can be taken back now; what it was."""
        async with self._turn:
            return await self._looked(evidence)

    async def _looked(self, evidence: Evidence) -> Sequence[Recall]:
        if self.is_done and not self._left:
            return ()
        if evidence.granted is None:
            return self._from_pods(evidence)
        if self._left is None:
            unknown = {it.allocation for it in evidence.granted if self._ledger.get(it.allocation) is None}
            first = await self._sources.granted(prove=True, sizes=True) if unknown else ()
            if first is None:
                return ()  # nothing is taken from a file that proves wrong
            self._left = unknown
            self._sizes = {**self._sizes, **{it.allocation: it.of for it in first}}
        there = [
            replace(it, of=self._sizes.get(it.allocation, 0))
            for it in evidence.granted
            if it.allocation in self._left
        ]
        plan = self._plan.value
        recalled = recall(there, plan, self._clock(), self._former(), self._told)
        self._left = {it.allocation for it in there} - {it.allocation.id for it in recalled}
        # Other plugins' allocations stand there too, and wait for a resource of ours that never comes.
        ours = any(not it.startswith(FOREIGN) for it in self._left)
        self.is_done = not ours and (bool(plan) or not self._left)
        return self._taken_back(recalled)

    def _from_pods(self, evidence: Evidence) -> Sequence[Recall]:
        """What PodResources shows of our resources, where nothing else is left to know it from."""
        # What schedulers gave by themselves was never asked of us: it says nothing of what was.
        bare = (Source.POD_RESOURCES, Source.ANNOTATION)
        known = any(it.source not in bare for it in self._ledger.in_use())
        if evidence.pods is None or known:
            return ()
        found = recall_pods(evidence.pods, self._plan.value, foreign_id, self._clock())
        return self._taken_back([it for it in found if self._ledger.get(it.allocation.id) is None])

    def _taken_back(self, recalled: Sequence[Recall]) -> Sequence[Recall]:
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
