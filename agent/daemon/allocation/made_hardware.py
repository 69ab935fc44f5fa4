"""Makes and removes the hardware of allocations, and remembers the parameters that it was made with."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from agent.core.allocation.ledger import Ledger
from agent.core.allocation.vendor_requests import request_of
from agent.core.attribution.answered_claims import astray_allocations, may_move
from agent.core.attribution.scheduler_promises import Promises
from agent.core.errors import VendorError
from agent.core.model import Allocation, AllocationState
from agent.core.reconciling.cards_of_answers import is_of_other_plugin
from agent.daemon.allocation.allocate_evidence import AllocationStore, MakeRoom, Prepare, ReleaseSlices
from agent.vendor_api.agent import Request, Vendor

#: Seconds that are spent on making room. An Allocate has 10 in all, and the kubelet was asked before.
ROOM_WITHIN = 4.5


class MadeHardware:
    """Changes hardware. The ledger is written before and after each change: a crash leaves a trace."""

    def __init__(
        self,
        ledger: Ledger,
        store: AllocationStore,
        prepare: Prepare,
        release: ReleaseSlices,
        make_room: MakeRoom | None = None,
    ) -> None:
        """`make_room` removes hardware of allocations that are over."""
        self._ledger = ledger
        self._store = store
        self._prepare = prepare
        self._release = release
        self._make_room = make_room
        self._undoing: set[asyncio.Task[None]] = set()
        #: Ids of allocations that are answered, or get or lose hardware now: no other task may touch them.
        self.busy: set[str] = set()
        #: Ids of allocations with a container that may run: PreStartContainer was answered.
        self.started: frozenset[str] = frozenset()
        #: Allocation to the parameters of its hardware, until its container starts.
        self.made_with: Mapping[str, Mapping[str, str]] = {}

    async def make(self, vendor: Vendor, allocation: Allocation, request: Request) -> None:
        """Write the intent to disk, make the hardware, write that to disk.

        After a crash in between, the slices on the hardware show how far it came.
        """
        self._ledger.record(allocation)
        await self._store.save(durable=True)
        partitions = await self._prepare(vendor.name, request, allocation.cards)
        self.made_with = {**self.made_with, allocation.id: request.parameters}
        self._ledger.record_made_slices(allocation.id, partitions, AllocationState.PREPARED)
        await self._store.save(durable=True)

    async def ensure(self, vendor: Vendor, allocation_id: str) -> bool:
        """Make the hardware as the allocation is claimed now; return whether the ledger changed."""
        allocation = self._ledger.get(allocation_id)
        if allocation is None or is_of_other_plugin(allocation):
            return False  # the answer names other hardware than this agent would make
        request = request_of(allocation)
        made = await self._prepare(vendor.name, request, allocation.cards)
        self.made_with = {**self.made_with, allocation_id: request.parameters}
        return self._ledger.record_made_slices(allocation_id, made, AllocationState.DONE)

    async def _remove_slices(self, allocation: Allocation) -> bool:
        """Remove the hardware of an allocation that stays; return whether it is still answered."""
        self.busy.add(allocation.id)
        try:
            await self._release(allocation.vendor, allocation.id)
        except VendorError:
            return False
        finally:
            self.busy.discard(allocation.id)
        known = self._ledger.get(allocation.id)
        return known is not None and known.state is AllocationState.DONE

    async def undo_all(self, vendor: Vendor, begun: Sequence[str]) -> None:
        """Undo these allocations, also where the caller is cancelled again and again meanwhile."""
        undoing = asyncio.create_task(self._undo_all(vendor, begun))
        self._undoing.add(undoing)
        undoing.add_done_callback(self._undoing.discard)
        await asyncio.shield(undoing)

    async def _undo_all(self, vendor: Vendor, begun: Sequence[str]) -> None:
        written = any(self._is_made(vendor, allocation_id) for allocation_id in begun)
        for allocation_id in begun:
            await self.undo(vendor, allocation_id)
        if written:
            with suppress(OSError):  # the kubelet gets the first refusal; the disk is tried again soon
                await self._store.save(durable=False)

    async def undo(self, vendor: Vendor, allocation_id: str) -> None:
        """Drop the allocation. Where its hardware cannot be removed now, reconciling removes both later."""
        if self._is_made(vendor, allocation_id):
            try:
                await self._release(vendor.name, allocation_id)
            except VendorError:
                self.busy.discard(allocation_id)
                return
        self._ledger.drop(allocation_id)
        self.busy.discard(allocation_id)

    def _is_made(self, vendor: Vendor, allocation_id: str) -> bool:
        """Whether hardware was begun for the allocation, or is about to be."""
        allocation = self._ledger.get(allocation_id)
        return allocation is not None and vendor.prepares(allocation.resource)

    async def make_room(self, until: float) -> bool:
        """Remove hardware that is over, up to a time on the loop's clock; return whether any may be gone."""
        if self._make_room is None or asyncio.get_running_loop().time() >= until:
            return False
        try:
            async with asyncio.timeout_at(until):
                return await self._make_room()
        except TimeoutError:
            return True  # what was removed in time may be enough

    def misplaced_hardware(
        self, promises: Promises, resource: str, granted: Collection[str] = ()
    ) -> Mapping[str, Sequence[str]]:
        """Allocation to its claimed cards, for unused hardware that is not as the claim says.

        `granted`: ids of allocations that the kubelet grants to a pod; allocations with an owner are granted.
        """
        in_use = promises.in_use
        made = [it for it in map(in_use.get, self.made_with) if it is not None]
        known = (*made, *in_use.astray().values())
        owned = {it.id for it in known if it.owner is not None and it.owner.uid}
        idle = owned.union(granted) - self.started - self.busy
        resized = {
            allocation.id: allocation.cards
            for allocation in made
            if allocation.id in idle and allocation.resource == resource
            if self._is_resized(promises, allocation)
        }
        return {**resized, **{it.id: cards for it, cards in astray_allocations(promises, resource, idle)}}

    def _is_resized(self, promises: Promises, allocation: Allocation) -> bool:
        """Whether the hardware was made with other parameters than the claim has now."""
        wanted = request_of(allocation).parameters
        made = self.made_with.get(allocation.id, wanted)
        if not allocation.partitions or made == wanted:
            return False
        return may_move(promises, allocation, allocation.cards)

    async def remove_misplaced(self, misplaced: Mapping[str, Sequence[str]]) -> bool:
        """Remove this hardware, which would be in the way of others; return whether any was removed.

        The hardware is made on the claimed cards when its container starts. The answers stay true, because
        they name hardware by its allocation.
        """
        removed = False
        for allocation_id, cards in misplaced.items():
            allocation = self._ledger.get(allocation_id)
            if allocation is not None and await self._remove_slices(allocation):
                known = self._ledger.get(allocation_id) or allocation
                diverged = tuple(cards) if {*cards} != {*known.devices} else ()
                self._ledger.record(replace(known, partitions=(), diverged=diverged))
                removed = True
        return removed

    def mark_started(self, allocation_ids: Collection[str]) -> None:
        """Record that the containers of these allocations may run from now on."""
        in_use = self._ledger.in_use()
        known = (name for name in self.started if in_use.get(name) is not None)
        self.started = frozenset(known).union(allocation_ids)
        self.made_with = {
            name: made
            for name, made in self.made_with.items()
            if name not in self.started and in_use.get(name) is not None
        }


def room_deadline() -> float:
    """The time on the loop's clock until which the agent tries to make room for a refused request."""
    return asyncio.get_running_loop().time() + ROOM_WITHIN
