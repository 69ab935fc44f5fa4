"""Double bookings: a card is in external use, and another pod has the card, too. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import cycle

from msgspec import Struct, structs

from agent.core.allocation.card_amounts import fit, measures, part_of_card
from agent.core.allocation.holder_texts import first_of, holder_name
from agent.core.model import Allocation, AllocationSource, NodeSnapshot, Owner, Plan
from agent.scheduler_api.candidate import Candidate
from agent.scheduler_api.claims import Part
from agent.scheduler_api.dialects import Measure
from agent.scheduler_api.scheduler import Scheduler, common_dialects
from agent.vendor_api.agent import Device
from agent.vendor_api.text import shorten


class _Use(Struct, frozen=True):
    """What an allocation has of a card. 1.0 is the whole card."""

    #: The pod that has the allocation.
    uid: str
    allocation: Allocation
    #: The device IDs that lie on the card; one made-up ID for a card in external use.
    ids: Sequence[str]
    #: Per device ID.
    core: float
    memory: float


class _Sizes(Struct, frozen=True):
    """What is needed to measure allocations: devices by UUID, the plan, and the measure of each dialect."""

    devices: Mapping[str, Device]
    plan: Plan
    measures: Mapping[str, Measure]

    def card(self, device: str) -> str:
        """The card that a slice is part of, or the device itself."""
        known = self.devices.get(device)
        return (known.parent if known else None) or device

    def amount(self, allocation: Allocation, device: str, count: int) -> tuple[float, float]:
        """(cores, memory) of each of `count` IDs on the device: as the scheduler measures, or by the IDs."""
        claim = allocation.claim
        measure = self.measures.get(claim.dialect) if claim is not None and claim.parameters else None
        part = part_of_card(measure, claim.parameters, self._memory(device)) if claim and measure else None
        if part is not None:
            return part.core / count, part.memory / count
        whole = self._part(allocation, device)
        return whole, whole

    def _part(self, allocation: Allocation, device: str) -> float:
        known = self.devices.get(device)
        if known is not None and known.parent is not None:
            whole = self._memory(known.parent)
            return known.memory / whole if whole and known.memory else 1.0
        planned = self.plan.get(allocation.resource)
        listed = next((len(card) for card in planned.cards if card.uuid == device), 1) if planned else 1
        return 1.0 / max(1, listed)

    def _memory(self, device: str) -> int:
        """Bytes of the device; 0 where that is not known."""
        known = self.devices.get(device)
        return known.memory if known else 0


def double_bookings(
    in_use: Sequence[Allocation],
    pods: Iterable[Candidate],
    plan: Plan,
    snapshot: NodeSnapshot,
    moved: Collection[str] = (),
    schedulers: Iterable[Scheduler] = (),
) -> dict[str, str]:
    """Allocation to a sentence, for external use that has no room on its card.

    Of two such allocations the later one is reported. A pod that has ended uses no card: its scheduler gives
    the card away before the kubelet and the ledger let go of it. `moved`: uids of the pods that have other
    cards than were chosen for them.
    """
    external = [it for it in in_use if it.source is AllocationSource.ANNOTATION]
    if not external:
        return {}
    alive = {it.uid: it for it in pods if not it.ended}
    names = {(it.namespace, it.name): uid for uid, it in alive.items()}
    known = {it.uuid: it.device for it in snapshot.devices}
    sizes = _Sizes(known, plan, measures(common_dialects(schedulers)))
    uses: dict[str, list[_Use]] = {sizes.card(device): [] for it in external for device in it.cards}
    for allocation in in_use:
        devices = [device for device in dict.fromkeys(allocation.cards) if sizes.card(device) in uses]
        if devices and (uid := _uid_of_pod(allocation, alive, names)):
            for device, ids in _ids_by_device(allocation, devices):
                uses[sizes.card(device)].append(
                    _Use(uid, allocation, ids, *sizes.amount(allocation, device, len(ids)))
                )
    without_room: dict[str, dict[str, Sequence[_Use]]] = {}
    for card, uses_of_card in uses.items():
        for own, holders in _without_room(uses_of_card):
            without_room.setdefault(own, {})[card] = holders
    return {own: _describe(cards, alive, moved) for own, cards in without_room.items()}


def _uid_of_pod(allocation: Allocation, uids: Collection[str], names: Mapping[tuple[str, str], str]) -> str:
    """The uid of the living pod that has the allocation; empty where none is known."""
    if allocation.container_key is not None:
        return allocation.container_key[0] if allocation.container_key[0] in uids else ""
    return names.get((allocation.owner.namespace, allocation.owner.pod), "") if allocation.owner else ""


def _ids_by_device(allocation: Allocation, devices: Iterable[str]) -> Iterator[tuple[str, Sequence[str]]]:
    """The devices with the IDs of the allocation that lie on each."""
    ids = (allocation.id,) if allocation.source is AllocationSource.ANNOTATION else allocation.ids
    if allocation.source is AllocationSource.ANNOTATION or len(set(allocation.cards)) == 1:
        yield from ((device, ids) for device in devices if ids)
        return
    on: dict[str, list[str]] = {device: [] for device in devices}
    for device_id, device in zip(ids, cycle(allocation.cards), strict=False):
        if device in on:
            on[device].append(device_id)
    yield from ((device, moved) for device, moved in on.items() if moved)


def _without_room(uses: Sequence[_Use]) -> Iterator[tuple[str, Sequence[_Use]]]:
    """Allocations in external use without enough room, each with the earlier allocations on its card."""
    allocated: dict[str, list[_Use]] = {}
    for use in uses:
        if use.allocation.source is not AllocationSource.ANNOTATION:
            allocated.setdefault(use.uid, []).append(use)
    before = [_merge_uses(uses_of_pod) for uses_of_pod in allocated.values()]
    external = [it for it in uses if it.allocation.source is AllocationSource.ANNOTATION]
    for own in sorted(external, key=lambda it: (it.allocation.since, it.allocation.id)):
        others: dict[str, _Use] = {}
        core, memory = own.core, own.memory
        for earlier in before:
            if earlier.uid != own.uid:
                others.setdefault(earlier.uid, earlier)
                core, memory = core + earlier.core, memory + earlier.memory
        if others and not fit(Part(core, memory)):
            yield own.allocation.id, [*others.values()]
        before.append(own)


def _merge_uses(uses: Sequence[_Use]) -> _Use:
    """All that a pod has of the card, as one use."""
    core, memory = _sum_amounts(uses, lambda it: it.core), _sum_amounts(uses, lambda it: it.memory)
    return structs.replace(uses[0], ids=(), core=core, memory=memory)


def _sum_amounts(uses: Iterable[_Use], amount: Callable[[_Use], float]) -> float:
    """The sum over all IDs. Init containers pass IDs on: each ID counts once, with its largest amount."""
    taken: dict[str, dict[str, float]] = {}
    for use in sorted(uses, key=amount):
        taken.setdefault(use.allocation.resource, {}).update(dict.fromkeys(use.ids, amount(use)))
    return sum(sum(ids.values()) for ids in taken.values())


def _describe(
    cards: Mapping[str, Sequence[_Use]], pods: Mapping[str, Candidate], moved: Collection[str]
) -> str:
    """The sentence of one allocation. The remedy comes first, because a long text is cut."""
    uids = dict.fromkeys(it.uid for holders in cards.values() for it in holders if it.uid in moved)
    what = ", ".join(first_of(uids, lambda uid: f"{pods[uid].namespace}/{pods[uid].name}"))
    held = first_of(cards, lambda card: f"{shorten(card)} is held by {_name_uses(cards[card], pods, moved)}")
    return f"delete {what or 'one of the pods'}: {'; '.join(held)}"


def _name_uses(holders: Sequence[_Use], pods: Mapping[str, Candidate], moved: Collection[str]) -> str:
    return ", ".join(first_of(holders, lambda it: _name_use(it, pods[it.uid], moved)))


def _name_use(use: _Use, pod: Candidate, moved: Collection[str]) -> str:
    owned = replace(use.allocation, owner=Owner(pod.uid, "", pod.namespace, pod.name))
    return holder_name(owned) + (", for which others were chosen" if use.uid in moved else "")
