"""Answers the kubelet: validate, record, prepare, edit, save, answer. Write first, then answer."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from agent.core import steering
from agent.core.attribution import (
    Attribution,
    Waiting,
    attribute,
    exchanged,
    places,
    promised,
    starting,
    waiting,
)
from agent.core.claims import Candidate, Cards, Claim, Dialect
from agent.core.edits import UnusableEdits, usable
from agent.core.errors import (
    CordonedDevice,
    GivenTwice,
    InvalidRequest,
    NotAllocated,
    NotPromised,
    PromisedElsewhere,
    RetiredResource,
    StillHeld,
    UnhealthyDevice,
    UnknownDevice,
    UnknownResource,
    VendorError,
)
from agent.core.evidence import Granted
from agent.core.koordinator.dialect import KOORDINATOR
from agent.core.koordinator.hami import HAMI, METAX
from agent.core.ledger import FORGOTTEN, Ledger
from agent.core.marks import ALLOCATION, marks
from agent.core.model import (
    Allocation,
    AllocationState,
    DeviceStatus,
    NodeSnapshot,
    Owner,
    Plan,
    Resource,
    Source,
)
from agent.core.notices import Swap
from agent.core.placement import prefer
from agent.core.plan import Wait
from agent.core.topology import Topology
from agent.core.vendor import ContainerEdits, Device, Partition, Request, Vendor

#: Claims that changed hands and are still shown.
SWAPS = 64
#: The dialects that are heard for every vendor, after its own, where a scheduler may choose the card.
DIALECTS: tuple[Dialect, ...] = (KOORDINATOR, METAX, HAMI)
#: Seconds that a request waits for a claim, over GetPreferredAllocation and Allocate, where it needs one.
CLAIMED_WITHIN = 2.0
#: Seconds after which a pod that was answered shows, if it is there.
SHOWN_AFTER = 60.0
#: Seconds until it is asked again for pods, where nothing is heard.
ASK_AGAIN = 0.25


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything an answer depends on, as one value."""

    plan: Plan
    snapshot: NodeSnapshot
    topology: Topology
    vendors: Mapping[str, Vendor]
    #: Vendor to why nothing of it is given out.
    withheld: Mapping[str, str] | None = None
    #: The pods bound to this node, as far as an API server tells.
    candidates: tuple[Candidate, ...] = ()
    #: Those, by namespace and name, that schedulers' locks of the node name.
    locked: frozenset[tuple[str, str]] = frozenset()
    #: The cards that are to change their resource once they are free.
    waits: tuple[Wait, ...] = ()


class Store(Protocol):
    """Where the ledger outlives the process."""

    async def save(self, *, durable: bool) -> None:
        """Write the ledger; durable means that it survives a power cut."""


Prepare = Callable[[str, Request, Sequence[str]], Awaitable[Sequence[Partition]]]
ReleaseSlices = Callable[[str, str], Awaitable[None]]


class Witness(Protocol):
    """What the kubelet says, asked for where an answer depends on it."""

    @property
    def life(self) -> str:
        """Which life of the kubelet this is."""

    async def granted(self) -> Sequence[Granted] | None:
        """What its checkpoint holds; None where it can not be read."""

    async def shows(self, owners: Collection[Owner]) -> Collection[Owner]:
        """Those of them whose pods it lists now; in doubt it does not."""

    async def shown_with(self, resource: str, ids: Collection[str]) -> Mapping[str, tuple[str, str]]:
        """Those of the IDs with which it lists a pod now: to its namespace and name; in doubt none."""


class Pods(Protocol):
    """The pods bound to this node, asked for where the scene knows of none that may be meant."""

    async def now(self) -> Sequence[Candidate]:
        """Those that the API server lists now; none where it can not say so soon."""

    async def news(self) -> None:
        """Return when the scene may have others."""


class NoPods:
    """Where there is no API server."""

    async def now(self) -> Sequence[Candidate]:
        return ()

    async def news(self) -> None:
        await asyncio.Event().wait()


