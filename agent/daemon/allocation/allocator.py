"""Answers an Allocate: admit, place, record, make hardware, word the edits, save, answer.

The ledger is written before the kubelet is answered.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain

from agent.core.allocation.admission import Admitted, Scene, admit, refuse_outdated, refuse_retired, serving
from agent.core.allocation.answer_annotations import ALLOCATION, marks
from agent.core.allocation.asking_pods import is_chosen_for, suspected_pods
from agent.core.allocation.container_edit_rules import UnusableEdits, usable
from agent.core.allocation.current_holders import owned, owners_to_ask_about
from agent.core.allocation.ledger import Ledger
from agent.core.allocation.placed_requests import PlacedRequest, others_in_use, place
from agent.core.allocation.preferred_ids import preferred_ids
from agent.core.allocation.refused_requests import (
    RefusedAllocate,
    RefusedRequest,
    answered,
    guessed,
    suspects,
    unexplained,
)
from agent.core.allocation.scheduler_promises import Promises
from agent.core.allocation.unowned_answers import abandoned, unowned, untaken
from agent.core.allocation.vendor_requests import devices_of, requested
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
from agent.vendor_api.agent import ContainerEdits, Device, Vendor

#: Refusals because other allocations have the cards or the room. For slices it is InsufficientRoom.
TAKEN = (PromisedElsewhere, InOtherMode, InsufficientMemory, InsufficientShares)


@dataclass(frozen=True, slots=True)
class Answer:
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
        """`scene` gives the present scene. `prepare` makes hardware and `release` removes it.

        `make_room` removes hardware of allocations that are over; it returns whether there was any.
        """
        self._scene = scene
        self._ledger = ledger
        self._store = store
        self._clock = clock
        self._evidence = evidence
        self._turn = asyncio.Lock()
        self.swaps = ClaimSwaps(ledger)
        #: Refused requests, as long as a pod that may have sent them seems to wait.
        self._refused: tuple[RefusedRequest, ...] = ()
        self._hardware = MadeHardware(ledger, store, prepare, release, make_room)
        self._starts = ContainerStarts(
            lambda: self.promises, ledger, store, evidence, self.swaps, self._hardware
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
        """One answer for each container. All are answered, or none; what was begun is undone.

        Raises:
            AllocationError: The request names what is not there, is not healthy, or makes no sense.
            VendorError: The hardware cannot be made now.
        """
        async with self._turn:
            try:
                return await self._served(resource, containers)
            except Exception as exc:
                self._suspect(RefusedAllocate.of(resource, containers, exc))
                raise

    async def _served(self, resource: str, containers: Sequence[Sequence[str]]) -> list[Answer]:
        """Answer the request, if need be after the ledger has caught up with what is over.

        A slice may be lacking because an earlier answer has the claim of this pod: the kubelet's checkpoint
        says so. A scheduler gives away the room and the cards of an ended pod before the slices are removed
        and the ledger lets go of them: then room is made and the request tried again, until it can be
        answered or the time is over.
        """
        refusal: AllocationError
        try:
            return await self._answers(resource, containers)
        except (InsufficientRoom, NotServable) as exc:
            refusal = exc
            if await self._follow_kubelet():
                with suppress(InsufficientRoom):
                    return await self._answers(resource, containers)
        except TAKEN as exc:
            refusal = exc
        until = room_deadline()
        while self._may_be_over(resource, refusal) and await self._hardware.make_room(until):
            try:
                return await self._answers(resource, containers)
            except (InsufficientRoom, *TAKEN) as exc:  # what was removed was not in the way of this request
                refusal = exc
        raise refusal

    def _may_be_over(self, resource: str, refusal: AllocationError) -> bool:
        """Whether allocations that are over may be in the way. Of slices only the hardware tells."""
        if isinstance(refusal, TAKEN):
            return self.promises.is_kept_by_ended(resource)
        return isinstance(refusal, InsufficientRoom)

    async def _follow_kubelet(self) -> bool:
        """Swap claims as the kubelet's checkpoint says; return whether any changed."""
        granted = await self._evidence.granted()
        return granted is not None and bool(self.swaps.exchange(self.promises, granted))

    def _suspect(self, refused: RefusedAllocate) -> None:
        """Remember which pods may have sent the request: their status shows the refusal a moment later."""
        promises, life = self.promises, self._evidence.life
        pods = promises.scene.candidates
        others = frozenset(pod.uid for pod in pods if refused.text in pod.message)
        requests = (
            RefusedRequest(refused.text, suspected_pods(promises, refused.resource, ids), others, life)
            for ids in refused.containers
        )
        self._refused = unexplained((*self._of_this_life(life), *requests), pods)

    def _of_this_life(self, life: str) -> Sequence[RefusedRequest]:
        return [it for it in self._refused if it.life == life]

    @property
    def abandoned(self) -> frozenset[str]:
        """Ids of allocations without an owner that were promised to pods that have ended."""
        return abandoned(self._ledger.in_use(), self._scene())

    @property
    def promises(self) -> Promises:
        """What schedulers promised, as of now."""
        return self._promises_in(self._scene())

    def _promises_in(self, scene: Scene) -> Promises:
        """What schedulers promised in this scene, with the ledger and the refused requests of now."""
        in_use = self._ledger.in_use()
        if not self._refused:
            return Promises(scene, in_use)
        requests, pods = self._of_this_life(self._evidence.life), scene.candidates
        return Promises(scene, in_use, suspects(requests, pods), guessed(requests, pods))

    async def _answers(self, resource: str, containers: Sequence[Sequence[str]]) -> list[Answer]:
        """Answer the request once. The scene is taken anew after each wait, and handed on in between."""
        if not containers:
            raise InvalidRequest(resource, "it asks for no container")
        scene = await self._learned(self._scene(), resource)
        requests = [admit(scene, resource, ids) for ids in containers]
        ids = list(dict.fromkeys(chain.from_iterable(request.ids for request in requests)))
        if holders := owned(self._ledger.holders(resource, ids)):
            await refuse_held(self._evidence, holders, resource, ids)
            scene = self._scene()
            requests = [admit(scene, resource, ids) for ids in containers]
        vendor = serving(scene, resource)
        refuse_retired(scene, resource, {uuid for request in requests for uuid in request.uuids})
        refuse_outdated(scene, resource, ids)
        begun: list[str] = []
        try:
            answers = []
            for request in requests:
                placed = await self._placed(_admitted_in(scene, request))
                allocation = self._begun(vendor, placed, begun)
                if vendor.prepares(resource):
                    await self._hardware.make(vendor, allocation, requested(allocation))
                    # A card may have failed while its slice was made.
                    placed = replace(placed, request=_admitted_in(self._scene(), placed.request))
                answers.append(self._answered(vendor, placed, allocation))
                scene = placed.request.scene
            await self._store.save(durable=False)
            self._hardware.busy.difference_update(begun)
        except BaseException:
            await self._hardware.undo_all(vendor, begun)
            raise
        return answers

    async def _learned(self, scene: Scene, resource: str) -> Scene:
        """Learn which containers have the earlier answers, where that decides on this request.

        It decides which pod asks, and where there is room. The kubelet writes down which container has an
        answer before it asks for the next container. Returns the scene after that.
        """
        planned = scene.plan.get(resource)
        if planned is None or planned.rule.placement == "local":
            return scene
        waiting = unowned(self._ledger.in_use(), resource)
        promises = self._promises_in(scene)
        if waiting and (any(it.claim for it in waiting) or is_chosen_for(promises, resource)):
            life = self._evidence.life  # read before the checkpoint, which this life has written or read
            written = await self._evidence.granted()
            scene = self._scene()
            granted = [it for it in written or () if self._is_of(it, resource)]
            self.swaps.exchange(self._promises_in(scene), granted)
            for answer in granted:
                if (known := self._ledger.get(answer.allocation)) is not None and known.owner is None:
                    self._ledger.confirm(known.id, Owner(answer.uid, answer.container), life)
            if written is not None:
                taken, vendors = {answer.allocation for answer in granted}, scene.vendors
                for allocation in untaken(waiting, taken, scene, life, self._clock()):
                    if allocation.id not in self._hardware.busy:
                        await self._hardware.undo(vendors[allocation.vendor], allocation.id)
                        scene = self._scene()
        if misplaced := self._hardware.misplaced(self._promises_in(scene), resource):
            await self._hardware.remove_misplaced(misplaced)
            scene = self._scene()
        return scene

    def _is_of(self, answer: CheckpointAnswer, resource: str) -> bool:
        allocation = self._ledger.get(answer.allocation)
        return allocation is not None and allocation.resource == resource

    async def _placed(self, request: Admitted) -> PlacedRequest:
        """Choose the cards of a request; after that nothing is awaited.

        The agent hears late that a pod has ended, and its scheduler gives the room of that pod away at once:
        where the room is lacking, the kubelet is asked which pods are gone.
        """
        promises = self._promises_in(request.scene)
        others = others_in_use(promises.in_use, request)
        try:
            return place(promises, request, others)
        except (PromisedElsewhere, InsufficientMemory, InsufficientShares):
            asked = owners_to_ask_about(others, self._clock(), request.scene.alive)
            if not asked:
                raise
            owners = await self._evidence.gone(asked)
            gone = {it.id for it in others if it.owner in owners}
            promises = self.promises
            left = [it for it in others_in_use(promises.in_use, request) if it.id not in gone]
            if {it.id for it in left} >= {it.id for it in others}:
                raise
        return place(promises, _admitted_in(promises.scene, request), left)

    def _begun(self, vendor: Vendor, placed: PlacedRequest, begun: list[str]) -> Allocation:
        """The allocation of a request, which is not in the ledger yet; its id goes to `begun`."""
        request = placed.request
        unit = counted_in(request.resource.rule.sharing)
        allocation = Allocation(
            id=secrets.token_hex(8),
            resource=request.resource.name,
            vendor=vendor.name,
            ids=request.ids,
            devices=_cards(request.devices, unit),
            state=AllocationState.INTENT,
            since=self._clock(),
            life=self._evidence.life,
            claim=placed.choice.claim,
            diverged=placed.choice.instead,
            unit=unit,
        )
        begun.append(allocation.id)
        self._hardware.busy.add(allocation.id)
        return allocation

    def _answered(self, vendor: Vendor, placed: PlacedRequest, allocation: Allocation) -> Answer:
        """Record the allocation as answered, with what its container gets."""
        cards = devices_of(placed.request.scene, placed.choice.instead) or placed.request.devices
        distinct = list({it.uuid: it for it in cards}.values())
        # In the ledger it may have another claim by now.
        known = self._ledger.get(allocation.id) or allocation
        asked = replace(requested(allocation), partitions=known.partitions)
        edits = usable(vendor.name, vendor.container_edits(distinct, asked))
        # The kubelet has TAKEN_WITHIN from now to write the answer down, however long the answer took.
        done = replace(known, state=AllocationState.DONE, since=self._clock())
        self._ledger.record(done)
        if placed.choice.claim is not None:
            self._refused = answered(placed.choice.claim.uid, self._refused)
        return Answer(done, replace(edits, annotations={**edits.annotations, **marks(allocation)}))

    def preferred(
        self, resource: str, available: Sequence[str], required: Sequence[str], size: int
    ) -> list[str]:
        """Answer a GetPreferredAllocation: the IDs to take; [] where no choice can be made."""
        promises = self.promises
        planned = promises.scene.plan.get(resource)
        return preferred_ids(promises, planned, available, required, size) if planned else []

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


def _admitted_in(scene: Scene, request: Admitted) -> Admitted:
    """The request, admitted again if this is another scene than the one that admitted it."""
    return request if request.scene is scene else admit(scene, request.resource.name, request.ids)


def _cards(devices: Sequence[Device], unit: str) -> tuple[str, ...]:
    """The card of each ID; for memory units on one card, which may be thousands, that card once."""
    uuids = tuple(it.uuid for it in devices)
    return uuids[:1] if unit and len(set(uuids)) == 1 else uuids


__all__ = ["ALLOCATION", "Allocator", "Scene", "MakeRoom", "AllocationStore", "UnusableEdits", "admit"]
