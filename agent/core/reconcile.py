"""Who holds an allocation, and which are over: the kubelet's own words against the ledger. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from agent.core.model import Allocation, Owner

#: (namespace, pod) to container to resource to device IDs, as PodResources lists them.
Pods = Mapping[tuple[str, str], Mapping[str, Mapping[str, frozenset[str]]]]


@dataclass(frozen=True, slots=True)
class Granted:
    """One answer of ours as the kubelet's checkpoint keeps it."""

    allocation: str
    uid: str
    container: str


@dataclass(frozen=True, slots=True)
class Confirm:
    allocation: str
    owner: Owner
    alive: bool


@dataclass(frozen=True, slots=True)
class Release:
    allocation: str
    reason: str


Change = Confirm | Release


def reconcile(
    allocations: Sequence[Allocation],
    granted: Iterable[Granted] | None,
    pods: Pods | None,
    now: float,
    grace: float,
) -> list[Change]:
    """What the ledger must learn. `None` for a source that could not be read: nothing is released then.

    An allocation is over when PodResources no longer shows its pod and either the kubelet's checkpoint has
    dropped our answer or the pod had been seen alive before; or when its IDs have gone to another pod.
    """
    grants = {it.allocation: it for it in granted or ()}
    owners = {it.id: _owner(it, grants.get(it.id), pods or {}) for it in allocations}
    alive = {it.id for it in allocations if _shown(it, owners[it.id], pods or {})}
    named = {owner.uid: owner for owner in owners.values() if owner and owner.uid and owner.pod}
    changes: list[Change] = []
    for it in allocations:
        owner = _named(owners[it.id], named)
        if owner is not None and (owner != it.owner or (it.id in alive and not it.seen_alive)):
            changes.append(Confirm(it.id, owner, it.id in alive))
    if granted is None or pods is None:
        return changes
    living = {owner.uid for name, owner in owners.items() if owner and owner.uid and name in alive}
    for it in allocations:
        owner = owners[it.id]
        if it.id in alive or (owner is not None and owner.uid in living) or now - it.since < grace:
            continue
        if reason := _over(it, owner, it.id in grants, pods, _taken(it, allocations, owners)):
            changes.append(Release(it.id, reason))
    return changes


def _over(it: Allocation, owner: Owner | None, is_granted: bool, pods: Pods, taken: bool) -> str:
    if taken:
        return "superseded"
    if not is_granted:
        return "pod gone" if owner else "never used"
    known = (it.owner and it.owner.pod) or (owner and owner.pod)
    if it.seen_alive or (known and owner and (owner.namespace, owner.pod) not in pods):
        return "pod gone"
    return ""  # granted and never seen: an init container's, or PodResources is behind


def _taken(it: Allocation, allocations: Sequence[Allocation], owners: Mapping[str, Owner | None]) -> bool:
    """Whether a later allocation of another pod holds one of these IDs."""
    mine = owners[it.id]
    return any(
        other.since >= it.since
        and other.id != it.id
        and other.resource == it.resource
        and not set(other.ids).isdisjoint(it.ids)
        and (theirs := owners[other.id]) is not None
        and bool(theirs.uid)
        and (mine is None or mine.uid != theirs.uid)
        for other in allocations
    )


def _owner(it: Allocation, grant: Granted | None, pods: Pods) -> Owner | None:
    """The checkpoint proves pod and container; PodResources adds the names."""
    if grant is None:
        return it.owner
    owner = it.owner if it.owner and it.owner.uid == grant.uid else Owner(grant.uid, grant.container)
    if owner.pod:
        return owner
    for (namespace, pod), containers in pods.items():
        if _holds(it, containers.get(owner.container, {})):
            return replace(owner, namespace=namespace, pod=pod)
    return owner


def _named(owner: Owner | None, named: Mapping[str, Owner]) -> Owner | None:
    """The owner with its pod's name, which another container of the pod may have shown."""
    if owner is None or owner.pod or owner.uid not in named:
        return owner
    sibling = named[owner.uid]
    return replace(owner, namespace=sibling.namespace, pod=sibling.pod)


def _shown(it: Allocation, owner: Owner | None, pods: Pods) -> bool:
    if owner is None:
        return any(_holds(it, resources) for containers in pods.values() for resources in containers.values())
    return _holds(it, pods.get((owner.namespace, owner.pod), {}).get(owner.container, {}))


def _holds(it: Allocation, resources: Mapping[str, frozenset[str]]) -> bool:
    return resources.get(it.resource, frozenset()).issuperset(it.ids)
