"""Applies what the reconcile rules decided, to the ledger and to the hardware."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence

import structlog

from agent.core.allocation.ledger import Ledger
from agent.core.errors import VendorError
from agent.core.model import Allocation, AllocationState
from agent.core.reconciling.allocations_to_judge import NONE_AGREED, Agreed
from agent.core.reconciling.reconcile_changes import (
    AskKubelet,
    Change,
    Confirm,
    Find,
    Release,
    Remark,
    Remove,
    Revive,
    SetForgotten,
)
from agent.core.reconciling.reconcile_evidence import CheckpointAnswer
from agent.daemon.allocation.allocate_evidence import ReleaseSlices
from agent.daemon.allocation.allocator import Allocator
from agent.vendor_api.agent import Vendor

log = structlog.get_logger(__name__)


class LedgerUpdates:
    """Does each change, logs it once, and counts it in `actions`."""

    def __init__(
        self,
        ledger: Ledger,
        allocator: Allocator,
        vendors: Callable[[], Sequence[Vendor]],
        release: ReleaseSlices,
        request_checkpoint: Callable[[str], None],
        clock: Callable[[], float],
        request_again_after: float = 300.0,
    ) -> None:
        """`request_checkpoint` has the kubelet write its checkpoint, by a new list of the named resource.

        `request_again_after`: seconds until the kubelet is asked again because of the same allocation.
        """
        self._ledger = ledger
        self._allocator = allocator
        self._vendors = vendors
        self._release = release
        self._request_checkpoint = request_checkpoint
        self._clock = clock
        self._request_again_after = request_again_after
        #: Allocation, and whether the allocation was young, to the time at which the kubelet was last asked.
        self._asked_at: dict[tuple[str, bool], float] = {}
        #: Vendor and mark to the logged reason why its slices could not be removed.
        self._not_removed: dict[tuple[str, str], str] = {}
        self.actions: Counter[str] = Counter()

    def makers(self) -> list[str]:
        """The vendors that make hardware: they can be asked for their slices."""
        return [it.name for it in self._vendors() if it.makes is not None]

    def has_asked_within(self, seconds: float) -> bool:
        """Whether the kubelet was asked to write its checkpoint in the last so many seconds."""
        now = self._clock()
        return any(now - at < seconds for at in self._asked_at.values())

    # Changes of the ledger alone; nothing here awaits

    def swap_claims(self, granted: Sequence[CheckpointAnswer], left_out: Agreed = NONE_AGREED) -> bool:
        """Swap claims of pods that got each other's allocation; return whether any claim changed.

        `left_out` as in `claims_after_swaps`.
        """
        swapped = self._allocator.swaps.swap(self._allocator.promises, granted, left_out)
        for name in swapped:
            self.actions["exchange"] += 1
            if (allocation := self._ledger.get(name)) is not None:
                claim = allocation.claim
                pod = f"{claim.namespace}/{claim.pod}" if claim else "none"
                log.warning(
                    "claim moved to the pod that has the allocation", claim=pod, **_log_fields(allocation)
                )
        return bool(swapped)

    def recognise_claims(self) -> bool:
        """Find the claims of pods that only PodResources shows; return whether any was found."""
        recognised = self._allocator.swaps.recognise(self._allocator.promises)
        for name in recognised:
            self.actions["recognise"] += 1
            if (allocation := self._ledger.get(name)) is not None:
                log.info("claim known again", **_log_fields(allocation))
        return bool(recognised)

    def apply(self, change: Confirm | Revive | AskKubelet | SetForgotten | Remark | Find) -> bool:
        """Apply the change; return whether anything was done."""
        allocation = self._ledger.get(change.allocation)
        if allocation is None:
            return False
        match change:
            case Confirm():
                self._confirm(allocation, change)
            case AskKubelet():
                self._ask_kubelet(change)
            case Revive():
                self._ledger.revive(allocation.id)
                self._log_change("revive", "allocation released wrongly, the kubelet has it", allocation)
            case SetForgotten(forgotten=forgotten):
                self._ledger.set_forgotten(allocation.id, forgotten=forgotten)
                self._log_change(
                    "forget", "allocation forgotten by the kubelet", allocation, forgotten=forgotten
                )
            case Remark(text=text):
                self._ledger.remark(allocation.id, text)
                self._log_change("remark", "allocation remarked", allocation, remark=text or "well again")
            case Find(partitions=partitions):
                self._ledger.record_found_slices(allocation.id, partitions)
                self._log_change("find", "slices found", allocation, slices=list(partitions))
        return True

    def _log_change(self, action: str, event: str, allocation: Allocation, **details: object) -> None:
        self.actions[action] += 1
        log.warning(event, **_log_fields(allocation), **details)

    def _confirm(self, allocation: Allocation, change: Confirm) -> None:
        self._ledger.confirm(allocation.id, change.owner, change.life)
        if change.owner.pod:
            self._forget_doubt(allocation.id)  # the kubelet shows the pod
        if change.owner == allocation.owner and allocation.state is AllocationState.DONE:
            return  # only the life of the kubelet is another one
        self.actions["confirm"] += 1
        owner = change.owner
        log.info(
            "allocation confirmed",
            pod=f"{owner.namespace}/{owner.pod}" if owner.pod else owner.uid,
            container=owner.container,
            **_log_fields(allocation),
        )

    def keep_doubts(self, doubted: Collection[str]) -> None:
        """Forget that the kubelet was asked, but for these allocations, which are doubted now."""
        self._asked_at = {key: at for key, at in self._asked_at.items() if key[0] in doubted}

    def _forget_doubt(self, allocation: str) -> None:
        for is_young in (True, False):
            self._asked_at.pop((allocation, is_young), None)

    def may_ask(self, doubt: AskKubelet) -> bool:
        """Whether the kubelet was not asked lately because of this allocation: it may not know yet."""
        asked_at = self._asked_at.get((doubt.allocation, doubt.is_young), float("-inf"))
        return self._clock() - asked_at >= self._request_again_after

    def _ask_kubelet(self, doubt: AskKubelet) -> None:
        self._asked_at[doubt.allocation, doubt.is_young] = self._clock()
        self.actions["doubt"] += 1
        self._request_checkpoint(doubt.resource)

    # Changes that may wait for hardware

    async def apply_releases(self, changes: Sequence[Change]) -> list[Change]:
        """Release allocations that are over and remove slices without an owner; return what was done.

        Changes that need no hardware come first. Hardware takes time: each change is checked again when its
        turn comes.
        """
        decided_on = {it.id: it for it in self._ledger.in_use()}
        done: list[Change] = []
        for change in sorted(changes, key=self._needs_hardware):
            if isinstance(change, Release):
                allocation = self._ledger.get(change.allocation)
                if allocation is None or allocation is not decided_on.get(allocation.id):
                    continue
                is_busy = allocation.id in self._allocator.busy
                if not is_busy and await self._release_allocation(allocation, change.reason):
                    done.append(change)
            elif isinstance(change, Remove) and await self._remove_ownerless(change):
                done.append(change)
        return done

    def _needs_hardware(self, change: Change) -> bool:
        allocation = self._ledger.get(change.allocation)
        return isinstance(change, Remove) or (allocation is not None and self._has_slices(allocation))

    async def _release_allocation(self, allocation: Allocation, reason: str) -> bool:
        """Release the allocation: first its slices, because only the ledger remembers that they must go."""
        if self._has_slices(allocation):
            self._allocator.busy.add(allocation.id)  # no container starts on what is being removed
            try:
                if not await self._try_remove_slices(allocation.vendor, allocation.id):
                    return False
            finally:
                self._allocator.busy.discard(allocation.id)
        self._ledger.release(allocation.id, reason, self._clock())
        self._forget_doubt(allocation.id)
        self.actions["release"] += 1
        log.info("allocation released", reason=reason, **_log_fields(allocation))
        return True

    def _has_slices(self, allocation: Allocation) -> bool:
        vendor, resource = allocation.vendor, allocation.resource
        makes = any(it.name == vendor and it.prepares(resource) for it in self._vendors())
        return bool(allocation.partitions) or makes

    async def _remove_ownerless(self, change: Remove) -> bool:
        if self._ledger.in_use().get(change.allocation) is not None:
            return False  # the slices have an owner by now
        if not await self._try_remove_slices(change.vendor, change.allocation):
            return False
        self.actions["remove"] += 1
        log.warning("slices without an owner removed", vendor=change.vendor, allocation=change.allocation)
        return True

    async def _try_remove_slices(self, vendor: str, mark: str) -> bool:
        try:
            await self._release(vendor, mark)
        except VendorError as exc:
            self.actions["release_failed"] += 1
            if self._not_removed.get((vendor, mark)) != str(exc):  # a pass comes every few seconds
                log.warning("slices not removed, tried again", vendor=vendor, allocation=mark, error=str(exc))
            self._not_removed[vendor, mark] = str(exc)
            return False
        self._not_removed.pop((vendor, mark), None)
        return True


def _log_fields(allocation: Allocation) -> dict[str, object]:
    return {
        "allocation": allocation.id,
        "resource": allocation.resource,
        "devices": list(allocation.cards),
    }
