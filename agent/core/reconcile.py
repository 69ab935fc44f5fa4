"""Who holds an allocation, and which are over: what the sources say against the ledger. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from agent.core.ledger import FORGOTTEN
from agent.core.model import Allocation, AllocationState, Owner, Plan
from agent.core.vendor import Partition

#: (namespace, pod) to container to resource to device IDs, as PodResources lists them.
Pods = Mapping[tuple[str, str], Mapping[str, Mapping[str, frozenset[str]]]]

#: Where an allocation is known from that was read back, not answered by us.
KUBELET, POD_RESOURCES = "kubelet", "pod-resources"


@dataclass(frozen=True, slots=True)
class Granted:
    """One answer of ours as the kubelet's checkpoint keeps it."""

    allocation: str
    uid: str
    container: str
    resource: str = ""
    ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Evidence:
    """What every source says at one moment. `None` stands for a source that could not be read."""

    #: The kubelet's checkpoint, and whether its checksum was proven.
    granted: tuple[Granted, ...] | None = None
    proven: bool = True
    pods: Pods | None = None
    #: Vendor to the slices on its hardware, of those that could be asked.
    partitions: Mapping[str, tuple[Partition, ...]] | None = None
    #: uids of the pods whose cgroup is there; None where cgroups can not be seen.
    running: frozenset[str] | None = None
    #: Which life of the kubelet this is, read before its checkpoint. It loads that file before it listens:
    #: what proves is what this life began with, or wrote.
    life: str = ""
    #: Whether it has served for long enough to be believed when it does not list something.
    settled: bool = False


@dataclass(frozen=True, slots=True)
class Confirm:
    """The kubelet says who has it. Then it was answered, whatever state a crash left it in."""

    allocation: str
    owner: Owner
    life: str = ""


@dataclass(frozen=True, slots=True)
class Release:
    allocation: str
    reason: str


@dataclass(frozen=True, slots=True)
class Remark:
    """What a person should know of an allocation in use; empty takes it back."""

    allocation: str
    text: str


@dataclass(frozen=True, slots=True)
class Remove:
    """A slice that bears our mark, and that nobody owns."""

    vendor: str
    mark: str


@dataclass(frozen=True, slots=True)
class Doubt:
    """An allocation whose pod nobody shows, and that the kubelet's file still grants.

    The kubelet does not write that file when a pod goes: only what it writes next tells.
    """

    allocation: str
    resource: str


@dataclass(frozen=True, slots=True)
class Recall:
    """An allocation that only the kubelet still knew."""

    allocation: Allocation


Change = Confirm | Release | Remark | Remove | Doubt


def recall(granted: Iterable[Granted], plan: Plan, now: float) -> list[Recall]:
    """The allocations behind these answers, as far as the cards of their IDs are known."""
    found: list[Recall] = []
    for it in granted:
        owner = Owner(it.uid, it.container)
        made = _recalled(it.allocation, it.resource, it.ids, owner, KUBELET, plan, now)
        if made is not None:
            found.append(Recall(made))
    return found


def recall_pods(pods: Pods, plan: Plan, name: Callable[[str], str], now: float) -> list[Recall]:
    """The same from PodResources alone, where the kubelet's checkpoint can not be read: without uids.

    `name` makes an id of a place, "namespace/pod/container/resource".
    """
    found: list[Recall] = []
    for (namespace, pod), containers in pods.items():
        for container, resources in containers.items():
            for resource, ids in resources.items():
                place = f"{namespace}/{pod}/{container}/{resource}"
                owner = Owner("", container, namespace, pod)
                made = _recalled(name(place), resource, tuple(sorted(ids)), owner, POD_RESOURCES, plan, now)
                if made is not None:
                    found.append(Recall(made))
    return found


def _recalled(
    allocation: str, name: str, ids: tuple[str, ...], owner: Owner, source: str, plan: Plan, now: float
) -> Allocation | None:
    resource = plan.get(name)
    if resource is None or not ids:
        return None
    cards = [card for device_id in ids if (card := resource.card_of(device_id))]
    if len(cards) != len(ids):
        return None
    return Allocation(
        allocation,
        name,
        resource.vendor,
        ids,
        tuple(card.uuid for card in cards),
        AllocationState.DONE,
        now,
        source=source,
        owner=owner,
    )


