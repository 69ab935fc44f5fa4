"""The allocations in memory. Changed on the event loop alone, each time from the present value."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from itertools import chain

from agent.core.cell import Cell
from agent.core.devices.ids_in_use import ResourceUsage
from agent.core.model import Allocation, AllocationSource, AllocationState, Owner
from agent.vendor_api.agent import Partition

#: What is remarked of an allocation that the kubelet has forgotten.
FORGOTTEN = "its pod is there, but the kubelet has lost its record of it; delete the pod to free its devices"
#: Released allocations that are still shown to people.
KEPT_RELEASED = 64


class Ledger:
    """Records who holds what. The same device IDs may stand in several allocations: init containers share
    them within a pod, and the kubelet gives them out again before anybody tells us that they were free."""

    def __init__(self, allocations: Iterable[Allocation] = (), now: float = math.inf) -> None:
        """`now` corrects allocations that were written while the clock was ahead."""
        self._allocations = {it.id: it if it.since <= now else replace(it, since=now) for it in allocations}
        #: Touched whenever an allocation comes, changes or goes.
        self.changes: Cell[None] = Cell(None)
        self._held: Mapping[str, Mapping[str, str]] | None = None  # until IDs are held or let go
        #: Each until an allocation changes: an Allocate asks for them several times.
        self._usage: ResourceUsage | None = None
        self._in_use: tuple[Allocation, ...] | None = None
        self._external: Mapping[str, Allocation] | None = None
        #: Resource to device ID to the allocations in use that hold it: an Allocate looks for few of many.
        self._holding: dict[str, dict[str, tuple[str, ...]]] = {}
        for it in self._allocations.values():
            self._hold(it)

    def __len__(self) -> int:
        return len(self._allocations)

    def get(self, allocation_id: str) -> Allocation | None:
        return self._allocations.get(allocation_id)

    def all(self) -> tuple[Allocation, ...]:
        """Every allocation, oldest first."""
        return tuple(self._allocations.values())

    def in_use(self) -> tuple[Allocation, ...]:
        if self._in_use is None:
            its = self._allocations.values()
            self._in_use = tuple(it for it in its if it.state is not AllocationState.RELEASED)
        return self._in_use

    def usage(self) -> ResourceUsage:
        """What of the resources is in use now."""
        if self._usage is None:
            self._usage = ResourceUsage(
                held=self.held(),
                diverged=self._diverged(),
                units=self._units(),
                forgotten=self._forgotten(),
                vendors=self._vendors(),
                external=frozenset(self.external()),
            )
        return self._usage

    def held(self) -> Mapping[str, Mapping[str, str]]:
        """Resource to device ID to card, for every ID in use."""
        if self._held is None:
            held: dict[str, dict[str, str]] = {}
            for it in self.in_use():
                if it.source is AllocationSource.ANNOTATION:
                    continue  # the kubelet knows no IDs of it
                cards = it.devices if len(it.devices) == len(it.ids) else it.devices[:1] * len(it.ids)
                held.setdefault(it.resource, {}).update(zip(it.ids, cards, strict=False))
            self._held = held
        return self._held

    def _units(self) -> Mapping[str, Mapping[str, tuple[str, ...]]]:
        """Resource to card to what its IDs in use count memory in, oldest first; empty of those that do not.

        Cards of IDs and cards on which they lie both count.
        """
        found: dict[str, dict[str, dict[str, None]]] = {}
        for it in self.in_use():
            if it.source is not AllocationSource.ANNOTATION:
                cards = found.setdefault(it.resource, {})
                for uuid in {*it.devices, *it.diverged}:
                    cards.setdefault(uuid, {})[it.unit] = None
        return {name: {uuid: (*its,) for uuid, its in cards.items()} for name, cards in found.items()}

    def _diverged(self) -> Mapping[str, Mapping[str, Collection[str]]]:
        """Resource to the cards on which allocations in use lie though their IDs are of others, with those
        of the IDs by which nobody has their own cards.
        """
        found: dict[str, dict[str, set[str]]] = {}
        for it in self.in_use():
            if it.diverged:
                cards, ids = found.setdefault(it.resource, {}), self._away(it)
                for uuid in it.diverged:
                    cards.setdefault(uuid, set()).update(ids)
        return found

    def _away(self, it: Allocation) -> frozenset[str]:
        """Its IDs without those that stand in another allocation, too, which lies on their cards."""
        holding = self._holding[it.resource]
        shared = (one for one in it.ids if len(holding[one]) > 1)
        at_home = (
            one for one in shared if any(not self._allocations[name].diverged for name in holding[one])
        )
        return frozenset(it.ids).difference(at_home)

    def _forgotten(self) -> Mapping[str, frozenset[str]]:
        """Resource to device IDs that the kubelet takes for free and that are not.

        None that it has given out since, as by another plugin: it gives them to nobody while their pod lives,
        which would not come back if they were listed as unhealthy.
        """
        found: dict[str, set[str]] = {}
        for it in self.in_use():
            if it.forgotten:
                its = (one for one in it.ids if not self._is_given_since(it.resource, one))
                found.setdefault(it.resource, set()).update(its)
        return {resource: frozenset(ids) for resource, ids in found.items()}

    def _is_given_since(self, resource: str, device_id: str) -> bool:
        holders = map(self._allocations.__getitem__, self._holding[resource][device_id])
        return any(it.owner is not None and not it.forgotten for it in holders)

    def _vendors(self) -> Mapping[str, str]:
        """Resource to vendor, of those in use."""
        return {
            it.resource: it.vendor for it in self.in_use() if it.source is not AllocationSource.ANNOTATION
        }

    def devices_in_use(self) -> frozenset[str]:
        return frozenset(uuid for it in self.in_use() for uuid in (*it.devices, *it.diverged))

    def external(self) -> Mapping[str, Allocation]:
        """Card to who has it by a scheduler's word alone, which the kubelet knows nothing of."""
        if self._external is None:
            its = (it for it in self.in_use() if it.source is AllocationSource.ANNOTATION)
            self._external = {uuid: it for it in its for uuid in it.devices}
        return self._external

    def owners_on(self, resource: str, devices: frozenset[str]) -> tuple[Owner | None, ...]:
        """Those of the resource's allocations on the devices; None for one that is not known yet."""
        its = (it for it in self.in_use() if it.resource == resource)
        on = (it for it in its if not devices.isdisjoint(it.cards))
        return tuple(dict.fromkeys(it.owner for it in on))

    def owners_in(self, resource: str, unit: str) -> tuple[Owner | None, ...]:
        """Those of the resource's allocations that count memory in this unit; None for one not known yet."""
        its = (it.owner for it in self.in_use() if it.resource == resource and it.unit == unit)
        return tuple(dict.fromkeys(its))

    def holders(self, resource: str, ids: Collection[str]) -> list[Allocation]:
        """The allocations in use that hold one of these IDs."""
        holding = self._holding.get(resource, {})
        names = dict.fromkeys(chain.from_iterable(holding.get(one, ()) for one in ids))
        return [self._allocations[name] for name in names]

    def record(self, allocation: Allocation) -> None:
        """Add an allocation, or replace the one of the same id."""
        before = self._allocations.get(allocation.id)
        self._allocations[allocation.id] = allocation
        self._in_use = self._external = self._usage = None
        if before is None or _holds(before) != _holds(allocation):
            self._let_go(before)
            self._hold(allocation)
        self.changes.touch()

    def forget(self, allocation_id: str) -> None:
        """Drop an allocation that was never answered."""
        self._let_go(self._allocations.pop(allocation_id, None))
        self._in_use = self._external = self._usage = None
        self.changes.touch()

    def _hold(self, it: Allocation) -> None:
        self._held = None
        resource, ids, _ = _holds(it)
        holding = self._holding.setdefault(resource, {})
        shared = [one for one in dict.fromkeys(ids) if one in holding]
        others = {one: (*holding[one], it.id) for one in shared}
        holding.update(dict.fromkeys(ids, (it.id,)))  # of units there are thousands
        holding.update(others)

    def _let_go(self, it: Allocation | None) -> None:
        if it is None:
            return
        self._held = None
        resource, ids, _ = _holds(it)
        for one in set(ids):
            holding = self._holding[resource]
            if left := tuple(name for name in holding.pop(one) if name != it.id):
                holding[one] = left

    def confirm(self, allocation_id: str, owner: Owner, life: str = "") -> None:
        """Attach the owner. Who has one was answered, whatever state a crash left behind."""
        it = self._allocations[allocation_id]
        self.record(replace(it, owner=owner, life=life, state=AllocationState.DONE))

    def made(self, allocation_id: str, partitions: Iterable[Partition], state: AllocationState) -> bool:
        """The hardware of an allocation was made; whether that is news. What was lacking is there again."""
        it = self._allocations.get(allocation_id)
        if it is None or it.state is AllocationState.RELEASED:
            return False  # over meanwhile: who released it removes the hardware, too
        reason = it.reason if it.forgotten else ""
        ids = tuple(one.id for one in partitions)
        after = replace(it, partitions=ids, state=state, reason=reason, rebooted=False)
        self.record(after)
        return after != it

    def rebooted(self) -> None:
        """The node was started anew, which takes what the hardware had made."""
        for it in self.in_use():
            self.record(replace(it, rebooted=True))

    def forgot(self, allocation_id: str, *, forgotten: bool) -> None:
        """Whether the kubelet has lost its record of it."""
        it = self._allocations[allocation_id]
        self.record(replace(it, forgotten=forgotten, reason=FORGOTTEN if forgotten else ""))

    def found(self, allocation_id: str, partitions: tuple[str, ...]) -> None:
        """The hardware has these slices of it, of which nobody knew."""
        self.record(replace(self._allocations[allocation_id], partitions=partitions))

    def revive(self, allocation_id: str) -> None:
        """Take back a release. When it was answered is known no more: as the oldest it proves nothing."""
        it = self._allocations[allocation_id]
        self.record(replace(it, state=AllocationState.DONE, reason=""))
        self._allocations = {allocation_id: self._allocations[allocation_id], **self._allocations}
        holding = self._holding[it.resource]
        for one in it.ids:
            holding[one] = tuple(dict.fromkeys((allocation_id, *holding[one])))
        self._in_use = self._held = self._usage = None

    def remark(self, allocation_id: str, text: str) -> None:
        """Say what a person should know of it; nothing to say ends what the reboot did."""
        it = self._allocations[allocation_id]
        self.record(replace(it, reason=text, rebooted=it.rebooted and bool(text)))

    def release(self, allocation_id: str, reason: str, now: float) -> None:
        it = self._allocations[allocation_id]
        released = replace(
            it, state=AllocationState.RELEASED, since=now, reason=reason, forgotten=False, rebooted=False
        )
        self.forget(allocation_id)
        self.record(released)
        self._trim()

    def _trim(self) -> None:
        released = [it.id for it in self._allocations.values() if it.state is AllocationState.RELEASED]
        for allocation_id in released[:-KEPT_RELEASED]:
            del self._allocations[allocation_id]


def _holds(it: Allocation) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """Resource, the IDs of it that are held, and their cards."""
    return (it.resource, it.ids, it.devices) if it.state is not AllocationState.RELEASED else ("", (), ())
