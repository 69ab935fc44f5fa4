"""Who holds an allocation, and which are over: the kubelet's own words against the ledger. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from agent.core.model import Allocation, AllocationState, Owner, Plan

#: (namespace, pod) to container to resource to device IDs, as PodResources lists them.
Pods = Mapping[tuple[str, str], Mapping[str, Mapping[str, frozenset[str]]]]


@dataclass(frozen=True, slots=True)
class Granted:
    """One answer of ours as the kubelet's checkpoint keeps it."""

    allocation: str
    uid: str
    container: str
    resource: str = ""
    ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Confirm:
    allocation: str
    owner: Owner
    alive: bool


@dataclass(frozen=True, slots=True)
class Release:
    allocation: str
    reason: str


@dataclass(frozen=True, slots=True)
class Recall:
    """An allocation that only the kubelet still knew."""

    allocation: Allocation


Change = Confirm | Release
#: Where an allocation is known from that was read back.
KUBELET = "kubelet"


def recall(granted: Iterable[Granted], plan: Plan, now: float) -> list[Recall]:
    """The allocations behind these answers, as far as the cards of their IDs are known."""
    found: list[Recall] = []
    for it in granted:
        resource = plan.get(it.resource)
        cards = [card for device_id in it.ids if resource and (card := resource.card_of(device_id))]
        if resource is not None and cards and len(cards) == len(it.ids):
            allocation = Allocation(
                it.allocation,
                resource.name,
                resource.vendor,
                it.ids,
                tuple(card.uuid for card in cards),
                AllocationState.DONE,
                now,
                source=KUBELET,
                owner=Owner(it.uid, it.container),
            )
            found.append(Recall(allocation))
    return found


def reconcile(
    allocations: Sequence[Allocation],
    granted: Iterable[Granted] | None,
    pods: Pods | None,
    now: float,
    grace: float,
) -> list[Change]:
    """What the ledger must learn of these allocations, given oldest first.

    `None` stands for a source that could not be read: nothing is released then. An allocation is over when
    its IDs have gone to another pod, or when PodResources no longer shows its pod and either the kubelet's
    checkpoint has dropped our answer or the pod had been seen alive before.
    """
    grants = {it.allocation: it for it in granted or ()}
    holders = {it.id: _owner(it, grants.get(it.id)) for it in allocations}
    superseded = _superseded(allocations, holders)
    nameable = [it for it in allocations if it.id in grants and it.id not in superseded]
    owners = _named(holders, nameable, pods or {})
    alive = {it.id for it in allocations if it.id not in superseded and _shown(it, owners[it.id], pods or {})}
    changes: list[Change] = []
    for it in allocations:
        owner = owners[it.id]
        if owner is not None and (owner != it.owner or (it.id in alive and not it.seen_alive)):
            changes.append(Confirm(it.id, owner, it.id in alive))
    if granted is None or pods is None:
        return changes
    living = {owner.uid for name, owner in owners.items() if owner and owner.uid and name in alive}
    for it in allocations:
        owner = owners[it.id]
        if it.id in superseded:
            reason = "superseded"
        elif it.id in alive or (owner is not None and owner.uid in living):
            continue
        else:
            reason = _over(it, owner, it.id in grants, pods)
        if reason and now - it.since >= grace:
            changes.append(Release(it.id, reason))
    return changes


def _over(it: Allocation, owner: Owner | None, is_granted: bool, pods: Pods) -> str:
    if not is_granted:
        return "pod gone" if owner else "never used"
    named = owner is not None and bool(owner.pod)
    if it.seen_alive or (owner is not None and named and (owner.namespace, owner.pod) not in pods):
        return "pod gone"
    return ""  # granted and never seen: an init container's, or PodResources is behind


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
