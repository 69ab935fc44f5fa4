"""Answers the kubelet: validate, record, prepare, edit, save, answer. Write first, then answer."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from agent.core.allocation.admission import Scene, admit, refuse_former, refuse_retired, serving
from agent.core.allocation.answer_annotations import ALLOCATION, marks
from agent.core.allocation.cards_of_answers import of_others
from agent.core.allocation.container_edit_rules import UnusableEdits, usable
from agent.core.allocation.ledger import Ledger
from agent.core.allocation.pod_attribution import starting
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
    LimitsUnread,
    NotAllocated,
    NotServable,
    PromisedElsewhere,
    StartRefused,
    VendorError,
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
from agent.daemon.allocation.current_holders import refuse_held, still_there
from agent.vendor_api.agent import ContainerEdits, Device, Request, Vendor

#: Seconds that are spent on making room; an Allocate has 10 in all, and has asked the kubelet before.
ROOM_WITHIN = 4.5
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
        self._make_room = make_room
        self._ledger = ledger
        self._store = store
        self._clock = clock
        self._prepare = prepare
        self._release = release
        self._witness = witness
        self._turn = asyncio.Lock()
        self._undoing: set[asyncio.Task[None]] = set()
        #: Allocations that are being answered now, which are nobody else's business.
        self.busy: set[str] = set()
        self.swaps = Swaps(ledger, lambda: self.promises)
        #: The requests that were refused, as long as a pod that may have sent one seems to wait.
        self._refused: tuple[RefusedRequest, ...] = ()
        #: Allocations whose containers may run, for they were let start; and those that were not, to the
        #: parameters that their hardware was made with.
        self._started: frozenset[str] = frozenset()
        self._made_as: Mapping[str, Mapping[str, str]] = {}

    @property
    def started(self) -> frozenset[str]:
        """The allocations whose containers may run."""
        return self._started

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
        until = _now() + ROOM_WITHIN
        while self._may_be_over(resource, refusal) and await self._made_room(until):
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

    async def _made_room(self, until: float) -> bool:
        """Whether something that is over was let go of, in time for the pod to be told why it is refused."""
        if self._make_room is None or _now() >= until:
            return False
        try:
            async with asyncio.timeout_at(until):
                return await self._make_room()
        except TimeoutError:
            return True  # what it had let go of by then may be enough

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
            self.busy.difference_update(begun)
        except BaseException:
            undoing = asyncio.create_task(self._undo_all(vendor, begun))
            self._undoing.add(undoing)
            undoing.add_done_callback(self._undoing.discard)
            # Shielded: a caller that is cancelled, even again and again, leaves no hardware behind.
            await asyncio.shield(undoing)
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
        await self._bring_home(resource)

    async def _forget_untaken(self, unowned: Sequence[Allocation], taken: Collection[str], life: str) -> None:
        """Forget the answers that this kubelet did not take: it would not ask for another container else."""
        vendors, now = self._scene().vendors, self._clock()
        for it in unowned:
            vendor = vendors.get(it.vendor)
            if vendor is None or it.life != life or it.id in taken or it.id in self.busy:
                continue
            if it.source is AllocationSource.CHECKPOINT or now - it.since >= TAKEN_WITHIN:
                await self._undo(vendor, it.id)

    def _is_of(self, grant: CheckpointAnswer, resource: str) -> bool:
        it = self._ledger.get(grant.allocation)
        return it is not None and it.resource == resource

    async def _bring_home(self, resource: str, granted: Collection[str] = ()) -> bool:
        """Take away hardware that nothing uses yet and that is not as its pod's claim says; whether any was.

        It is made on the chosen card when its container starts; till then it would be in the way of others.
        The answers stay true: they name it by its allocation.
        `granted`: allocations whose pods the kubelet names, beside those that have an owner.
        """
        promises = self.promises
        owned = {it.id for it in self._ledger.in_use() if it.owner is not None and it.owner.uid}
        idle = owned.union(granted) - self._started - self.busy
        astray = {it.id: cards for it, cards in promises.astray(resource, idle)}
        others = (it for it in self._ledger.in_use() if it.id in idle and it.resource == resource)
        resized = {it.id: it.cards for it in others if self._is_resized(promises, it)}
        took = False
        for name, cards in {**resized, **astray}.items():
            it = self._ledger.get(name)
            if it is not None and await self._took_away(it):
                diverged = tuple(cards) if {*cards} != {*it.devices} else ()
                self._ledger.record(replace(self._ledger.get(name) or it, partitions=(), diverged=diverged))
                took = True
        return took

    def _is_resized(self, promises: Promises, it: Allocation) -> bool:
        """Whether it was made as another claim said."""
        now = requested(it).parameters
        made = self._made_as.get(it.id, now)
        return bool(it.partitions) and made != now and promises.may_move(it, it.cards)

    async def _took_away(self, it: Allocation) -> bool:
        self.busy.add(it.id)
        try:
            await self._release(it.vendor, it.id)
        except VendorError:
            return False
        finally:
            self.busy.discard(it.id)
        return (known := self._ledger.get(it.id)) is not None and known.state is AllocationState.DONE

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
        self.busy.add(allocation.id)
        request = requested(allocation)
        if vendor.prepares(resource):
            await self._make(vendor, allocation, request)
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

    async def _make(self, vendor: Vendor, allocation: Allocation, request: Request) -> None:
        """Intent on disk, then hardware, then done on disk; after a crash the partitions decide."""
        self._ledger.record(allocation)
        await self._store.save(durable=True)
        partitions = await self._prepare(vendor.name, request, allocation.cards)
        self._made_as = {**self._made_as, allocation.id: request.parameters}
        self._ledger.made(allocation.id, partitions, AllocationState.PREPARED)
        await self._store.save(durable=True)

    async def _undo_all(self, vendor: Vendor, begun: Sequence[str]) -> None:
        written = any(self._is_made(vendor, it) for it in begun)
        for allocation in begun:
            await self._undo(vendor, allocation)
        if written:
            with suppress(OSError):  # what was refused first is told, and the disk is tried again soon
                await self._store.save(durable=False)

    async def _undo(self, vendor: Vendor, allocation: str) -> None:
        """Forget the allocation; one whose hardware cannot be removed now is left to reconcile."""
        if self._is_made(vendor, allocation):
            try:
                await self._release(vendor.name, allocation)
            except VendorError:
                self.busy.discard(allocation)
                return
        self._ledger.forget(allocation)
        self.busy.discard(allocation)

    def _is_made(self, vendor: Vendor, allocation: str) -> bool:
        """Whether hardware was begun for it, or is about to be."""
        it = self._ledger.get(allocation)
        return it is not None and vendor.prepares(it.resource)

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
            vendor = serving(self._scene(), resource)
            if not vendor.prepares(resource):
                return
            granted = await self._witness.granted()
            followed = granted is not None and bool(self.swaps.exchange(granted))
            followed |= await self._bring_home(resource, {it.allocation for it in granted or ()})
            its = [it.id for it in starting(self._ledger.in_use(), granted, resource, ids)]
            if not its or not self.busy.isdisjoint(its):  # busy: being released now
                raise NotAllocated(resource, ids)
            self._refuse_unread(its, granted or ())
            self.busy.update(its)
            try:
                news = [await self._start(vendor, it) for it in its]
            finally:
                self.busy.difference_update(its)
            known = {it.id for it in self._ledger.in_use()}
            self._started = self._started.intersection(known).union(its)
            self._made_as = {name: it for name, it in self._made_as.items() if name in known - self._started}
            if followed or any(news):
                await self._store.save(durable=True)

    def _refuse_unread(self, allocations: Sequence[str], granted: Sequence[CheckpointAnswer]) -> None:
        promises = self.promises
        for grant in granted:
            it = self._ledger.get(grant.allocation) if grant.allocation in allocations else None
            if it is not None and promises.is_unread(it, grant):
                raise LimitsUnread(it.resource, grant.uid, grant.container)

    async def _start(self, vendor: Vendor, allocation: str) -> bool:
        """As `_ensure`; where slices are in the way, once more with those beside as they are claimed now, and
        without those that are over.
        """
        try:
            with suppress(InsufficientRoom):
                return await self._ensure(vendor, allocation)
            await self._ensure_beside(vendor, allocation)
            await self._made_room(_now() + ROOM_WITHIN)
            return await self._ensure(vendor, allocation)
        except InsufficientRoom as exc:
            it = self._ledger.get(allocation)
            if it is None or it.claim is None:
                raise
            claim = it.claim
            raise StartRefused(
                it.resource, claim.uid, claim.namespace, claim.pod, claim.container, exc.why
            ) from exc

    async def _ensure_beside(self, vendor: Vendor, allocation: str) -> None:
        """Have that of pods which have not started made as it is claimed now, on the cards of this one.

        Claims that changed hands may leave one pod's slice too large until its own container starts.
        """
        own, waiting = self._ledger.get(allocation), {it.uid for it in self._scene().candidates if it.waits}
        for it in self._ledger.in_use() if own is not None else ():
            beside = it.vendor == vendor.name and not {*it.cards}.isdisjoint(own.cards if own else ())
            if beside and it.claim is not None and it.claim.uid in waiting and it.id not in self.busy:
                self.busy.add(it.id)
                try:
                    with suppress(AllocationError):  # its own start says so
                        await self._ensure(vendor, it.id)
                finally:
                    self.busy.discard(it.id)

    async def _ensure(self, vendor: Vendor, allocation: str) -> bool:
        """Have its hardware made as it is claimed now; whether that is news."""
        it = self._ledger.get(allocation)
        if it is None or of_others(it):
            return False  # its answer names other hardware than we would make
        request = requested(it)
        made = await self._prepare(vendor.name, request, it.cards)
        self._made_as = {**self._made_as, allocation: request.parameters}
        return self._ledger.made(allocation, made, AllocationState.DONE)


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


def _now() -> float:
    """What deadlines are counted in."""
    return asyncio.get_running_loop().time()


def _cards(devices: Sequence[Device], unit: str) -> tuple[str, ...]:
    """The card of each ID; of thousands of units on one card that card alone."""
    uuids = tuple(it.uuid for it in devices)
    return uuids[:1] if unit and len(set(uuids)) == 1 else uuids


__all__ = ["ALLOCATION", "Allocator", "Scene", "MakeRoom", "AllocationStore", "UnusableEdits", "admit"]