class Allocator:
    """Turns requests into allocations, one at a time."""

    def __init__(
        self,
        scene: Callable[[], Scene],
        ledger: Ledger,
        store: Store,
        clock: Callable[[], float],
        prepare: Prepare,
        release: ReleaseSlices,
        witness: Witness,
        pods: Pods | None = None,
        *,
        claimed_within: float = CLAIMED_WITHIN,
    ) -> None:
        self._scene = scene
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
        self._swaps: deque[Swap] = deque(maxlen=SWAPS)
        self._pods = pods or NoPods()
        self._claimed_within = claimed_within
        #: What was asked for beyond what the scene knew then: that, and the pods.
        self._late: tuple[tuple[Candidate, ...], tuple[Candidate, ...]] = ((), ())
        #: Until when a request for so many IDs of a resource waits for its claim, on the loop's clock.
        self._patience: dict[tuple[str, int], float] = {}

    @property
    def swaps(self) -> tuple[Swap, ...]:
        """The last claims that changed hands, oldest first."""
        return tuple(self._swaps)

    async def allocate(self, resource: str, containers: Sequence[Sequence[str]]) -> list[ContainerEdits]:
        """One ContainerEdits for each container. All are answered, or none; what was begun is undone.

        Raises:
            AllocationError: The request names what is not there, is not well, or makes no sense.
        """
        async with self._turn:
            if not containers:
                raise InvalidRequest(resource, "it asks for no container")
            scene = self._scene()
            chosen = [admit(scene, resource, ids) for ids in containers]
            for ids in containers:
                await self.expect(resource, len(set(ids)))
                self._patience.pop((resource, len(set(ids))), None)
            if await self._asked_for_holders(resource, [one for ids in containers for one in ids]):
                scene = self._scene()  # a card may have failed meanwhile
                chosen = [admit(scene, resource, ids) for ids in containers]
            _refuse_retired(scene, resource, {it.uuid for devices in chosen for it in devices})
            vendor = _vendor(scene, resource)
            begun: list[str] = []
            try:
                answered = [
                    await self._answer(scene, vendor, resource, ids, devices, begun)
                    for ids, devices in zip(containers, chosen, strict=True)
                ]
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

    async def _asked_for_holders(self, resource: str, ids: Sequence[str]) -> bool:
        """The kubelet may give out what a pod that runs has: it errs in two ways, and says so if asked.

        Whether there was something to ask, which took time.

        Raises:
            StillHeld: It lost its checkpoint, and takes the devices of pods for free.
            GivenTwice: Its devicemanager (1.36.3, manager.go:577) lets go of IDs whose Allocate is under way
                while PodResources is listed and a pod has gone, and gives them to the next pod, too.
        """
        life = self._witness.life
        known = [it for it in self._ledger.holders(resource, ids) if it.owner is not None]
        if not known:
            return False
        holders = {
            device_id: it.owner
            for it in known
            if it.owner is not None and "" not in (it.life, life) and it.life != life
            for device_id in it.ids
            if device_id in ids
        }
        if not holders:
            for device_id, (namespace, pod) in (await self._witness.shown_with(resource, ids)).items():
                raise GivenTwice(resource, device_id, namespace, pod)
        shown = await self._witness.shows(set(holders.values())) if holders else ()
        for device_id, owner in holders.items():
            if owner in shown:
                raise StillHeld(resource, device_id, owner.namespace or "pod", owner.pod or owner.uid)
        return True

    async def _answer(
        self,
        scene: Scene,
        vendor: Vendor,
        resource: str,
        ids: Sequence[str],
        devices: Sequence[Device],
        begun: list[str],
    ) -> ContainerEdits:
        unique = tuple(dict.fromkeys(ids))
        claim, instead = await self._placed(scene, vendor, resource, unique, devices)
        allocation = Allocation(
            id=secrets.token_hex(8),
            resource=resource,
            vendor=vendor.name,
            ids=unique,
            devices=tuple(it.uuid for it in devices),
            state=AllocationState.INTENT,
            since=self._clock(),
            life=self._witness.life,
            claim=claim,
            diverged=tuple(it.uuid for it in instead),
        )
        begun.append(allocation.id)
        self.busy.add(allocation.id)
        request = requested(allocation)
        if vendor.prepares:
            await self._make(vendor, allocation, request)
            admit(self._scene(), resource, ids)  # a card may have failed while its slice was made
        distinct = list({it.uuid: it for it in instead or devices}.values())
        edits = usable(vendor.name, vendor.container_edits(distinct, request))
        # What stands in the ledger may bear another's claim by now.
        known = self._ledger.get(allocation.id) or allocation
        self._ledger.record(replace(known, state=AllocationState.DONE))
        return replace(edits, annotations={**edits.annotations, **marks(allocation)})

    async def _placed(
        self, scene: Scene, vendor: Vendor, resource: str, ids: Sequence[str], devices: Sequence[Device]
    ) -> tuple[Claim | None, Sequence[Device]]:
        """As `_chosen`; whoever has ended is known here late, and a scheduler gives the room away at once."""
        try:
            return self._chosen(scene, vendor, resource, ids, devices, self._others(resource, ids))
        except PromisedElsewhere:
            others = self._others(resource, ids)
            there = await self._still_there(others)
            if len(there) == len(others):
                raise
        admit(self._scene(), resource, ids)  # asking took time
        return self._chosen(scene, vendor, resource, ids, devices, there)

    def _others(self, resource: str, ids: Sequence[str]) -> list[Allocation]:
        """The resource's allocations in use without those whose IDs the kubelet gives anew."""
        again = frozenset(ids)
        its = (it for it in self._ledger.in_use() if it.resource == resource)
        return [it for it in its if again.isdisjoint(it.ids)]

    async def _still_there(self, its: Sequence[Allocation]) -> list[Allocation]:
        """Those whose pods the kubelet shows, and those that are so young that they may not show yet."""
        old = {it.owner for it in its if it.owner is not None and self._clock() - it.since >= SHOWN_AFTER}
        shown = await self._witness.shows(old) if old else ()
        return [it for it in its if it.owner not in old or it.owner in shown]

    def _chosen(
        self,
        scene: Scene,
        vendor: Vendor,
        resource: str,
        ids: Sequence[str],
        devices: Sequence[Device],
        others: Sequence[Allocation],
    ) -> tuple[Claim | None, Sequence[Device]]:
        """The claim of a request, and the cards that it gets instead of those of its IDs.

        Raises:
            PromisedElsewhere: A scheduler chose another card, which can not be had by these IDs.
            NotPromised: A scheduler was to choose, and did not.
        """
        planned = scene.plan[resource]
        found = self._attributed(scene, vendor, resource, ids, devices)
        placement, given = planned.rule.placement, sorted({it.uuid for it in devices})
        room = placement == "local" or steering.is_as_counted(planned, ids, others)
        if found.claim is not None and found.claim.devices and not room:
            names = f"{found.claim.namespace}/{found.claim.pod}"
            doubt = f"{names} is promised that one, which shares with IDs of other cards have filled"
            raise PromisedElsewhere(resource, given, doubt)
        if found.claim is not None or placement == "local":
            return found.claim, ()
        if found.elsewhere and (placement == "claim" or not found.unclaimed):
            if not all(map(planned.shares, ids)):
                raise PromisedElsewhere(resource, given, found.doubt)
            for claim in found.elsewhere:
                if steering.has_room(planned, claim.devices, len(ids), others):
                    return claim, _devices(scene, claim.devices)
            raise PromisedElsewhere(resource, given, f"{found.doubt}, which have no room")
        if placement == "claim":
            raise NotPromised(resource, found.doubt)
        return None, () if room else _devices(scene, steering.roomier(planned, len(ids), others))

    def _attributed(
        self, scene: Scene, vendor: Vendor, resource: str, ids: Sequence[str], devices: Sequence[Device]
    ) -> Attribution:
        if not (self._candidates(scene) and _dialects(vendor, scene.plan[resource])):
            return Attribution(doubt="no pod of this node is known")
        its = self._waiting(scene, vendor, resource)
        return attribute(resource, len(ids), {it.uuid for it in devices}, its)

    def _waiting(self, scene: Scene, vendor: Vendor, resource: str) -> Waiting:
        in_use = self._ledger.in_use()
        planned = scene.plan[resource]
        holders = {} if planned.rule.sharing.kind != "exclusive" else steering.holders(in_use, resource)
        return Waiting(
            self._candidates(scene),
            _dialects(vendor, planned),
            _by_minor(scene, vendor),
            places(in_use, resource),
            holders,
            scene.locked,
        )

    def _candidates(self, scene: Scene) -> tuple[Candidate, ...]:
        """The pods, those that were asked for last with them, until the scene has others."""
        known, late = self._late
        return late if late and known is scene.candidates else scene.candidates

    async def expect(self, resource: str, count: int) -> None:
        """Hear of the pods that may ask for so many IDs now, where the resource's cards are chosen for it."""
        scene = self._scene()
        planned = scene.plan.get(resource)
        placement = planned.rule.placement if planned else "local"
        if placement == "auto" and not self._asks(resource, count):
            await self._ask()
        if placement != "claim":
            return
        now = asyncio.get_running_loop().time
        until = self._patience.setdefault((resource, count), now() + self._claimed_within)
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                while not self._is_promised(resource, count):
                    news = asyncio.ensure_future(self._pods.news())
                    try:
                        await self._ask()
                        if not self._is_promised(resource, count):
                            await asyncio.wait((news,), timeout=ASK_AGAIN)
                    finally:
                        news.cancel()

    def _asks(self, resource: str, count: int) -> bool:
        """Whether a pod is known that waits for as many."""
        taken = places(self._ledger.in_use(), resource)
        return bool(waiting(resource, count, self._candidates(self._scene()), taken))

    def _is_promised(self, resource: str, count: int) -> bool:
        """Whether a pod is known that was promised as many."""
        scene = self._scene()
        vendor = _vendor(scene, resource)
        found = attribute(resource, count, (), self._waiting(scene, vendor, resource))
        return found.claim is not None or bool(found.elsewhere)

    async def _ask(self) -> None:
        known = self._scene().candidates
        if late := await self._pods.now():
            its = {it.uid: it for it in (*known, *late)}
            self._late = (known, tuple(its.values()))

    async def _make(self, vendor: Vendor, allocation: Allocation, request: Request) -> None:
        """Intent on disk, then hardware, then done on disk; after a crash the partitions decide."""
        self._ledger.record(allocation)
        await self._store.save(durable=True)
        partitions = await self._prepare(vendor.name, request, allocation.cards)
        self._ledger.made(allocation.id, partitions, AllocationState.PREPARED)
        await self._store.save(durable=True)

    async def _undo_all(self, vendor: Vendor, begun: Sequence[str]) -> None:
        written = vendor.prepares and any(self._ledger.get(it) is not None for it in begun)
        for allocation in begun:
            await self._undo(vendor, allocation)
        if written:
            with suppress(OSError):  # what was refused first is told, and the disk is tried again soon
                await self._store.save(durable=False)

    async def _undo(self, vendor: Vendor, allocation: str) -> None:
        """Forget the allocation; one whose hardware can not be removed now is left to reconcile."""
        if vendor.prepares and self._ledger.get(allocation) is not None:
            try:
                await self._release(vendor.name, allocation)
            except VendorError:
                self.busy.discard(allocation)
                return
        self._ledger.forget(allocation)
        self.busy.discard(allocation)

    def preferred(
        self, resource: str, available: Sequence[str], required: Sequence[str], size: int
    ) -> list[str]:
        """The IDs to take, or [] where no choice can be made."""
        scene = self._scene()
        planned = scene.plan.get(resource)
        if planned is None:
            return []
        vendor = scene.vendors.get(planned.vendor)
        if vendor is not None and planned.rule.placement != "local":
            its = self._waiting(scene, vendor, resource)
            return steering.steered(planned, available, required, size, scene.topology, its)
        return prefer(planned, available, required, size, scene.topology)

    async def pre_start(self, resource: str, ids: Sequence[str]) -> None:
        """Ensure the hardware of a container that starts, also after a reboot or another pod's claim.

        Raises:
            NotAllocated: Nothing of ours holds these IDs.
            VendorError: The hardware can not be made now. The kubelet tries again.
        """
        async with self._turn:
            vendor = _vendor(self._scene(), resource)
            if not vendor.prepares:
                return
            granted = await self._witness.granted()
            exchanged = granted is not None and self.exchange(granted)
            its = [it.id for it in starting(self._ledger.in_use(), granted, resource, ids)]
            if not its or not self.busy.isdisjoint(its):  # busy: being released now
                raise NotAllocated(resource, ids)
            self.busy.update(its)
            try:
                news = [await self._ensure(vendor, it) for it in its]
            finally:
                self.busy.difference_update(its)
            if exchanged or any(news):
                await self._store.save(durable=True)

    async def _ensure(self, vendor: Vendor, allocation: str) -> bool:
        """Have its hardware made as it is claimed now; whether that is news."""
        it = self._ledger.get(allocation)
        if it is None:
            return False
        made = await self._prepare(vendor.name, requested(it), it.cards)
        return self._ledger.made(allocation, made, AllocationState.DONE)

    def exchange(self, granted: Sequence[Granted]) -> Sequence[str]:
        """Let claims follow what the kubelet did; the allocations whose claim is another one now."""
        scene = self._scene()
        pods = {it.uid: it for it in scene.candidates}
        changed = exchanged(self._ledger.in_use(), granted, partial(_promised, scene, pods))
        for name, claim in changed.items():
            it = self._ledger.get(name)
            assert it is not None
            self._ledger.record(replace(it, claim=claim, handed=_handed(scene, it, claim)))
            if it.claim is not None:  # else its pod was heard of late, which is nobody's loss
                number = self._swaps[-1].number + 1 if self._swaps else 1
                self._swaps.append(Swap(number, it.id, it.resource, it.claim, claim))
        return tuple(changed)

    def recognise(self) -> Sequence[str]:
        """Give back their claims to those whom PodResources alone shows; the allocations that have one now.

        The IDs that it shows do not say on which card a share lies, and our answers can not be read.
        """
        scene = self._scene()
        pods = {(it.namespace, it.name): it for it in scene.candidates}
        found = []
        for it in self._ledger.in_use():
            pod = pods.get((it.owner.namespace, it.owner.pod)) if it.owner else None
            if it.source is not Source.POD_RESOURCES or it.claim is not None or pod is None:
                continue
            if (claim := self._promise_of_shown(scene, it, pod)) is not None:
                elsewhere = set(claim.devices) - set(it.cards)
                self._ledger.record(replace(it, claim=claim, diverged=claim.devices if elsewhere else ()))
                found.append(it.id)
        return tuple(found)

    def _promise_of_shown(self, scene: Scene, it: Allocation, pod: Candidate) -> Claim | None:
        """What its pod says that it was promised, if that can be so."""
        vendor, planned = scene.vendors.get(it.vendor), scene.plan.get(it.resource)
        if vendor is None or planned is None or it.owner is None:
            return None
        dialects = _dialects(vendor, planned)
        claim = promised(it.resource, pod, it.owner.container, dialects, _by_minor(scene, vendor))
        if claim is None or not claim.devices or set(claim.devices) == set(it.cards):
            return claim
        others = [one for one in self._ledger.in_use() if one.id != it.id]
        shares = planned.rule.placement != "local" and all(map(planned.shares, it.ids))
        fits = shares and steering.has_room(planned, claim.devices, len(it.ids), others, sick=True)
        return claim if fits else None


