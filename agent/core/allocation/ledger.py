"""The allocations in memory. Only the event loop changes them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from agent.core.allocation.allocations_in_use import AllocationsInUse
from agent.core.allocation.ledger_change import LedgerChange
from agent.core.cell import Cell
from agent.core.devices.held_ids import HeldIds
from agent.core.devices.ids_in_use import NONE, ResourceUsage
from agent.core.model import Allocation, AllocationState, Owner
from agent.vendor_api.agent import Partition

#: What is remarked of an allocation that the kubelet has forgotten.
FORGOTTEN = "its pod is there, but the kubelet has lost its record of it; delete the pod to free its devices"
#: Released allocations that are still shown to people.
KEPT_RELEASED = 64


class Ledger:
    """All allocations, with the device IDs and cards that they hold.

    Several allocations may have the same device IDs. The containers of a pod share the IDs of an init
    container, and the kubelet gives IDs out again before the agent hears that they were free.
    """

    def __init__(self, allocations: Iterable[Allocation] = (), now: float = math.inf) -> None:
        """`now` corrects times of allocations that were written while the clock was wrong."""
        self._allocations = {it.id: it if it.since <= now else replace(it, since=now) for it in allocations}
        #: The ages of the allocations; see `AllocationsInUse`.
        self._ages = {name: age for age, name in enumerate(self._allocations)}
        self._next_age = len(self._ages)
        self._in_use = AllocationsInUse.of(
            (self._ages[name], allocation)
            for name, allocation in self._allocations.items()
            if allocation.state is not AllocationState.RELEASED
        )
        #: Touched whenever an allocation is added, changed or removed.
        self.changes: Cell[None] = Cell(None)
        #: Id to the allocation before its first change since `take_changes`, and whether it was dropped.
        self._changed: dict[str, tuple[Allocation | None, bool]] = {}
        #: What `_held_ids` returned last, and resource to the IDs that were held or let go since.
        self._held: Mapping[str, Mapping[str, HeldIds]] = {}
        self._changed_ids: dict[str, list[Sequence[str]]] = {}
        #: What `_units` returned last, and resource and card to the units that came or went since.
        self._units_by_card: Mapping[str, Mapping[str, tuple[str, ...]]] = {}
        self._changed_units: dict[tuple[str, str], set[str]] = {}
        #: Kept until an allocation changes, since an Allocate asks for them several times.
        self._usage: ResourceUsage | None = None
        self._external: Mapping[str, Allocation] | None = None
        self._forgotten: Mapping[str, Mapping[str, Allocation]] | None = None
        #: Resource to device ID to the ids of the allocations in use that hold it.
        self._holders: dict[str, dict[str, tuple[str, ...]]] = {}
        for allocation in self._allocations.values():
            self._add_holder(allocation)
        for allocation in self._in_use:
            self._note_units(allocation)

    def __len__(self) -> int:
        return len(self._allocations)

    def get(self, allocation_id: str) -> Allocation | None:
        """The allocation of this id."""
        return self._allocations.get(allocation_id)

    def all(self) -> tuple[Allocation, ...]:
        """Every allocation, oldest first."""
        return tuple(self._allocations.values())

    def in_use(self) -> AllocationsInUse:
        """The allocations that are not released, as they are now."""
        return self._in_use

    def usage(self) -> ResourceUsage:
        """What is in use of all resources now."""
        if self._usage is None:
            self._usage = ResourceUsage(
                held=self._held_ids(),
                diverged=self._diverged(),
                units=self._units(),
                forgotten={name: frozenset(holders) for name, holders in self.forgotten().items()},
                vendors=self._vendors(),
                external=frozenset(self.external()),
            )
        return self._usage

    @property
    def unread_ids(self) -> int:
        """How many device IDs were held or let go since `usage` was last asked, which will read them all."""
        return sum(map(len, chain.from_iterable(self._changed_ids.values())))

    def _held_ids(self) -> Mapping[str, Mapping[str, HeldIds]]:
        """Resource to the cards that its IDs in use name, with these IDs."""
        if self._changed_ids:
            changed = {
                name: self._held_now(name, dict.fromkeys(chain.from_iterable(ids)))
                for name, ids in self._changed_ids.items()
            }
            self._held = {name: cards for name, cards in {**self._held, **changed}.items() if cards}
            self._changed_ids = {}
        return self._held

    def _held_now(self, resource: str, changed: Collection[str]) -> Mapping[str, HeldIds]:
        """The resource's IDs in use by card. `changed`: the IDs that were held, let go or moved."""
        before, holding = self._held.get(resource, {}), self._holders.get(resource, {})
        ids_by_holders: dict[tuple[str, ...], list[str]] = {}
        for device_id in changed:
            if names := holding.get(device_id):
                ids_by_holders.setdefault(names, []).append(device_id)
        new: dict[str, dict[str, bool]] = {}
        for names, ids in ids_by_holders.items():
            newest = max(names, key=self._ages.__getitem__)
            for uuid, on_card in _ids_by_card(self._allocations[newest], ids).items():
                new.setdefault(uuid, {}).update(dict.fromkeys(on_card, self._is_away(names)))
        after = {
            uuid: before.get(uuid, NONE).changed(changed, new.get(uuid, {})) for uuid in {**before, **new}
        }
        return {uuid: held for uuid, held in after.items() if held.ids}

    def _is_away(self, names: Iterable[str]) -> bool:
        """Whether none of the allocations with an ID lies on the card that the ID names."""
        return all(self._allocations[name].diverged for name in names)

    def _units(self) -> Mapping[str, Mapping[str, tuple[str, ...]]]:
        """Resource to card to the memory units of its IDs in use, oldest first; "" for IDs without a unit.

        Both the cards that IDs name and the cards where allocations lie are listed.
        """
        for (resource, uuid), changed in self._changed_units.items():
            cards = {**self._units_by_card.get(resource, {})}
            units = {*cards.pop(uuid, ()), *changed}
            if left := self._in_use.units_of_card(resource, uuid, units):
                cards[uuid] = left
            self._units_by_card = {**self._units_by_card, resource: cards}
        self._changed_units = {}
        return {name: cards for name, cards in self._units_by_card.items() if cards}

    def _diverged(self) -> Mapping[str, frozenset[str]]:
        """Resource to the cards of its diverged allocations."""
        cards = {
            name: frozenset(chain.from_iterable(it.diverged for it in self._in_use.diverged(name)))
            for name in self._in_use.counts
        }
        return {name: uuids for name, uuids in cards.items() if uuids}

    def forgotten(self) -> Mapping[str, Mapping[str, Allocation]]:
        """Resource to device ID to the forgotten allocation that has the ID: the kubelet takes it for free.

        IDs that the kubelet has given out since are left out. The kubelet gives them to no other pod while
        their pod lives, and their pod could not start again if they were listed as unhealthy.
        """
        if self._forgotten is None:
            holders: dict[str, dict[str, Allocation]] = {}
            for allocation in chain.from_iterable(map(self._in_use.forgotten, self._in_use.counts)):
                resource = allocation.resource
                ids = (
                    device_id for device_id in allocation.ids if not self._is_given_since(resource, device_id)
                )
                holders.setdefault(resource, {}).update(dict.fromkeys(ids, allocation))
            self._forgotten = holders
        return self._forgotten

    def _is_given_since(self, resource: str, device_id: str) -> bool:
        holders = map(self._allocations.__getitem__, self._holders[resource][device_id])
        return any(it.owner is not None and not it.forgotten for it in holders)

    def _vendors(self) -> Mapping[str, str]:
        """Resource in use to its vendor."""
        holders = {name: next(iter(self._holders[name].values())) for name in self._held_ids()}
        return {resource: self._allocations[names[-1]].vendor for resource, names in holders.items()}

    def devices_in_use(self) -> frozenset[str]:
        """The cards that IDs in use name, and the cards where allocations lie."""
        external = (uuid for it in self._in_use.external() for uuid in (*it.devices, *it.diverged))
        return frozenset(external).union(*self._units().values())

    def external(self) -> Mapping[str, Allocation]:
        """Card in external use to the allocation that has the card."""
        if self._external is None:
            self._external = {uuid: it for it in self._in_use.external() for uuid in it.devices}
        return self._external

    def owners_on_cards(self, resource: str, devices: frozenset[str]) -> tuple[Owner | None, ...]:
        """The owners of the resource's allocations on these devices; None for an owner not known yet."""
        of_resource = (it for it in self.in_use() if it.resource == resource)
        on_cards = (it for it in of_resource if not devices.isdisjoint(it.cards))
        return tuple(dict.fromkeys(it.owner for it in on_cards))

    def owners_with_unit(self, resource: str, unit: str) -> tuple[Owner | None, ...]:
        """The owners of the resource's allocations in this memory unit; None for one not known yet."""
        owners = (it.owner for it in self.in_use() if it.resource == resource and it.unit == unit)
        return tuple(dict.fromkeys(owners))

    def holders(self, resource: str, ids: Collection[str]) -> list[Allocation]:
        """The allocations in use that hold one of these IDs."""
        holding = self._holders.get(resource, {})
        held = filter(holding.__contains__, ids)  # of units there are thousands
        names = dict.fromkeys(chain.from_iterable(map(holding.__getitem__, held)))
        return [self._allocations[name] for name in names]

    def take_changes(self) -> tuple[LedgerChange, ...]:
        """What has changed since the last call, for the one who writes the ledger.

        In this order, the changes make the present ledger of the one before.
        """
        changed, self._changed = self._changed, {}
        return tuple(
            LedgerChange(name, before, self._allocations.get(name), is_dropped)
            for name, (before, is_dropped) in changed.items()
        )

    def record(self, allocation: Allocation) -> None:
        """Add an allocation, or replace the one of the same id."""
        before = self._allocations.get(allocation.id)
        self._changed.setdefault(allocation.id, (before, False))
        self._allocations[allocation.id] = allocation
        if before is None:
            self._ages[allocation.id] = self._next_age
            self._next_age += 1
        self._replace_in_use(self._ages[allocation.id], before, allocation)
        if before is None or _held_by(before) != _held_by(allocation):
            if before is not None:
                self._remove_holder(before)
            self._add_holder(allocation)
        elif bool(before.diverged) != bool(allocation.diverged):
            self._note_ids(allocation)
        self.changes.touch()

    def drop(self, allocation_id: str) -> None:
        """Drop an allocation that was never answered."""
        before = self._allocations.pop(allocation_id, None)
        self._note_drop(allocation_id, before)
        if before is not None:
            self._remove_holder(before)
            self._replace_in_use(self._ages.pop(allocation_id), before, None)
        self.changes.touch()

    def _replace_in_use(self, age: int, before: Allocation | None, after: Allocation | None) -> None:
        """Note in the groups that one allocation was added, changed or removed."""
        had, has = (it if it and it.state is not AllocationState.RELEASED else None for it in (before, after))
        self._in_use = self._in_use.replaced(age, had, has)
        self._external = self._forgotten = self._usage = None
        if had is None or has is None or _with_unit(had) != _with_unit(has):
            self._note_units(*(it for it in (had, has) if it is not None))

    def _note_units(self, *allocations: Allocation) -> None:
        """Note that the memory units of these allocations may have come to their cards, or gone."""
        for allocation in allocations:
            for uuid in dict.fromkeys((*allocation.devices, *allocation.diverged)):
                self._changed_units.setdefault((allocation.resource, uuid), set()).add(allocation.unit)

    def _note_ids(self, allocation: Allocation) -> None:
        """Note that the IDs of the allocation may have come, gone or moved."""
        resource, ids, _ = _held_by(allocation)
        self._changed_ids.setdefault(resource, []).append(ids)

    def _add_holder(self, allocation: Allocation) -> None:
        """Note the IDs that the allocation holds."""
        self._note_ids(allocation)
        resource, ids, _ = _held_by(allocation)
        holding = self._holders.setdefault(resource, {})
        shared = [device_id for device_id in dict.fromkeys(ids) if device_id in holding]
        others = {device_id: (*holding[device_id], allocation.id) for device_id in shared}
        holding.update(dict.fromkeys(ids, (allocation.id,)))  # of units there are thousands
        holding.update(others)

    def _remove_holder(self, allocation: Allocation) -> None:
        self._note_ids(allocation)
        resource, ids, _ = _held_by(allocation)
        for device_id in set(ids):
            holding = self._holders[resource]
            if left := tuple(name for name in holding.pop(device_id) if name != allocation.id):
                holding[device_id] = left

    def confirm(self, allocation_id: str, owner: Owner, life: str = "") -> None:
        """Set the owner. An allocation with an owner was answered, whatever state a crash left behind."""
        allocation = self._allocations[allocation_id]
        self.record(replace(allocation, owner=owner, life=life, state=AllocationState.DONE))

    def record_made_slices(
        self, allocation_id: str, partitions: Iterable[Partition], state: AllocationState
    ) -> bool:
        """Record that hardware was made, or made again; return whether the ledger changed."""
        allocation = self._allocations.get(allocation_id)
        if allocation is None or allocation.state is AllocationState.RELEASED:
            return False  # released meanwhile: the release removes the hardware, too
        reason = allocation.reason if allocation.forgotten else ""
        ids = tuple(partition.id for partition in partitions)
        after = replace(allocation, partitions=ids, state=state, reason=reason, rebooted=False)
        self.record(after)
        return after != allocation

    def mark_rebooted(self) -> None:
        """Mark all allocations: the node was rebooted, which removed all made hardware."""
        for allocation in self.in_use():
            self.record(replace(allocation, rebooted=True))

    def set_forgotten(self, allocation_id: str, *, forgotten: bool) -> None:
        """Set whether the kubelet has lost its record of the allocation."""
        allocation = self._allocations[allocation_id]
        self.record(replace(allocation, forgotten=forgotten, reason=FORGOTTEN if forgotten else ""))

    def record_found_slices(self, allocation_id: str, partitions: tuple[str, ...]) -> None:
        """Record slices of the allocation that were found on the hardware."""
        self.record(replace(self._allocations[allocation_id], partitions=partitions))

    def revive(self, allocation_id: str) -> None:
        """Take back a release. The allocation becomes the oldest one, because its time is lost."""
        allocation = self._allocations[allocation_id]
        self.record(replace(allocation, state=AllocationState.DONE, reason=""))
        revived, age = self._allocations[allocation_id], self._ages[allocation_id]
        self._allocations = {allocation_id: revived, **self._allocations}
        self._ages[allocation_id] = min(self._ages.values()) - 1
        self._replace_in_use(age, revived, None)
        self._replace_in_use(self._ages[allocation_id], None, revived)
        holding = self._holders[allocation.resource]
        for device_id in allocation.ids:
            holding[device_id] = tuple(dict.fromkeys((allocation_id, *holding[device_id])))
        self._note_ids(revived)

    def remark(self, allocation_id: str, text: str) -> None:
        """Set what a person should know of the allocation; an empty text ends the effects of a reboot."""
        allocation = self._allocations[allocation_id]
        self.record(replace(allocation, reason=text, rebooted=allocation.rebooted and bool(text)))

    def release(self, allocation_id: str, reason: str, now: float) -> None:
        """Mark the allocation as released; the last released ones are kept for people to see."""
        allocation = self._allocations[allocation_id]
        released = replace(
            allocation,
            state=AllocationState.RELEASED,
            since=now,
            reason=reason,
            forgotten=False,
            rebooted=False,
        )
        self.drop(allocation_id)
        self.record(released)
        self._drop_old_released()

    def _drop_old_released(self) -> None:
        if len(self._allocations) - len(self._in_use) <= KEPT_RELEASED:
            return
        released = [it.id for it in self._allocations.values() if it.state is AllocationState.RELEASED]
        for allocation_id in released[:-KEPT_RELEASED]:
            del self._ages[allocation_id]
            self._note_drop(allocation_id, self._allocations.pop(allocation_id))

    def _note_drop(self, allocation_id: str, allocation: Allocation | None) -> None:
        """Note that the allocation was dropped. If it is recorded again, it is the newest one."""
        before, _ = self._changed.pop(allocation_id, (allocation, True))
        self._changed[allocation_id] = before, True


def _held_by(allocation: Allocation) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """(resource, held device IDs, their cards) of an allocation; empty for a released one."""
    return (
        (allocation.resource, allocation.ids, allocation.devices)
        if allocation.state is not AllocationState.RELEASED
        else ("", (), ())
    )


def _ids_by_card(allocation: Allocation, ids: Collection[str]) -> Mapping[str, Collection[str]]:
    """These IDs of the allocation by the cards that they name."""
    cards = allocation.devices
    if len(cards) != len(allocation.ids) or len({*cards}) == 1:
        return dict.fromkeys(cards[:1], ids)
    card_of = dict(zip(allocation.ids, cards, strict=True))
    found: dict[str, list[str]] = {}
    for device_id in ids:
        found.setdefault(card_of[device_id], []).append(device_id)
    return found


def _with_unit(allocation: Allocation) -> tuple[object, ...]:
    """What decides on the memory units of cards."""
    return allocation.resource, allocation.unit, allocation.devices, allocation.diverged, allocation.source