def reconcile(
    allocations: Sequence[Allocation],
    evidence: Evidence,
    now: float,
    grace: float,
    busy: Collection[str] = (),
) -> list[Change]:
    """What must change for these allocations in use, given oldest first. `busy` are being answered now.

    An allocation is over when its IDs have gone to another pod, or when the kubelet neither grants nor shows
    it. A source that could not be read leaves everything as it is.
    """
    grants = {it.allocation: it for it in evidence.granted or ()}
    pods = evidence.pods or {}
    holders = {it.id: _owner(it, grants.get(it.id)) for it in allocations}
    superseded = _superseded(allocations, holders)
    nameable = [it for it in allocations if it.id in grants and it.id not in superseded]
    owners = _named(holders, nameable, pods)
    changes: list[Change] = []
    for it in allocations:
        owner = owners[it.id]
        life = evidence.life if evidence.life and evidence.proven and it.id in grants else it.life
        known = it.state is AllocationState.DONE or it.id not in grants
        if owner is not None and (owner, life, known) != (it.owner, it.life, True):
            changes.append(Confirm(it.id, owner, life))
    if evidence.granted is None:
        return changes
    shown = {it.id for it in allocations if it.id not in superseded and _shown(it, owners[it.id], pods)}
    living = {owner.uid for name, owner in owners.items() if owner and owner.uid and name in shown}
    answers = {(it.resource, frozenset(it.ids)) for it in evidence.granted}
    anew = _given_anew(allocations, owners, evidence.granted)
    named = [
        (it.id in grants, (owner.namespace, owner.pod), owner.uid)
        for it in allocations
        if (owner := owners[it.id])
    ]
    # A name is the newest pod's, unless the kubelet says whose it is.
    bearers = {name: uid for _, name, uid in sorted(named, key=lambda it: it[0])}
    old = [it for it in allocations if it.id not in busy and now - it.since >= grace]
    for it in old:
        owner = owners[it.id]
        if it.state is not AllocationState.DONE:
            changes += [Release(it.id, "never answered")] if it.id not in grants else []
        elif evidence.pods is None or not evidence.settled:
            continue
        elif it.id in anew:
            changes.append(Release(it.id, "given anew"))
        elif it.id not in grants and it.id not in shown and _forgotten(it, owner, bearers, evidence):
            changes += [Remark(it.id, FORGOTTEN)] if it.reason != FORGOTTEN else []
        elif it.id in superseded:
            changes.append(Release(it.id, "superseded"))
        elif it.source == POD_RESOURCES and (it.resource, frozenset(it.ids)) in answers:
            changes.append(Release(it.id, "the kubelet's checkpoint knows it better"))
        elif it.id in shown or it.id in grants or _runs(owner, living, evidence.running):
            changes += [Remark(it.id, "")] if it.reason == FORGOTTEN else []
            if it.id not in shown and not _runs(owner, living, evidence.running):
                changes.append(Doubt(it.id, it.resource))
        else:
            changes.append(Release(it.id, "pod gone" if owner else "never used"))
    return changes


def _given_anew(
    allocations: Sequence[Allocation], owners: Mapping[str, Owner | None], granted: Iterable[Granted]
) -> set[str]:
    """Those whose container has a later answer: the kubelet keeps one of each resource."""
    order = {it.id: number for number, it in enumerate(allocations)}
    latest = {(it.uid, it.container, it.resource): order.get(it.allocation, -1) for it in granted}
    return {
        it.id
        for it in allocations
        if (owner := owners[it.id])
        and latest.get((owner.uid, owner.container, it.resource), -1) > order[it.id]
    }


def _forgotten(
    it: Allocation, owner: Owner | None, bearers: Mapping[tuple[str, str], str], evidence: Evidence
) -> bool:
    """Whether a kubelet that began without its memory dropped it, not the end of its pod.

    Where cgroups can not be seen, a pod of its name stands for its pod, unless the kubelet knows that one.
    """
    if owner is None or "" in (it.life, evidence.life) or it.life == evidence.life:
        return False
    if evidence.running is not None:
        return owner.uid in evidence.running
    name = (owner.namespace, owner.pod)
    return bool(owner.pod) and name in (evidence.pods or {}) and bearers.get(name, owner.uid) == owner.uid


