"""Records allocations that only the kubelet knows: own ones after a start, other plugins' at any time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import structlog

from agent.core.allocation.ledger import Ledger
from agent.core.cell import Cell
from agent.core.model import Allocation, AllocationSource, Plan
from agent.core.reconciling.cards_of_answers import AnswerReader
from agent.core.reconciling.reconcile_changes import RecoveredAllocation
from agent.core.reconciling.reconcile_evidence import FOREIGN, CheckpointAnswer, Evidence
from agent.core.reconciling.recovered_allocations import recover_from_answers, recover_from_pods
from agent.daemon.reconciling.evidence_sources import EvidenceSources, foreign_id

log = structlog.get_logger(__name__)


class Recovery:
    """Reads allocations back from the kubelet's checkpoint, or else from PodResources.

    The ledger lacks answers of this agent after the agent's checkpoint was lost or replaced by an older one.
    After the first look the ledger has them all. An answer of another plugin may appear at any time. It holds
    the cards that it names, whatever its resource is called.
    """

    def __init__(
        self,
        ledger: Ledger,
        sources: EvidenceSources,
        plan: Cell[Plan],
        clock: Callable[[], float],
        answer_reader: Cell[AnswerReader] | None = None,
        *,
        ledger_is_short: bool = False,
    ) -> None:
        """`answer_reader` has the present cards. A new value means that the cards have changed.

        `ledger_is_short`: a file of the ledger was set aside at the start, so that the ledger may lack some
        allocations and have others.
        """
        self._reader = answer_reader or Cell(AnswerReader())
        self._ledger = ledger
        self._ledger_is_short = ledger_is_short
        self._sources = sources
        self._plan = plan
        self._clock = clock
        #: Own allocations that are not recorded yet, because their cards are unknown; None before a look.
        self._unrecorded: set[str] | None = None
        #: How many shares another plugin made of the card, by allocation. It is known only before this agent
        #: has registered.
        self._sizes: Mapping[str, int] = {}
        #: Other plugins' allocations that have none of these cards, judged by the reader and the plan below.
        self._unrelated: frozenset[str] = frozenset()
        self._judged_by: tuple[AnswerReader, Plan] | None = None
        #: Answers that name cards that are not on this node: allocation to vendor and answer. The vendor is
        #: empty where it is not known.
        self.answers_without_cards: Mapping[str, tuple[str, CheckpointAnswer]] = {}
        self.is_done = False
        self._turn = asyncio.Lock()

    @property
    def has_looked(self) -> bool:
        """Whether the kubelet's checkpoint was searched for answers of this agent."""
        return self._unrecorded is not None

    @property
    def is_idle(self) -> bool:
        """Whether no answer has to be looked for, of this agent or of another plugin."""
        return self.is_done and not self._reader.value.has_cards

    async def record_before_first_list(self) -> Sequence[RecoveredAllocation]:
        """Record what pods have, before the first list to the kubelet; return what was recorded."""
        granted = await self._sources.checkpoint_answers(prove=False, sizes=True)
        if granted is None:
            return await self.record(Evidence(None, pods=await self._sources.pods_now()))
        async with self._turn:
            self._sizes = {
                **self._sizes,
                **{it.allocation: it.ids_of_card for it in granted if it.ids_of_card},
            }
        return await self.record(Evidence(granted, proven=False))

    async def record(self, evidence: Evidence) -> Sequence[RecoveredAllocation]:
        """Record what the evidence shows and the ledger lacks; return what was recorded."""
        async with self._turn:
            if evidence.granted is None:
                return self._record_from_pods(evidence)
            recorded = await self._record_from_answers(evidence.granted, proven=evidence.proven)
            kept = self.answers_without_cards.items()
            self.answers_without_cards = {name: it for name, it in kept if _may_run(it[1], evidence)}
            return recorded

    async def _record_from_answers(
        self, granted: Sequence[CheckpointAnswer], *, proven: bool
    ) -> Sequence[RecoveredAllocation]:
        plan, reader = self._plan.value, self._reader.value
        if self._judged_by is None or self._judged_by[0] is not reader or self._judged_by[1] is not plan:
            self._unrelated = frozenset()
        missing = self._missing_answers(granted)
        if missing and (self._unrecorded is None or not proven):
            first = await self._sources.checkpoint_answers(prove=True, sizes=True)
            if first is None:
                return ()  # nothing is recorded from a file with a wrong checksum
            self._sizes = {**self._sizes, **{it.allocation: it.ids_of_card for it in first if it.ids_of_card}}
            missing = self._missing_answers(first)
        sized = [replace(it, ids_of_card=self._sizes.get(it.allocation, 0)) for it in missing]
        recovered = recover_from_answers(sized, plan, self._clock(), reader)
        recovered_ids = {it.allocation.id for it in recovered.allocations}
        present = {it.allocation for it in granted}
        left = {it.allocation for it in missing} - recovered_ids
        self._unrecorded = {it for it in left if not it.startswith(FOREIGN)}
        self._unrelated = (self._unrelated & present) | {it for it in left if it.startswith(FOREIGN)}
        self._keep_answers_without_cards(recovered.answers_without_cards)
        self._judged_by = (reader, plan)
        # Other plugins' answers are in the file, too, also of cards that this agent never has.
        self.is_done = not self._unrecorded and (bool(plan) or not self._unrelated)
        return self._record_allocations(recovered.allocations)

    def _keep_answers_without_cards(self, answers: Mapping[str, tuple[str, CheckpointAnswer]]) -> None:
        """Keep the answers that are still in the file, and log the new ones."""
        present = self._unrelated | (self._unrecorded or set())
        known = {name: it for name, it in self.answers_without_cards.items() if name in present}
        for name in answers.keys() - known.keys():
            vendor, answer = answers[name]
            log.warning(
                "a pod has cards that are not here", vendor=vendor, resource=answer.resource, uid=answer.uid
            )
        self.answers_without_cards = {**known, **answers}

    def _missing_answers(self, granted: Sequence[CheckpointAnswer]) -> list[CheckpointAnswer]:
        """The answers that the ledger lacks, without answers that have none of the cards."""
        return [
            answer
            for answer in granted
            if answer.allocation not in self._unrelated
            and self._may_be_missing(answer.allocation)
            and self._ledger.get(answer.allocation) is None
        ]

    def _may_be_missing(self, allocation: str) -> bool:
        """Whether the ledger may lack the allocation; an own one can be missing only until the first look."""
        return self._unrecorded is None or allocation in self._unrecorded or allocation.startswith(FOREIGN)

    def _record_from_pods(self, evidence: Evidence) -> Sequence[RecoveredAllocation]:
        """Record what PodResources lists of the cards, where the ledger may lack what an Allocate answered.

        IDs that the ledger has in use are not recorded again.
        """
        # An allocation from a scheduler's annotation needed no Allocate, so the ledger may lack all others.
        bare = (AllocationSource.POD_RESOURCES, AllocationSource.ANNOTATION)
        is_whole = not self._ledger_is_short and any(it.source not in bare for it in self._ledger.in_use())
        if evidence.pods is None or is_whole or self.is_done:
            return ()
        recovered = recover_from_pods(
            evidence.pods, self._plan.value, foreign_id, self._clock(), self._reader.value
        )
        return self._record_allocations([it for it in recovered if not self._is_known(it.allocation)])

    def _is_known(self, allocation: Allocation) -> bool:
        """Whether the ledger has the allocation, or other allocations with all of its IDs.

        A container may have IDs of an init container and others: one known ID says nothing of the rest.
        """
        holders = self._ledger.holders(allocation.resource, allocation.ids)
        held = {one for it in holders for one in it.ids}
        return self._ledger.get(allocation.id) is not None or held.issuperset(allocation.ids)

    def _record_allocations(self, recovered: Sequence[RecoveredAllocation]) -> Sequence[RecoveredAllocation]:
        for change in recovered:
            allocation = change.allocation
            self._ledger.record(allocation)
            log.info(
                "allocation read back",
                source=allocation.source,
                allocation=allocation.id,
                resource=allocation.resource,
                devices=list(allocation.cards),
            )
            if change.why_cards_ignored:
                log.warning(
                    "allocation counted on the cards of its IDs",
                    allocation=allocation.id,
                    reason=change.why_cards_ignored,
                )
        return recovered


def _may_run(answer: CheckpointAnswer, evidence: Evidence) -> bool:
    """Whether the answer's pod may still run.

    The kubelet's checkpoint does not show that: the kubelet does not write it while no plugin is registered.
    """
    if evidence.pods is None or (evidence.running is not None and answer.uid in evidence.running):
        return True
    listed = (
        containers.get(answer.container, {}).get(answer.resource, frozenset())
        for containers in evidence.pods.values()
    )
    return any(ids.issuperset(answer.ids) for ids in listed)
