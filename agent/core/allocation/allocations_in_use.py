"""The allocations in use as of one moment, in the groups that an answer to the kubelet asks for. Pure.

A change makes a new value, which shares all groups that the change does not touch. So a change costs as much
with thousands of allocations as with a few, and a value that was handed out stays as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from types import MappingProxyType
from typing import TypeVar, overload

from agent.core.model import Allocation, AllocationSource

#: The age of an allocation to the allocation. The oldest one has the lowest age, and comes first.
Group = Mapping[int, Allocation]
#: The kind of a group, and what its allocations have in common.
Key = tuple[str, ...]

K = TypeVar("K")
NONE: Group = MappingProxyType({})
#: Into how many parts the groups are divided, by the hashes of their keys. A change copies a few parts.
PARTS = 128
#: How many ages in a row are one block. A change copies one block.
BLOCK = 32


def keys_of(allocation: Allocation) -> Sequence[Key]:
    """The keys of the groups in which the allocation is."""
    resource, claim, place = allocation.resource, allocation.claim, allocation.container_key
    cards = dict.fromkeys(allocation.cards)
    keys: list[Key] = [("id", allocation.id), ("pod", resource, place[0] if place else "")]
    keys += [("card", resource, uuid) for uuid in cards]
    if allocation.owner is None:
        keys.append(("without owner", resource))
    if allocation.source is AllocationSource.ANNOTATION:
        keys.append(("external",))
    else:
        named = dict.fromkeys((*allocation.devices, *allocation.diverged))
        keys += [("unit", resource, uuid, allocation.unit) for uuid in named]
    if allocation.diverged:
        keys.append(("diverged", resource))
    if allocation.forgotten:
        keys.append(("forgotten", resource))
    if claim is not None:
        keys.append(("claim", resource, claim.uid, claim.container))
        keys += [("dialect", resource, uuid, claim.dialect) for uuid in cards]
        if claim.devices and {*claim.devices} != {*cards}:
            keys.append(("astray",))
    if allocation.handed is not None:
        keys += [("answered otherwise", resource, uuid) for uuid in cards]
    return keys


@dataclass(frozen=True, slots=True)
class AllocationsInUse(Sequence[Allocation]):
    """The allocations that are not released, oldest first, and the same in groups."""

    #: Number of a block to the allocations of its ages, oldest first.
    blocks: Mapping[int, Group] = field(default_factory=dict)
    #: The groups, in parts by the hash of the key.
    parts: Sequence[Mapping[Key, Group]] = field(default=({},) * PARTS, compare=False)
    #: Resource and card to the number of device IDs that the allocations of known pods take there.
    taken: Mapping[tuple[str, str], int] = field(default_factory=dict, compare=False)
    #: Resource to the number of its allocations.
    counts: Mapping[str, int] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, allocations: Iterable[tuple[int, Allocation]]) -> AllocationsInUse:
        """The value with these allocations, each with its age, oldest first."""
        blocks: dict[int, dict[int, Allocation]] = {}
        parts: list[dict[Key, dict[int, Allocation]]] = [{} for _ in range(PARTS)]
        counts: Counter[str] = Counter()
        for age, allocation in allocations:
            blocks.setdefault(age // BLOCK, {})[age] = allocation
            counts[allocation.resource] += 1
            for key in keys_of(allocation):
                parts[hash(key) % PARTS].setdefault(key, {})[age] = allocation
        taken: Counter[tuple[str, str]] = Counter()
        for key, group in chain.from_iterable(part.items() for part in parts):
            if key[0] == "pod" and key[2]:
                for uuid in {uuid for it in group.values() for uuid in it.cards}:
                    taken[key[1], uuid] += _count_ids(uuid, group.values())
        return cls(blocks, parts, taken, counts)

    def __iter__(self) -> Iterator[Allocation]:
        return chain.from_iterable(block.values() for block in self.blocks.values())

    def __len__(self) -> int:
        return sum(self.counts.values())

    @overload
    def __getitem__(self, number: int) -> Allocation: ...

    @overload
    def __getitem__(self, number: slice) -> Sequence[Allocation]: ...

    def __getitem__(self, number: int | slice) -> Allocation | Sequence[Allocation]:
        return tuple(self)[number]

    def group(self, *key: str) -> Group:
        """The group with this key, of those that `keys_of` names."""
        return self.parts[hash(key) % PARTS].get(key, NONE)

    def get(self, allocation_id: str) -> Allocation | None:
        """The allocation of this id."""
        return next(iter(self.group("id", allocation_id).values()), None)

    def without_owner(self, resource: str) -> Collection[Allocation]:
        """The allocations of the resource that have no owner, oldest first."""
        return self.group("without owner", resource).values()

    def all_without_owner(self) -> Iterator[Allocation]:
        """The allocations of all resources that have no owner."""
        return chain.from_iterable(map(self.without_owner, self.counts))

    def without_pod(self, resource: str) -> Collection[Allocation]:
        """The allocations of the resource with a pod of unknown uid, oldest first."""
        return self.group("pod", resource, "").values()

    def of_pod(self, resource: str, uid: str) -> Collection[Allocation]:
        """The allocations of the resource that the containers of this pod have, oldest first."""
        return self.group("pod", resource, uid).values()

    def of_container(self, resource: str, key: tuple[str, str]) -> Sequence[Allocation]:
        """The allocations of the resource that the container has, oldest first. `key`: pod uid and name."""
        return [it for it in self.group("pod", resource, key[0]).values() if it.container_key == key]

    def external(self) -> Collection[Allocation]:
        """The allocations of cards in external use, oldest first."""
        return self.group("external").values()

    def diverged(self, resource: str) -> Collection[Allocation]:
        """The allocations of the resource on other cards than their IDs name, oldest first."""
        return self.group("diverged", resource).values()

    def forgotten(self, resource: str) -> Collection[Allocation]:
        """The forgotten allocations of the resource, oldest first."""
        return self.group("forgotten", resource).values()

    def astray(self) -> Group:
        """The allocations on other cards than their claims name."""
        return self.group("astray")

    def with_claim(self, resource: str, container: tuple[str, str]) -> Sequence[Allocation]:
        """The allocations of the resource with a claim of this container (pod uid and name), oldest first."""
        return [*self.group("claim", resource, *container).values()]

    def on_card(self, resource: str, uuid: str) -> Collection[Allocation]:
        """The allocations of the resource on the card, whatever card their IDs name; oldest first."""
        return self.group("card", resource, uuid).values()

    def units_of_card(self, resource: str, uuid: str, units: Collection[str]) -> tuple[str, ...]:
        """Those of these memory units that IDs on the card have, the unit of the oldest allocation first."""
        groups = {unit: self.group("unit", resource, uuid, unit) for unit in units}
        ages = {unit: next(iter(group)) for unit, group in groups.items() if group}
        return tuple(sorted(ages, key=ages.__getitem__))

    def cards_of_pods(self, resource: str) -> list[str]:
        """The cards on which allocations of known pods may lie."""
        return [uuid for name, uuid in self.taken if name == resource]

    def of_others_on_card(self, resource: str, uuid: str) -> Sequence[Allocation]:
        """The allocations of all other resources that lie on the card, oldest first."""
        groups = (self.group("card", other, uuid) for other in self.counts if other != resource)
        return [it for _, it in sorted(chain.from_iterable(group.items() for group in groups))]

    def claimed_on_card(self, resource: str, uuid: str, dialect: str) -> Collection[Allocation]:
        """The allocations of the resource on the card with a claim in this dialect, oldest first."""
        return self.group("dialect", resource, uuid, dialect).values()

    def answered_otherwise_on_card(self, resource: str, uuid: str) -> Collection[Allocation]:
        """The allocations on the card that were answered with other parameters than those of their claim."""
        return self.group("answered otherwise", resource, uuid).values()

    def ids_taken(self, resource: str, uuid: str) -> int:
        """How many of the resource's device IDs are taken on the card.

        An ID that several containers of a pod have one after another counts once (kubelet, devicesToReuse).
        Made hardware counts for each container. The allocations of unknown pods count as those of one pod.
        """
        return self.taken.get((resource, uuid), 0) + _count_ids(uuid, self.without_pod(resource))

    def without(self, allocations: Iterable[Allocation]) -> AllocationsInUse:
        """The value without these allocations."""
        left = self
        for allocation in allocations:
            for age, known in self.group("id", allocation.id).items():
                left = left.replaced(age, known, None)
        return left

    def replaced(self, age: int, before: Allocation | None, after: Allocation | None) -> AllocationsInUse:
        """The value after one allocation was added, changed or removed. None stands for no allocation."""
        has = dict.fromkeys(keys_of(after), after) if after is not None else {}
        parts, copied = [*self.parts], dict[int, dict[Key, Group]]()
        for key in {**dict.fromkeys(keys_of(before) if before is not None else ()), **has}:
            number = hash(key) % PARTS
            if number not in copied:
                parts[number] = copied[number] = {**self.parts[number]}
            part = copied[number]
            _set(part, key, _replaced(part.get(key, NONE), age, has.get(key)))
        blocks, number = {**self.blocks}, age // BLOCK
        _set(blocks, number, _replaced(self.blocks.get(number, NONE), age, after))
        if number not in self.blocks:  # the block of a revived allocation is the first one
            blocks = dict(sorted(blocks.items()))
        counts = _counted(self.counts, before, after)
        places = {
            (allocation.resource, allocation.container_key[0], uuid)
            for allocation in (before, after)
            if allocation is not None and allocation.container_key is not None
            for uuid in allocation.cards
        }
        new = AllocationsInUse(blocks, parts, self.taken, counts)
        return replace(new, taken=new._taken_after(self, places)) if places else new

    def _taken_after(
        self, known: AllocationsInUse, places: Iterable[tuple[str, str, str]]
    ) -> Mapping[tuple[str, str], int]:
        """The taken IDs after a change at these places: resource, pod uid and card. `known`: before it."""
        taken = {**known.taken}
        for resource, uid, uuid in places:
            was, now = (it.group("pod", resource, uid).values() for it in (known, self))
            more = _count_ids(uuid, now) - _count_ids(uuid, was)
            taken[resource, uuid] = taken.get((resource, uuid), 0) + more
        return taken


def ids_on_card(uuid: str, allocation: Allocation) -> Sequence[str]:
    """The IDs of the allocation that lie on the card."""
    cards = allocation.cards
    if len({*cards}) == 1:
        return allocation.ids if uuid == cards[0] else ()
    return [one for n, one in enumerate(allocation.ids) if cards[n % len(cards)] == uuid] if cards else ()


def _count_ids(uuid: str, allocations: Collection[Allocation]) -> int:
    """How many IDs the allocations of one pod take on the card."""
    on_card = [it for it in allocations if uuid in it.cards]
    made = sum(len(ids_on_card(uuid, it)) for it in on_card if it.partitions)
    passed_on = [ids_on_card(uuid, it) for it in on_card if not it.partitions]
    return made + (len(passed_on[0]) if len(passed_on) == 1 else len(set().union(*passed_on)))


def _counted(
    counts: Mapping[str, int], before: Allocation | None, after: Allocation | None
) -> Mapping[str, int]:
    """Resource to the number of its allocations, after the change of one."""
    if before is not None and after is not None and before.resource == after.resource:
        return counts
    changed = {**counts}
    for allocation, more in ((before, -1), (after, 1)):
        if allocation is not None:
            changed[allocation.resource] = changed.get(allocation.resource, 0) + more
    return {resource: count for resource, count in changed.items() if count}


def _replaced(group: Group, age: int, allocation: Allocation | None) -> Group:
    """The group with this allocation at this age, or with none."""
    changed = {**group}
    if allocation is None:
        changed.pop(age, None)
        return changed
    is_last = age in group or not group or age > next(reversed(changed))
    changed[age] = allocation
    return changed if is_last else dict(sorted(changed.items()))


def _set(groups: dict[K, Group], key: K, group: Group) -> None:
    """Set the group of this key, or drop the key of an empty group."""
    if group:
        groups[key] = group
    else:
        groups.pop(key, None)
