"""Answers PreStartContainer: the hardware of a container is there before the container starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from agent.core.allocation.admission import serving_vendor
from agent.core.allocation.container_allocations import starting_allocations
from agent.core.allocation.ledger import Ledger
from agent.core.attribution.answered_claims import is_unread
from agent.core.attribution.scheduler_promises import Promises
from agent.core.errors import AllocationError, InsufficientRoom, LimitsUnread, NotAllocated, StartRefused
from agent.core.reconciling.reconcile_evidence import CheckpointAnswer
from agent.daemon.allocation.allocate_evidence import AllocationStore, KubeletEvidence
from agent.daemon.allocation.claim_swaps import ClaimSwaps
from agent.daemon.allocation.made_hardware import MadeHardware, room_deadline
from agent.vendor_api.agent import Vendor


class ContainerStarts:
    """Makes hardware that is gone, as after a reboot, and hardware that another pod's claim has changed."""

    def __init__(
        self,
        promises: Callable[[], Promises],
        ledger: Ledger,
        store: AllocationStore,
        evidence: KubeletEvidence,
        swaps: ClaimSwaps,
        hardware: MadeHardware,
    ) -> None:
        """`promises` returns the present promises."""
        self._promises = promises
        self._ledger = ledger
        self._store = store
        self._evidence = evidence
        self._swaps = swaps
        self._hardware = hardware

    async def start(self, resource: str, ids: Sequence[str]) -> None:
        """Have the hardware of the allocations behind these device IDs made.

        Raises:
            NotAllocated: No allocation holds these IDs.
            LimitsUnread: The limits of the container decide, and its pod is not known yet.
            StartRefused: What the pod asks for cannot be had on its card.
            VendorError: The hardware cannot be made now. The kubelet tries again.
        """
        vendor = serving_vendor(self._promises().scene, resource)
        if not vendor.prepares(resource):
            return
        granted = await self._evidence.checkpoint_answers()
        changed = granted is not None and bool(self._swaps.swap(self._promises(), granted))
        names = {answer.allocation for answer in granted or ()}
        misplaced = self._hardware.misplaced_hardware(self._promises(), resource, names)
        changed |= await self._hardware.remove_misplaced(misplaced)
        holders = self._ledger.holders(resource, ids)
        allocations = [it.id for it in starting_allocations(holders, granted, resource, ids)]
        if not allocations or not self._hardware.busy.isdisjoint(allocations):  # busy: being released now
            raise NotAllocated(resource, ids)
        self._refuse_unread(allocations, granted or ())
        self._hardware.busy.update(allocations)
        try:
            made = [await self._start(vendor, allocation_id) for allocation_id in allocations]
        finally:
            self._hardware.busy.difference_update(allocations)
        self._hardware.mark_started(allocations)
        if changed or any(made):
            await self._store.save(durable=True)

    def _refuse_unread(self, allocation_ids: Sequence[str], granted: Sequence[CheckpointAnswer]) -> None:
        promises = self._promises()
        for answer in granted:
            known = self._ledger.get(answer.allocation) if answer.allocation in allocation_ids else None
            if known is not None and is_unread(promises, known, answer):
                raise LimitsUnread(known.resource, answer.uid, answer.container)

    async def _start(self, vendor: Vendor, allocation_id: str) -> bool:
        """Make the hardware; return whether the ledger changed.

        Where there is no room, make the slices of waiting pods as they are claimed now, remove what is over,
        and try once more.
        """
        try:
            with suppress(InsufficientRoom):
                return await self._hardware.ensure(vendor, allocation_id)
            await self._ensure_waiting_pods(vendor, allocation_id)
            await self._hardware.make_room(room_deadline())
            return await self._hardware.ensure(vendor, allocation_id)
        except InsufficientRoom as exc:
            allocation = self._ledger.get(allocation_id)
            if allocation is None or allocation.claim is None:
                raise
            claim = allocation.claim
            raise StartRefused(
                allocation.resource, claim.uid, claim.namespace, claim.pod, claim.container, exc.why
            ) from exc

    async def _ensure_waiting_pods(self, vendor: Vendor, allocation_id: str) -> None:
        """Make the hardware of waiting pods on the same cards as they are claimed now.

        A claim swap may leave the slice of one pod too large until the container of that pod starts.
        """
        own = self._ledger.get(allocation_id)
        if own is None:
            return
        waiting = {pod.uid for pod in self._promises().scene.candidates.waiting}
        for other in self._ledger.in_use():
            shares_card = other.vendor == vendor.name and not {*other.cards}.isdisjoint(own.cards)
            is_waiting = other.claim is not None and other.claim.uid in waiting
            if shares_card and is_waiting and other.id not in self._hardware.busy:
                self._hardware.busy.add(other.id)
                try:
                    with suppress(AllocationError):  # the start of that container reports it
                        await self._hardware.ensure(vendor, other.id)
                finally:
                    self._hardware.busy.discard(other.id)
