"""Answers an Allocate: admit, choose cards, make hardware, record, save, answer.

The ledger is written before the kubelet is answered.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain

from msgspec import Struct, structs

from agent.core.allocation.admission import Admitted, admit, refuse_outdated, refuse_retired, serving_vendor
from agent.core.allocation.allocations_in_use import AllocationsInUse
from agent.core.allocation.answer_annotations import annotations_of
from agent.core.allocation.container_edit_checks import check_edits
from agent.core.allocation.current_holders import owners_to_ask_about
from agent.core.allocation.ledger import Ledger
from agent.core.allocation.scene import Scene
from agent.core.allocation.vendor_requests import devices_of, request_of
from agent.core.attribution.answers_never_taken import abandoned_ids, answers_never_taken
from agent.core.attribution.pod_attribution import is_chosen_for
from agent.core.attribution.refused_requests import RefusedAllocate
from agent.core.attribution.scheduler_promises import Promises
from agent.core.devices.memory_units import counted_in
from agent.core.errors import (
    AllocationError,
    InOtherMode,
    InsufficientMemory,
    InsufficientRoom,
    InsufficientShares,
    InvalidRequest,
    NotServable,
    PromisedElsewhere,
)
from agent.core.model import Allocation, AllocationState, Owner
from agent.core.placement.allocate_placement import PlacedRequest, place_request
from agent.core.placement.preferred_allocation import preferred_ids
from agent.core.reconciling.reconcile_evidence import CheckpointAnswer
from agent.daemon.allocation.allocate_evidence import (
    AllocationStore,
    KubeletEvidence,
    MakeRoom,
    Prepare,
    ReleaseSlices,
)
from agent.daemon.allocation.claim_swaps import ClaimSwaps
from agent.daemon.allocation.container_starts import ContainerStarts
from agent.daemon.allocation.holder_checks import refuse_held
from agent.daemon.allocation.made_hardware import MadeHardware, room_deadline
from agent.daemon.allocation.present_promises import PresentPromises
from agent.vendor_api.agent import ContainerEdits, Device, Vendor

#: Refusals because other allocations have the cards or the room. For slices it is InsufficientRoom.
REFUSED_FOR_OTHERS = (PromisedElsewhere, InOtherMode, InsufficientMemory, InsufficientShares)


class Answer(Struct, frozen=True):
    """What one container gets, and the allocation that was recorded for it."""

    allocation: Allocation
    edits: ContainerEdits


class Allocator:
    """Turns requests into allocations, one request at a time."""

    def __init__(
        self,
        scene: Callable[[], Scene],
        ledger: Ledger,
        store: AllocationStore,
        clock: Callable[[], float],
        prepare: Prepare,
        release: ReleaseSlices,
        evidence: KubeletEvidence,
        make_room: MakeRoom | None = None,
    ) -> None:
        """`scene` returns the present scene. `prepare` makes hardware, and `release` removes hardware.

        `make_room` removes hardware of allocations that are over, and returns whether there was any.
        """
        self._scene = scene
        self._ledger = ledger
        self._store = store
        self._clock = clock
        self._evidence = evidence
        self._turn = asyncio.Lock()
        self.swaps = ClaimSwaps(ledger)
        self._promises = PresentPromises(scene, ledger, evidence)
        self._hardware = MadeHardware(ledger, store, prepare, release, make_room)
        self._starts = ContainerStarts(
            self._promises.now, ledger, store, evidence, self.swaps, self._hardware
        )

    @property
    def busy(self) -> set[str]:
        """Ids of allocations that are being answered, or that get or lose hardware now."""
        return self._hardware.busy

    @property
    def started(self) -> frozenset[str]:
        """Ids of allocations with a container that may run."""
        return self._hardware.started

    async def allocate(self, resource: str, containers: Sequence[Sequence[str]]) -> list[Answer]:
        """Give one answer for each container. All are answered, or none: then begun allocations are undone.

        Raises:
            AllocationError: The request names what is not there, is not healthy, or makes no sense.
            VendorError: The hardware cannot be made now.
        """
        async with self._turn:
            try:
                return await self._answer_with_retries(resource, containers)
            except Exception as exc:
                self._promises.remember_refusal(RefusedAllocate.from_error(resource, containers, exc))
                raise

    async def _answer_with_retries(self, resource: str, containers: Sequence[Sequence[str]]) -> list[Answer]:
        """Answer the request, and try again where allocations that are over may be in the way.

        A slice may be lacking because an earlier answer has the claim of this pod. The kubelet's checkpoint
        shows which pod has that answer: the claims are swapped, and the request is tried once more.

        A scheduler gives away the cards of an ended pod before its slices are removed and its allocation is
        released. Then what is over is released and the request tried again, until it is answered or
        `room_deadline` has come.
        """
        refusal: AllocationError
        try:
            return await self._answer_once(resource, containers)
        except (InsufficientRoom, NotServable) as exc:
            refusal = exc
            if await self._swap_claims():
                with suppress(InsufficientRoom):
                    return await self._answer_once(resource, containers)
        except REFUSED_FOR_OTHERS as exc:
            refusal = exc
        until = room_deadline()
        while self._may_be_blocked_by_ended(resource, refusal) and await self._hardware.make_room(until):
            try:
                return await self._answer_once(resource, containers)
            except (InsufficientRoom, *REFUSED_FOR_OTHERS) as exc:
                refusal = exc  # what was removed was not in the way of this request
        raise refusal

    def _may_be_blocked_by_ended(self, resource: str, refusal: AllocationError) -> bool:
        """Whether allocations of ended pods may be in the way. Which slices are left, only hardware shows."""
        if isinstance(refusal, REFUSED_FOR_OTHERS):
            return self.promises.is_kept_by_ended(resource)
        return isinstance(refusal, InsufficientRoom)

    async def _swap_claims(self) -> bool:
        """Swap claims as the kubelet's checkpoint says; return whether any claim changed."""
        granted = await self._evidence.checkpoint_answers()
        return granted is not None and bool(self.swaps.swap(self.promises, granted))

    @property
    def abandoned(self) -> frozenset[str]:
        """Ids of allocations without an owner that were promised to pods that have ended."""
        return abandoned_ids(self._ledger.in_use(), self._scene())

    @property
    def promises(self) -> Promises:
        """What schedulers promised, as of now."""
        return self._promises.now()

    async def _answer_once(self, resource: str, containers: Sequence[Sequence[str]]) -> list[Answer]:
        """Answer the request once. After each `await` the scene is taken again, and used until the next."""
        if not containers:
            raise InvalidRequest(resource, "it asks for no container")
        scene = await self._confirm_earlier_answers(self._scene(), resource)
        requests = [admit(scene, resource, ids) for ids in containers]
        ids = list(dict.fromkeys(chain.from_iterable(request.ids for request in requests)))
        if holders := self._ledger.holders(resource, ids):
            await refuse_held(self._evidence, holders, resource, ids)
            scene = self._scene()
            requests = [admit(scene, resource, ids) for ids in containers]
        vendor = serving_vendor(scene, resource)
        refuse_retired(scene, resource, {uuid for request in requests for uuid in request.uuids})
        refuse_outdated(scene, resource, ids)
        begun: list[str] = []
        try:
            answers = []
            for request in requests:
                placed = await self._choose_cards(_admit_at(scene, request))
                allocation = self._begin_allocation(vendor, placed, begun)
                if vendor.prepares(resource):
                    await self._hardware.make(vendor, allocation, request_of(allocation))
                    # A card may have failed while its slice was made.
                    placed = structs.replace(placed, request=_admit_at(self._scene(), placed.request))
                answers.append(self._record_answer(vendor, placed, allocation))
                scene = placed.request.scene
            await self._store.save(durable=False)
            self._hardware.busy.difference_update(begun)
        except BaseException:
            await self._hardware.undo_all(vendor, begun)
            raise
        return answers

    async def _confirm_earlier_answers(self, scene: Scene, resource: str) -> Scene:
        """Record which containers have the earlier answers, where a scheduler may choose the cards.

        The owners decide which pod asks now, and where there is room. Returns the scene after that.
        """
        planned = scene.plan.get(resource)
        if planned is None or planned.rule.placement == "local":
            return scene
        waiting = self._ledger.in_use().without_owner(resource)
        if waiting and (any(it.claim for it in waiting) or is_chosen_for(self._promises.at(scene), resource)):
            scene = await self._confirm_owners(resource, waiting)
        if misplaced := self._hardware.misplaced_hardware(self._promises.at(scene), resource):
            await self._hardware.remove_misplaced(misplaced)
            scene = self._scene()
        return scene

    async def _confirm_owners(self, resource: str, waiting: Collection[Allocation]) -> Scene:
        """Record the owners of `waiting` allocations, and undo answers that the kubelet has not taken.

        The kubelet writes an answer with its container to its checkpoint before it asks for the next
        container. Returns the scene after that.
        """
        life = self._evidence.life  # read before the checkpoint: this life has written or read that file
        written = await self._evidence.checkpoint_answers()
        scene = self._scene()
        if written is None:
            return scene
        granted = [it for it in written if self._is_for_resource(it, resource)]
        self.swaps.swap(self._promises.at(scene), granted)
        for answer in granted:
            if (known := self._ledger.get(answer.allocation)) is not None and known.owner is None:
                self._ledger.confirm(known.id, Owner(answer.uid, answer.container), life)
        taken, vendors = {answer.allocation for answer in granted}, scene.vendors
        for allocation in answers_never_taken(waiting, taken, scene, life, self._clock()):
            if allocation.id not in self._hardware.busy:
                await self._hardware.undo(vendors[allocation.vendor], allocation.id)
                scene = self._scene()
        return scene

    def _is_for_resource(self, answer: CheckpointAnswer, resource: str) -> bool:
        allocation = self._ledger.get(answer.allocation)
        return allocation is not None and allocation.resource == resource

    async def _choose_cards(self, request: Admitted) -> PlacedRequest:
        """Choose the cards of a request. Nothing is awaited after the choice.

        A scheduler gives the room of an ended pod away at once, and the agent hears late of that end. Where
        room is lacking, the kubelet is asked which pods have ended.
        """
        promises = self._promises.at(request.scene)
        others = self._others(promises, request)
        try:
            return place_request(promises, request, others)
        except (PromisedElsewhere, InsufficientMemory, InsufficientShares):
            of_resource = [it for it in others if it.resource == request.resource.name]
            asked = owners_to_ask_about(of_resource, self._clock(), request.scene.alive)
            if not asked:
                raise
            owners = await self._evidence.ended_owners(asked)
            gone = {it.id for it in of_resource if it.owner in owners}
            promises = self.promises
            left = self._others(promises, request)
            left = left.without(it for it in left if it.id in gone)
            if all(left.get(it.id) is not None for it in of_resource):
                raise
        return place_request(promises, _admit_at(promises.scene, request), left)

    def _others(self, promises: Promises, request: Admitted) -> AllocationsInUse:
        """The allocations that share no ID with the request.

        The kubelet gives an ID out again once its pod has ended.
        """
        return promises.in_use.without(self._ledger.holders(request.resource.name, request.ids))

    def _begin_allocation(self, vendor: Vendor, placed: PlacedRequest, begun: list[str]) -> Allocation:
        """Make the allocation of a request, which is not in the ledger yet; add its id to `begun`."""
        request = placed.request
        unit = counted_in(request.resource.rule.sharing)
        allocation = Allocation(
            id=os.urandom(8).hex(),
            resource=request.resource.name,
            vendor=vendor.name,
            ids=request.ids,
            devices=_devices_of_allocation(request.devices, unit),
            state=AllocationState.INTENT,
            since=self._clock(),
            life=self._evidence.life,
            claim=placed.choice.claim,
            diverged=placed.choice.actual_cards,
            unit=unit,
        )
        begun.append(allocation.id)
        self._hardware.busy.add(allocation.id)
        return allocation

    def _record_answer(self, vendor: Vendor, placed: PlacedRequest, allocation: Allocation) -> Answer:
        """Record the allocation as answered; return the answer with the container edits of the vendor."""
        cards = devices_of(placed.request.scene, placed.choice.actual_cards) or placed.request.devices
        distinct = list({it.uuid: it for it in cards}.values())
        # In the ledger the allocation may have another claim by now.
        known = self._ledger.get(allocation.id) or allocation
        asked = replace(request_of(allocation), partitions=known.partitions)
        edits = check_edits(vendor.name, vendor.container_edits(distinct, asked))
        # The kubelet has TAKEN_WITHIN from now to write the answer down, however long the answer took.
        done = replace(known, state=AllocationState.DONE, since=self._clock())
        self._ledger.record(done)
        if placed.choice.claim is not None:
            self._promises.remember_answer(placed.choice.claim.uid)
        return Answer(done, replace(edits, annotations={**edits.annotations, **annotations_of(allocation)}))

    def preferred(
        self, resource: str, available: Sequence[str], required: Sequence[str], size: int
    ) -> list[str]:
        """Answer a GetPreferredAllocation: the IDs to take; [] where no choice can be made."""
        promises = self.promises
        planned = promises.scene.plan.get(resource)
        holders = self._ledger.holders(resource, available)
        return preferred_ids(promises, planned, available, required, size, holders) if planned else []

    async def pre_start(self, resource: str, ids: Sequence[str]) -> None:
        """Answer a PreStartContainer: the hardware of the container is there afterwards.

        Raises:
            NotAllocated: No allocation holds these IDs.
            LimitsUnread: The limits of the container decide, and its pod is not known yet.
            StartRefused: What the pod asks for cannot be had on its card.
            VendorError: The hardware cannot be made now. The kubelet tries again.
        """
        async with self._turn:
            await self._starts.start(resource, ids)


def _admit_at(scene: Scene, request: Admitted) -> Admitted:
    """The request, admitted again if this is another scene than the one that admitted it."""
    return request if request.scene is scene else admit(scene, request.resource.name, request.ids)


def _devices_of_allocation(devices: Sequence[Device], unit: str) -> tuple[str, ...]:
    """The card of each ID. Memory units on one card may be thousands: they have that card once."""
    uuids = tuple(it.uuid for it in devices)
    return uuids[:1] if unit and len(set(uuids)) == 1 else uuids
