"""Cards that a scheduler gave to pods that ask nobody here, and that other pods have already. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from agent.core.claims import Candidate
from agent.core.koordinator.external import RESOURCE
from agent.core.model import Allocation, NodeSnapshot, Plan, Source
from agent.core.promises import DIALECTS, SAID, holder
from agent.core.text import shorten

#: The dialects whose claims say how much of a card they are for.
_MEASURED = frozenset(it.name for it in DIALECTS)
#: Thirds do not add up.
_WHOLE = 1.0 + 1e-6


@dataclass(frozen=True, slots=True)
class _Use:
    """How much of a card a device ID stands for: of its cores and of its memory, 1.0 for all of it."""

    card: str
    device_id: str
    of: Allocation
    #: The pod's.
    uid: str
    core: float
    memory: float


def overlaps(
    in_use: Sequence[Allocation], pods: Iterable[Candidate], plan: Plan, snapshot: NodeSnapshot
) -> dict[str, str]:
    """Each allocation by a scheduler's word alone whose card has no room for it, with a sentence on that.

    Of two such the later one is meant. A pod that has ended or is gone uses no card any more: a scheduler
    gives its card away before the kubelet and the ledger let go of it.
    """
    if not any(it.source is Source.ANNOTATION for it in in_use):
        return {}
    there = [it for it in pods if not it.ended]
    uids, names = {it.uid for it in there}, {(it.namespace, it.name): it.uid for it in there}
    users = [(it, uid) for it in in_use if (uid := _uid(it, uids, names))]
    on: dict[str, list[_Use]] = {}
    for it, uid in users:
        for use in _uses(it, uid, plan, snapshot):
            on.setdefault(use.card, []).append(use)
    found: dict[str, list[str]] = {}
    for card, uses in on.items():
        for own in uses:
            if own.of.source is Source.ANNOTATION and (holders := _holders(own, uses)):
                found.setdefault(own.of.id, []).append(_sentence(card, holders))
    return {name: "; ".join(_few(its)) for name, its in found.items()}


def _uid(it: Allocation, uids: Collection[str], names: Mapping[tuple[str, str], str]) -> str:
    """The uid of the pod that has it; empty where that is not there, or nobody says who it is."""
    if it.place is not None:
        return it.place[0] if it.place[0] in uids else ""
    return names.get((it.owner.namespace, it.owner.pod), "") if it.owner else ""


def _holders(own: _Use, uses: Iterable[_Use]) -> Sequence[Allocation]:
    """Those before it on its card, one of each pod, where they leave too little of it; else none."""
    # Init containers hand their IDs on: an ID of a pod counts once.
    taken: dict[tuple[str, str, str], tuple[float, float]] = {}
    holders: dict[str, Allocation] = {}
    for it in uses:
        if it.uid != own.uid and _is_before(it.of, own.of):
            place = (it.uid, it.of.resource, it.device_id)
            core, memory = taken.get(place, (0.0, 0.0))
            taken[place] = max(core, it.core), max(memory, it.memory)
            holders.setdefault(it.uid, it.of)
    core, memory = (sum(its) for its in zip((own.core, own.memory), *taken.values(), strict=True))
    return [*holders.values()] if max(core, memory) > _WHOLE else []


def _is_before(one: Allocation, it: Allocation) -> bool:
    return one.source is not Source.ANNOTATION or (one.since, one.id) < (it.since, it.id)


def _sentence(card: str, holders: Sequence[Allocation]) -> str:
    named = _few([holder(it, RESOURCE) + _chosen(it) for it in holders])
    moved = next((it.claim for it in holders if it.claim is not None and _chosen(it)), None)
    what = f"{moved.namespace}/{moved.pod}" if moved else "one of them"
    return f"{shorten(card)} is held by {', '.join(named)}, and all use it: delete {what}"


def _few(said: Sequence[str]) -> Sequence[str]:
    return [*said[:SAID], f"and {len(said) - SAID} more"] if len(said) > SAID else said


def _chosen(it: Allocation) -> str:
    """That its scheduler chose other cards for it than it has."""
    wanted = it.claim.devices if it.claim else ()
    if not wanted or set(wanted) == set(it.cards):
        return ""
    return f", for which {', '.join(map(shorten, wanted[:SAID]))} was chosen"


def _uses(it: Allocation, uid: str, plan: Plan, snapshot: NodeSnapshot) -> Iterator[_Use]:
    if it.source is Source.ANNOTATION:
        places = [(card, it.id) for card in it.cards]
    else:
        places = [(it.cards[n % len(it.cards)], one) for n, one in enumerate(it.ids) if it.cards]
    counts = Counter(device for device, _ in places)
    for device, one in places:
        status = snapshot.device(device)
        card = (status.device.parent if status else None) or device
        core, memory = _amount(it, device, counts[device], plan, snapshot)
        yield _Use(card, one, it, uid, core, memory)


def _amount(
    it: Allocation, device: str, count: int, plan: Plan, snapshot: NodeSnapshot
) -> tuple[float, float]:
    """Of each of `count` IDs on the device: as its scheduler measured it, else as the kubelet counts it."""
    if it.claim is not None and it.claim.parameters and it.claim.dialect in _MEASURED:
        core, memory = _measured(it.claim.parameters, _memory(snapshot, device))
        return core / count, memory / count
    status = snapshot.device(device)
    if status is not None and status.device.parent is not None:
        whole = _memory(snapshot, status.device.parent)
        part = status.device.memory / whole if whole and status.device.memory else 1.0
        return part, part
    planned = plan.get(it.resource)
    card = next((one for one in planned.cards if one.uuid == device), None) if planned else None
    part = 1.0 / max(1, len(card)) if card is not None else 1.0
    return part, part


def _measured(parameters: Mapping[str, str], memory: int) -> tuple[float, float]:
    said = {key: int(it) for key, it in parameters.items() if it.isascii() and it.isdigit()}
    in_bytes = said.get("memory", 0) / memory if memory else 0.0
    return said.get("core", 0) / 100, said["ratio"] / 100 if "ratio" in said else in_bytes


def _memory(snapshot: NodeSnapshot, device: str) -> int:
    """Bytes; 0 where nobody says."""
    status = snapshot.device(device)
    return status.device.memory if status else 0
