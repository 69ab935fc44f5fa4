"""Answers the kubelet: validate, record, prepare, edit, save, answer. Write first, then answer."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace

from agent.core.allocation.admission import Scene, admit, refuse_former, refuse_retired, serving
from agent.core.allocation.answer_annotations import ALLOCATION, marks
from agent.core.allocation.container_edit_rules import UnusableEdits, usable
from agent.core.allocation.ledger import Ledger
from agent.core.allocation.reconcile_evidence import CheckpointAnswer
from agent.core.allocation.reconcile_rules import TAKEN_WITHIN
from agent.core.allocation.refused_requests import RefusedRequest, answered, guessed, suspects, unexplained
from agent.core.allocation.scheduler_promises import PlacementChoice, Promises, devices_of, holder, requested
from agent.core.devices.dynamic_modes import elsewhere
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
from agent.core.model import Allocation, AllocationSource, AllocationState, Owner
from agent.daemon.allocation.allocate_evidence import (
    AllocationStore,
    KubeletEvidence,
    MakeRoom,
    Prepare,
    ReleaseSlices,
)
from agent.daemon.allocation.claim_swaps import Swaps
from agent.daemon.allocation.container_starts import ContainerStarts
from agent.daemon.allocation.current_holders import refuse_held, still_there
from agent.daemon.allocation.made_hardware import MadeHardware, room_deadline
from agent.vendor_api.agent import ContainerEdits, Device, Vendor

#: Why a request is refused where others have what it is to get; slices aside.
TAKEN = (PromisedElsewhere, InOtherMode, InsufficientMemory, InsufficientShares)


class Allocator:
    """Turns requests into allocations, one at a time."""

    def __init__(
        self,
        scene: Callable[[], Scene],
        ledger: Ledger,
        store: AllocationStore,
        clock: Callable[[], float],
        prepare: Prepare,
        release: ReleaseSlices,
        witness: KubeletEvidence,
        make_room: MakeRoom | None = None,
    ) -> None:
        """`make_room` lets go of what is over but still lies on the hardware; whether anything was."""
        self._scene = scene
        self._ledger = ledger
        self._store = store
        self._clock = clock
        self._witness = witness
        self._turn = asyncio.Lock()
        self.swaps = Swaps(ledger, lambda: self.promises)
        #: The requests that were refused, as long as a pod that may have sent one seems to wait.
        self._refused: tuple[RefusedRequest, ...] = ()
        self._hardware = MadeHardware(ledger, store, prepare, release, make_room)
        self._starts = ContainerStarts(
            lambda: self.promises, ledger, store, witness, self.swaps, self._hardware
        )

    @property
    def busy(self) -> set[str]:
        """Ids of allocations whose answer or hardware changes now."""
        return self._hardware.busy

    @property
    def started(self) -> frozenset[str]:
        """The allocations whose containers may run."""
        return self._hardware.started

    async def allocate(self, resource: str, containers: Sequence[Sequence[str]]) -> list[ContainerEdits]:
        """One ContainerEdits for each container. All are answered, or none; what was begun is undone.

        Raises:
            AllocationError: The request names what is not there, is not well, or makes no sense.
        """
        async with self._turn:
            try:
                return await self._served(resource, containers)
            except Exception as exc:
                self._suspect(resource, containers, str(exc))
                raise

    async def _served(self, resource: str, containers: Sequence[Sequence[str]]) -> list[ContainerEdits]:
        """Answer; else once more with what the kubelet says of the answers before; where something is in the
        way, each time that something was let go of which is over, until there is room or no more time.

        Who was taken for the pod of an answer before may be who asks now.
        A scheduler gives away the room of a pod that has ended before its slices are gone, and its card, also
        in another way than the pod had it, before the ledger has let go of it.
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
            except (InsufficientRoom, *TAKEN) as exc:  # what was let go of was not in the way of this one
                refusal = exc
        raise refusal

    def _may_be_over(self, resource: str, refusal: AllocationError) -> bool:
        """Whether what is in the way may be over; of slices that is known once they are looked at."""
        if isinstance(refusal, TAKEN):
            return self.promises.is_kept_by_ended(resource)
        return isinstance(refusal, InsufficientRoom)

    async def _follow_kubelet(self) -> bool:
        """Whether claims changed hands by what the kubelet has written down since."""
        granted = await self._witness.granted()
        return granted is not None and bool(self.swaps.exchange(granted))

    def _suspect(self, resource: str, containers: Sequence[Sequence[str]], text: str) -> None:
        promises, life = self.promises, self._witness.life
        pods = promises.scene.candidates
        others = frozenset(pod.uid for pod in pods if text in pod.message)
        its = (RefusedRequest(text, promises.suspects(resource, ids), others, life) for ids in containers)
        self._refused = unexplained((*self._of_this_life(life), *its), pods)

    def _of_this_life(self, life: str) -> Sequence[RefusedRequest]:
        return [it for it in self._refused if it.life == life]

    @property
    def abandoned(self) -> frozenset[str]:
        """The allocations that no container is known to have, and whose pods, as promised, have ended."""
        scene = self._scene()
        unowned = (it for it in self._ledger.in_use() if it.owner is None) if scene.candidates else ()
        return frozenset(it.id for it in unowned if it.claim is not None and it.claim.uid not in scene.alive)

    @property
    def promises(self) -> Promises:
        """What schedulers promised, as of now."""
        scene, in_use = self._scene(), self._ledger.in_use()
        if not self._refused:
            return Promises(scene, in_use)
        requests, pods = self._of_this_life(self._witness.life), scene.candidates
        return Promises(scene, in_use, suspects(requests, pods), guessed(requests, pods))

    async def _answers(self, resource: str, containers: Sequence[Sequence[str]]) -> list[ContainerEdits]:
        if not containers:
            raise InvalidRequest(resource, "it asks for no container")
        await self._learn(resource)
        scene = self._scene()
        chosen = [admit(scene, resource, ids) for ids in containers]
        await refuse_held(self._witness, self._ledger, resource, [one for ids in containers for one in ids])
        scene = self._scene()  # asking took time
        vendor = serving(scene, resource)
        refuse_retired(scene, resource, {it.uuid for devices in chosen for it in devices})
        refuse_former(scene, resource, [one for ids in containers for one in ids])
        begun: list[str] = []
        try:
            answered = [await self._answer(vendor, resource, ids, begun) for ids in containers]
            await self._store.save(durable=False)
            self._hardware.busy.difference_update(begun)
        except BaseException:
            await self._hardware.undo_all(vendor, begun)
            raise
        return answered

    async def _learn(self, resource: str) -> None:
        """Know who has what was answered before, where that decides who asks next and where there is room.

        The kubelet writes down whose an answer is before it asks for the next container.
        """
        planned = self._scene().plan.get(resource)
        if planned is None or planned.rule.placement == "local":
            return
        unowned = [it for it in self._ledger.in_use() if it.resource == resource and it.owner is None]
        if unowned and (any(it.claim for it in unowned) or self.promises.is_chosen_for(resource)):
            life = self._witness.life  # before its checkpoint is read: what that said was this one's
            written = await self._witness.granted()
            granted = [it for it in written or () if self._is_of(it, resource)]
            self.swaps.exchange(granted)
            for grant in granted:
                if (known := self._ledger.get(grant.allocation)) is not None and known.owner is None:
                    self._ledger.confirm(known.id, Owner(grant.uid, grant.container), life)
            if written is not None:
                await self._forget_untaken(unowned, {it.allocation for it in granted}, life)
        await self._hardware.remove_misplaced(self._hardware.misplaced(self.promises, resource))

    async def _forget_untaken(self, unowned: Sequence[Allocation], taken: Collection[str], life: str) -> None:
        """Forget the answers that this kubelet did not take: it would not ask for another container else."""
        vendors, now = self._scene().vendors, self._clock()
        for it in unowned:
            vendor = vendors.get(it.vendor)
            if vendor is None or it.life != life or it.id in taken or it.id in self._hardware.busy:
                continue
            if it.source is AllocationSource.CHECKPOINT or now - it.since >= TAKEN_WITHIN:
                await self._hardware.undo(vendor, it.id)

    def _is_of(self, grant: CheckpointAnswer, resource: str) -> bool:
        it = self._ledger.get(grant.allocation)
        return it is not None and it.resource == resource

    async def _answer(
        self, vendor: Vendor, resource: str, ids: Sequence[str], begun: list[str]
    ) -> ContainerEdits:
        unique = tuple(dict.fromkeys(ids))
        devices, choice = await self._placed(resource, unique)
        unit = counted_in(self._scene().plan[resource].rule.sharing)
        allocation = Allocation(
            id=secrets.token_hex(8),
            resource=resource,
            vendor=vendor.name,
            ids=unique,
            devices=_cards(devices, unit),
            state=AllocationState.INTENT,
            since=self._clock(),
            life=self._witness.life,
            claim=choice.claim,
            diverged=choice.instead,
            unit=unit,
        )
        begun.append(allocation.id)
        self._hardware.busy.add(allocation.id)
        request = requested(allocation)
        if vendor.prepares(resource):
            await self._hardware.make(vendor, allocation, request)
            admit(self._scene(), resource, ids)  # a card may have failed while its slice was made
        cards = devices_of(self._scene(), choice.instead) or devices
        distinct = list({it.uuid: it for it in cards}.values())
        # What stands in the ledger may bear another's claim by now.
        known = self._ledger.get(allocation.id) or allocation
        request = replace(request, partitions=known.partitions)
        edits = usable(vendor.name, vendor.container_edits(distinct, request))
        # The kubelet's time to write the answer down begins now, however long it took to make it.
        self._ledger.record(replace(known, state=AllocationState.DONE, since=self._clock()))
        if choice.claim is not None:
            self._refused = answered(choice.claim.uid, self._refused)
        return replace(edits, annotations={**edits.annotations, **marks(allocation)})

    async def _placed(self, resource: str, ids: Sequence[str]) -> tuple[Sequence[Device], PlacementChoice]:
        """The cards of the IDs, and the choice; all as of one moment, after which nothing is awaited.

        Whoever has ended is known here late, and a scheduler gives the room away at once.
        """
        others = self._others(resource, ids)
        try:
            return self._chosen(resource, ids, others)
        except (PromisedElsewhere, InsufficientMemory, InsufficientShares):
            alive = self._scene().alive
            shown = await still_there(self._witness, others, self._clock(), alive)
            gone = {it.id for it in others} - {it.id for it in shown}
            there = [it for it in self._others(resource, ids) if it.id not in gone]  # asking took time
            if {it.id for it in there} >= {it.id for it in others}:
                raise
        return self._chosen(resource, ids, there)

    def _chosen(
        self, resource: str, ids: Sequence[str], others: Sequence[Allocation]
    ) -> tuple[Sequence[Device], PlacementChoice]:
        promises = self.promises
        devices = admit(promises.scene, resource, ids)
        choice = promises.choice(resource, ids, devices, others)
        _refuse_other_mode(promises, resource, ids, choice.instead or [it.uuid for it in devices])
        return devices, choice

    def _others(self, resource: str, ids: Sequence[str]) -> list[Allocation]:
        """The resource's allocations in use without those whose IDs the kubelet gives anew."""
        again = frozenset(ids)
        its = (it for it in self._ledger.in_use() if it.resource == resource)
        return [it for it in its if again.isdisjoint(it.ids)]

    def preferred(
        self, resource: str, available: Sequence[str], required: Sequence[str], size: int
    ) -> list[str]:
        """The IDs to take, or [] where no choice can be made."""
        promises = self.promises
        planned = promises.scene.plan.get(resource)
        return promises.preferred(planned, available, required, size) if planned else []

    async def pre_start(self, resource: str, ids: Sequence[str]) -> None:
        """Ensure the hardware of a container that starts, also after a reboot or another pod's claim.

        Raises:
            NotAllocated: Nothing of ours holds these IDs.
            LimitsUnread: What the container asks for decides, and is not known yet.
            StartRefused: What its pod asks for cannot be had on its card.
            VendorError: The hardware cannot be made now. The kubelet tries again.
        """
        async with self._turn:
            await self._starts.start(resource, ids)


def _refuse_other_mode(promises: Promises, resource: str, ids: Collection[str], uuids: Sequence[str]) -> None:
    """What was given out since the plan was made counts, too, and what others gave where a pod has ended.

    The kubelet takes the ID of that one for free, which is listed for as long as the pod may be there.

    Raises:
        InOtherMode: One of the cards has gone to another resource.
    """
    planned = promises.scene.plan[resource]
    for card in planned.cards:
        if card.mode and card.uuid in uuids and not any(one in card.held for one in ids):
            raise InOtherMode(resource, card.uuid, card.mode)
    for uuid in dict.fromkeys(uuids):
        if (it := elsewhere(planned, uuid, promises.in_use)) is not None:
            raise InOtherMode(resource, uuid, it.resource, holder(it, it.resource))


def _cards(devices: Sequence[Device], unit: str) -> tuple[str, ...]:
    """The card of each ID; of thousands of units on one card that card alone."""
    uuids = tuple(it.uuid for it in devices)
    return uuids[:1] if unit and len(set(uuids)) == 1 else uuids


__all__ = ["ALLOCATION", "Allocator", "Scene", "MakeRoom", "AllocationStore", "UnusableEdits", "admit"]
