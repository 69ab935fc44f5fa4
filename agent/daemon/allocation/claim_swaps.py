"""Claims that change hands: the kubelet, not the order of the answers, says whose an allocation is."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from agent.core.allocation.ledger import Ledger
from agent.core.allocation.reconcile_evidence import CheckpointAnswer
from agent.core.allocation.scheduler_promises import Promises
from agent.core.model import AllocationSource
from agent.core.notices import ClaimSwap

#: Claims that changed hands and are still shown.
SHOWN = 64


class Swaps:
    """The claims of the ledger's allocations, and the last that changed hands."""

    def __init__(self, ledger: Ledger, promises: Callable[[], Promises]) -> None:
        self._ledger = ledger
        self._promises = promises
        self._last: deque[ClaimSwap] = deque(maxlen=SHOWN)

    @property
    def last(self) -> tuple[ClaimSwap, ...]:
        """Oldest first."""
        return tuple(self._last)

    def exchange(self, granted: Sequence[CheckpointAnswer]) -> Sequence[str]:
        """Let claims follow what the kubelet did; the allocations whose claim is another one now."""
        promises = self._promises()
        changed = promises.exchanged(granted)
        for name, claim in changed.items():
            it = self._ledger.get(name)
            assert it is not None
            self._ledger.record(replace(it, claim=claim, handed=promises.handed(it, claim)))
            if it.claim is not None:  # else its pod was heard of late, which is nobody's loss
                number = self._last[-1].number + 1 if self._last else 1
                self._last.append(ClaimSwap(number, it.id, it.resource, it.claim, claim))
        return tuple(changed)

    def recognise(self) -> Sequence[str]:
        """Give back their claims to whom PodResources alone shows; the allocations that have one now."""
        found = []
        for it in self._ledger.in_use():
            # Each is looked at beside those that have theirs by now.
            if (
                it.source is AllocationSource.POD_RESOURCES
                and (claim := self._promises().of_shown(it)) is not None
            ):
                elsewhere = set(claim.devices) - set(it.cards)
                self._ledger.record(replace(it, claim=claim, diverged=claim.devices if elsewhere else ()))
                found.append(it.id)
        return tuple(found)