def _vendor(scene: Scene, resource: str) -> Vendor:
    """Who serves the resource.

    Raises:
        UnknownResource: Nobody; a vendor that is left out serves nothing, though its resource may be listed.
    """
    planned = scene.plan.get(resource)
    vendor = scene.vendors.get(planned.vendor) if planned else None
    if vendor is None:
        raise UnknownResource(resource)
    return vendor


def _promised(scene: Scene, pods: Mapping[str, Candidate], it: Allocation, grant: Granted) -> Claim | None:
    vendor, pod, planned = scene.vendors.get(it.vendor), pods.get(grant.uid), scene.plan.get(it.resource)
    if vendor is None or pod is None or planned is None or not (dialects := _dialects(vendor, planned)):
        return None
    claim = promised(it.resource, pod, grant.container, dialects, _by_minor(scene, vendor))
    fits = claim is not None and (not claim.devices or set(claim.devices) == set(it.cards))
    return claim if fits else None


def _dialects(vendor: Vendor, resource: Resource) -> Sequence[Dialect]:
    return vendor.dialects if resource.rule.placement == "local" else (*vendor.dialects, *DIALECTS)


def _by_minor(scene: Scene, vendor: Vendor) -> Cards:
    """The vendor's cards as schedulers count them; a slice has no number of its own."""
    cards = sorted(scene.snapshot.present(vendor.name), key=lambda it: (it.minor is None, it.minor or 0))
    return {it.uuid: it.minor if it.parent is None else None for it in cards}


