"""Claim swaps: the kubelet, and not the order of the answers, decides which pod has an allocation."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from msgspec import structs

from agent.core.allocation.ledger import Ledger
from agent.core.attribution.answered_claims import claims_after_swaps, kept_parameters, shown_claim
from agent.core.attribution.scheduler_promises import Promises
from agent.core.event_notices import ClaimSwap
from agent.core.model import AllocationSource
from agent.core.reconciling.allocations_to_judge import NONE_AGREED, Agreed
from agent.core.reconciling.reconcile_evidence import CheckpointAnswer

#: Claim swaps that are still shown.
MAX_SHOWN_SWAPS = 64


class ClaimSwaps:
    """Changes the claims of allocations in the ledger, and keeps the last claim swaps."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._last: deque[ClaimSwap] = deque(maxlen=MAX_SHOWN_SWAPS)

    @property
    def last(self) -> tuple[ClaimSwap, ...]:
        """The last claim swaps, oldest first."""
        return tuple(self._last)

    def swap(
        self, promises: Promises, granted: Sequence[CheckpointAnswer], left_out: Agreed = NONE_AGREED
    ) -> Sequence[str]:
        """Give each allocation the claim of the pod to which the kubelet gave the allocation.

        `left_out` as in `claims_after_swaps`. Returns the ids of the allocations with another claim than
        before.
        """
        changed = claims_after_swaps(promises, granted, left_out)
        for name, claim in changed.items():
            allocation = self._ledger.get(name)
            assert allocation is not None
            kept = kept_parameters(promises, allocation, claim)
            self._ledger.record(replace(allocation, claim=claim, handed=kept))
            if allocation.claim is not None:  # without a claim before, no pod loses one
                number = self._last[-1].number + 1 if self._last else 1
                swap = ClaimSwap(number, allocation.id, allocation.resource, allocation.claim, claim)
                self._last.append(swap)
        return tuple(changed)

    def recognise(self, promises: Promises) -> Sequence[str]:
        """Give the claims back to allocations that PodResources alone shows.

        Returns the ids of the allocations that have a claim again.
        """
        recognised = []
        for allocation in self._ledger.in_use():
            if allocation.source is not AllocationSource.POD_RESOURCES:
                continue
            # With the claims given back so far.
            promises = structs.replace(promises, in_use=self._ledger.in_use())
            if (claim := shown_claim(promises, allocation)) is not None:
                diverged = claim.devices if set(claim.devices) - set(allocation.cards) else ()
                self._ledger.record(replace(allocation, claim=claim, diverged=diverged))
                recognised.append(allocation.id)
        return tuple(recognised)
