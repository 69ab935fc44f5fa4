"""Cards that a scheduler gave to pods that ask nobody here, and that other pods have already. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle

from agent.core.allocation.card_amounts import fit, measures, part_of_card
from agent.core.allocation.holder_names import first_of, holder
from agent.core.model import Allocation, AllocationSource, NodeSnapshot, Owner, Plan
from agent.scheduler_api import Candidate, Measure, Part, Scheduler, common_dialects
from agent.vendor_api.agent import Device
from agent.vendor_api.text import shorten


@dataclass(frozen=True, slots=True)
class _Use:
    """What an allocation has of a card: for each of its IDs how much, of the cores and of the memory.

    1.0 is all of it. By a scheduler's word alone it has one ID there, of no meaning.
    """

    uid: str
    of: Allocation
    ids: Sequence[str]
    core: float
    memory: float


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The devices by uuid, what is listed of them, and how the claims of each dialect are measured."""

    devices: Mapping[str, Device]
    plan: Plan
    measures: Mapping[str, Measure]

    def card(self, device: str) -> str:
        """The card of a slice; else the device itself."""
        it = self.devices.get(device)
        return (it.parent if it else None) or device

    def amount(self, it: Allocation, device: str, count: int) -> tuple[float, float]:
        """Of each of `count` IDs on the device: as its scheduler measured it, else as the kubelet counts."""
        claim = it.claim
        measure = self.measures.get(claim.dialect) if claim is not None and claim.parameters else None
        its = part_of_card(measure, claim.parameters, self._memory(device)) if claim and measure else None
        if its is not None:
            return its.core / count, its.memory / count
        part = self._part(it, device)
        return part, part

    def _part(self, it: Allocation, device: str) -> float:
        known = self.devices.get(device)
        if known is not None and known.parent is not None:
            whole = self._memory(known.parent)
            return known.memory / whole if whole and known.memory else 1.0
        planned = self.plan.get(it.resource)
        listed = next((len(one) for one in planned.cards if one.uuid == device), 1) if planned else 1
        return 1.0 / max(1, listed)

    def _memory(self, device: str) -> int:
        """Bytes; 0 where nobody says."""
        it = self.devices.get(device)
        return it.memory if it else 0


def overlaps(
    in_use: Sequence[Allocation],
    pods: Iterable[Candidate],
    plan: Plan,
    snapshot: NodeSnapshot,
    moved: Collection[str] = (),
    schedulers: Iterable[Scheduler] = (),
) -> dict[str, str]:
    """Each allocation by a scheduler's word alone whose card has no room for it, with a sentence on that.

    Of two such the later one is meant. A pod that has ended or is gone uses no card any more: a scheduler
    gives its card away before the kubelet and the ledger let go of it.
    `moved`: uids of the pods that have other cards than were chosen for them.
    """
    words = [it for it in in_use if it.source is AllocationSource.ANNOTATION]
    if not words:
        return {}
    there = {it.uid: it for it in pods if not it.ended}
    names = {(it.namespace, it.name): uid for uid, it in there.items()}
    devices = {it.uuid: it.device for it in snapshot.devices}
    sizes = _Sizes(devices, plan, measures(common_dialects(schedulers)))
    on: dict[str, list[_Use]] = {sizes.card(device): [] for it in words for device in it.cards}
    for it in in_use:
        its = [device for device in dict.fromkeys(it.cards) if sizes.card(device) in on]
        if its and (uid := _uid(it, there, names)):
            for device, ids in _ids(it, its):
                on[sizes.card(device)].append(_Use(uid, it, ids, *sizes.amount(it, device, len(ids))))
    found: dict[str, dict[str, Sequence[_Use]]] = {}
    for card, uses in on.items():
        for own, holders in _crowded(uses):
            found.setdefault(own, {})[card] = holders
    return {own: _sentence(cards, there, moved) for own, cards in found.items()}


def _uid(it: Allocation, uids: Collection[str], names: Mapping[tuple[str, str], str]) -> str:
    """The uid of the pod that has it; empty where that is not there, or nobody says who it is."""
    if it.place is not None:
        return it.place[0] if it.place[0] in uids else ""
    return names.get((it.owner.namespace, it.owner.pod), "") if it.owner else ""


def _ids(it: Allocation, devices: Iterable[str]) -> Iterator[tuple[str, Sequence[str]]]:
    """Each of the devices with the IDs that lie on it."""
    ids = (it.id,) if it.source is AllocationSource.ANNOTATION else it.ids
    if it.source is AllocationSource.ANNOTATION or len(set(it.cards)) == 1:
        yield from ((device, ids) for device in devices if ids)
        return
    on: dict[str, list[str]] = {device: [] for device in devices}
    for one, device in zip(ids, cycle(it.cards), strict=False):
        if device in on:
            on[device].append(one)
    yield from ((device, its) for device, its in on.items() if its)


def _crowded(uses: Sequence[_Use]) -> Iterator[tuple[str, Sequence[_Use]]]:
    """The allocations of a card that those before them leave too little of it, with who that is."""
    asked: dict[str, list[_Use]] = {}
    for it in uses:
        if it.of.source is not AllocationSource.ANNOTATION:
            asked.setdefault(it.uid, []).append(it)
    # An allocation of each pod, with all that the pod has.
    before = [_whole(its) for its in asked.values()]
    words = [it for it in uses if it.of.source is AllocationSource.ANNOTATION]
    for own in sorted(words, key=lambda it: (it.of.since, it.of.id)):
        others: dict[str, _Use] = {}
        core, memory = own.core, own.memory
        for it in before:
            if it.uid != own.uid:
                others.setdefault(it.uid, it)
                core, memory = core + it.core, memory + it.memory
        if others and not fit(Part(core, memory)):
            yield own.of.id, [*others.values()]
        before.append(own)


def _whole(its: Sequence[_Use]) -> _Use:
    """All that a pod has of the card."""
    core, memory = _sum(its, lambda it: it.core), _sum(its, lambda it: it.memory)
    return replace(its[0], ids=(), core=core, memory=memory)


def _sum(its: Iterable[_Use], amount: Callable[[_Use], float]) -> float:
    """Init containers hand their IDs on: an ID counts once, with the most that stands for it."""
    taken: dict[str, dict[str, float]] = {}
    for it in sorted(its, key=amount):
        taken.setdefault(it.of.resource, {}).update(dict.fromkeys(it.ids, amount(it)))
    return sum(sum(ids.values()) for ids in taken.values())


def _sentence(
    cards: Mapping[str, Sequence[_Use]], pods: Mapping[str, Candidate], moved: Collection[str]
) -> str:
    """What to do stands first: a note is cut where it is long."""
    uids = dict.fromkeys(it.uid for holders in cards.values() for it in holders if it.uid in moved)
    what = ", ".join(first_of(uids, lambda uid: f"{pods[uid].namespace}/{pods[uid].name}"))
    held = first_of(cards, lambda card: f"{shorten(card)} is held by {_names(cards[card], pods, moved)}")
    return f"delete {what or 'one of the pods'}: {'; '.join(held)}"


def _names(holders: Sequence[_Use], pods: Mapping[str, Candidate], moved: Collection[str]) -> str:
    return ", ".join(first_of(holders, lambda it: _named(it, pods[it.uid], moved)))


def _named(it: _Use, pod: Candidate, moved: Collection[str]) -> str:
    owned = replace(it.of, owner=Owner(pod.uid, "", pod.namespace, pod.name))
    return holder(owned) + (", for which others were chosen" if it.uid in moved else "")