def requested(it: Allocation) -> Request:
    """The allocation as its vendor sees it; while no claim is known, with what it was answered with."""
    parameters = (it.handed or {}) if it.claim is None else it.claim.parameters
    return Request(it.id, it.resource, it.ids, parameters)


def _handed(scene: Scene, it: Allocation, claim: Claim | None) -> Mapping[str, str] | None:
    """What it was answered with, where this claim would have had another answer."""
    was = (it.claim.parameters if it.claim else {}) if it.handed is None else it.handed
    now = claim.parameters if claim else {}
    return was if was != now and _answers(scene, it, was) != _answers(scene, it, now) else None


def _devices(scene: Scene, uuids: Sequence[str]) -> list[Device]:
    return [it.device for it in map(scene.snapshot.device, uuids) if it is not None]


def _answers(
    scene: Scene, it: Allocation, parameters: Mapping[str, str]
) -> ContainerEdits | Mapping[str, str]:
    """What a container gets with these parameters; those themselves where its vendor can not say."""
    vendor = scene.vendors.get(it.vendor)
    if vendor is None:
        return parameters
    try:
        return vendor.container_edits(
            _devices(scene, it.cards), replace(requested(it), parameters=parameters)
        )
    except Exception:  # contributors' code; what it says here is nobody's answer
        return parameters