def slices(
    allocations: Sequence[Allocation],
    evidence: Evidence,
    rebooted: Collection[str] = (),
    busy: Collection[str] = (),
) -> list[Remark | Remove]:
    """What the hardware lacks of these allocations in use, and what it has too much of ours.

    `rebooted` are the allocations made before the last boot, which took their slices.
    """
    changes: list[Remark | Remove] = []
    for vendor, there in (evidence.partitions or {}).items():
        ids = {it.id for it in there}
        mine = [it for it in allocations if it.vendor == vendor and it.state is AllocationState.DONE]
        for it in mine:
            text = _missing([one for one in it.partitions if one not in ids], it.id in rebooted)
            if text != it.reason and it.reason != FORGOTTEN and it.id not in busy:
                changes.append(Remark(it.id, text))
        if evidence.granted is not None:
            owned = {it.id for it in allocations} | {it.allocation for it in evidence.granted} | set(busy)
            marks = dict.fromkeys(it.allocation for it in there if it.allocation is not None)
            changes += (Remove(vendor, mark) for mark in marks if mark not in owned)
    return changes


def _missing(slices_gone: Sequence[str], rebooted: bool) -> str:
    if not slices_gone:
        return ""
    names = ", ".join(slices_gone)
    if rebooted:
        return f"the reboot took {names}; made again before the container starts"
    return f"{names} is gone from the hardware; made again when the container starts anew"


def _runs(owner: Owner | None, living: Collection[str], running: frozenset[str] | None) -> bool:
    """Whether another container of the pod is shown, or its cgroup is there."""
    return owner is not None and bool(owner.uid) and (owner.uid in living or owner.uid in (running or ()))


def _superseded(allocations: Sequence[Allocation], owners: Mapping[str, Owner | None]) -> set[str]:
    """Those of which a later allocation of another pod holds an ID: the kubelet had freed it by then.

    Two of the same moment have no order: they were read back from the kubelet, not answered by us.
    """
    later: dict[tuple[str, str], list[tuple[float, str]]] = {}
    over: set[str] = set()
    for it in reversed(allocations):
        mine = owners[it.id]
        uid = mine.uid if mine else ""
        places = [(it.resource, device_id) for device_id in it.ids]
        newer = [holder for place in places for holder in later.get(place, ())]
        if any(since > it.since and uid != other for since, other in newer):
            over.add(it.id)
        if uid:
            for place in places:
                later.setdefault(place, []).append((it.since, uid))
    return over


def _named(
    owners: Mapping[str, Owner | None], granted: Sequence[Allocation], pods: Pods
) -> dict[str, Owner | None]:
    """The owners with the names that PodResources adds; one container shown names its whole pod.

    A kubelet up to 1.33 also lists pods that have ended, whose IDs may be another's by now: the name that an
    owner has stays while it fits, and one that no other pod of ours bears comes first.
    """
    known = {it.uid: (it.namespace, it.pod) for it in owners.values() if it and it.uid and it.pod}
    bearers = {name: uid for uid, name in known.items()}
    nameless = [it for it in granted if it.ids and not _shown(it, owners[it.id], pods)]
    holders = _holders(pods) if nameless else {}
    for it in nameless:
        if owner := owners[it.id]:
            names = holders.get((owner.container, it.resource, it.ids[0]), ())
            fits = [name for name in names if _holds(it, pods[name][owner.container])]
            if fits:
                known[owner.uid] = min(fits, key=lambda name: bearers.get(name, owner.uid) != owner.uid)
    return {allocation: it and _called(it, known.get(it.uid)) for allocation, it in owners.items()}


def _holders(pods: Pods) -> dict[tuple[str, str, str], list[tuple[str, str]]]:
    """Container name, resource and device ID to the pods that show them."""
    holders: dict[tuple[str, str, str], list[tuple[str, str]]] = {}
    for name, containers in pods.items():
        for container, resources in containers.items():
            for resource, ids in resources.items():
                for device_id in ids:
                    holders.setdefault((container, resource, device_id), []).append(name)
    return holders


def _called(owner: Owner, name: tuple[str, str] | None) -> Owner:
    return replace(owner, namespace=name[0], pod=name[1]) if name and owner.uid else owner


def _owner(it: Allocation, grant: Granted | None) -> Owner | None:
    if grant is None or (it.owner is not None and it.owner.uid == grant.uid):
        return it.owner
    return Owner(grant.uid, grant.container)


def _shown(it: Allocation, owner: Owner | None, pods: Pods) -> bool:
    if owner is None:
        return any(_holds(it, resources) for containers in pods.values() for resources in containers.values())
    return _holds(it, pods.get((owner.namespace, owner.pod), {}).get(owner.container, {}))


def _holds(it: Allocation, resources: Mapping[str, frozenset[str]]) -> bool:
    return resources.get(it.resource, frozenset()).issuperset(it.ids)