def admit(scene: Scene, resource: str, ids: Sequence[str]) -> list[Device]:
    """The card of each ID, in the order of the request.

    Raises:
        AllocationError: Naming the first ID that is unknown, unhealthy or cordoned.
    """
    statuses = {status.uuid: status for status in scene.snapshot.devices}
    planned = scene.plan.get(resource)
    if planned is None:
        raise UnknownResource(resource)
    if not ids:
        raise InvalidRequest(resource, "it names no device")
    unique = list(dict.fromkeys(ids))
    withheld = (scene.withheld or {}).get(planned.vendor, "")
    devices = [_well(planned, device_id, statuses, withheld).device for device_id in unique]
    strict = planned.rule.sharing.fail_requests_greater_than_one
    if strict and len(unique) > 1 and any(planned.shares(device_id) for device_id in unique):
        raise InvalidRequest(resource, f"maximum request size for shared resources is 1; found {len(unique)}")
    return devices


def _refuse_retired(scene: Scene, resource: str, uuids: Collection[str]) -> None:
    """Its IDs are listed for those who hold them; the kubelet takes them for free before we see a pod gone.

    Raises:
        RetiredResource: It would never end while a controller makes a pod anew for each that ends.
    """
    if scene.plan[resource].retired:
        waiting = (it for it in scene.waits if it.holder == resource and not it.held.isdisjoint(uuids))
        raise RetiredResource(resource, tuple(dict.fromkeys(it.resource for it in waiting)))


def _well(
    resource: Resource, device_id: str, statuses: Mapping[str, DeviceStatus], withheld: str
) -> DeviceStatus:
    card = resource.card_of(device_id)
    status = statuses.get(card.uuid) if card else None
    if card is None or status is None:
        raise UnknownDevice(resource.name, device_id)
    if not card.healthy:
        health = status.health
        sick = f"{health.reason} {health.message}".strip()
        if status.told_healthy and (cordon := status.cordon) is not None:
            raise CordonedDevice(resource.name, device_id, cordon.author, cordon.reason)
        if not status.told_healthy or withheld:
            raise UnhealthyDevice(resource.name, device_id, withheld if status.told_healthy else sick)
        if device_id not in card.held:
            raise UnhealthyDevice(resource.name, device_id, FORGOTTEN)
    return status


__all__ = ["ALLOCATION", "Allocator", "Scene", "Store", "UnusableEdits", "admit"]
