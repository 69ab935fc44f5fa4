"""The allocations that a quick pass judges: those for which the evidence may say something new. Pure.

An allocation that every source shows as before, and that has nothing in common with one that has changed,
needs no change, whatever the time is. It is left out, together with its answer and its pod.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from itertools import islice
from types import MappingProxyType

from msgspec import Struct

from agent.core.model import Allocation, AllocationSource, AllocationState, Owner
from agent.core.reconciling.reconcile_evidence import CheckpointAnswer, Evidence, Pods
from agent.core.reconciling.reconcile_rules import has_ids

#: Returns the allocations in use that have some of these device IDs of a resource.
Holders = Callable[[str, Collection[str]], Collection[Allocation]]

#: Where allocations have more device IDs, none is kept for the next pass: the lists of their pods would take
#: megabytes, and the reader of PodResources does not return the same values for an answer of such a length.
MAX_IDS = 16_384


class AgreedAllocation(Struct, frozen=True):
    """An allocation that every source shows in its owner's container, with what they show.

    No other allocation in use has one of its device IDs, no other answer is for its container and resource,
    and its pod has one name.
    """

    allocation: Allocation
    answer: CheckpointAnswer
    #: (namespace, name) of its pod, and what PodResources lists of that pod.
    pod: tuple[str, str]
    containers: Mapping[str, Mapping[str, frozenset[str]]]


#: Id of an allocation to what every source shows of it.
Agreed = Mapping[str, AgreedAllocation]
NONE_AGREED: Agreed = MappingProxyType({})


class AllocationsToJudge(Struct, frozen=True):
    """Allocations in use, oldest first, with the part of the evidence that decides about them."""

    allocations: Sequence[Allocation]
    evidence: Evidence
    #: What the next pass need not judge unless something changes.
    agreed: Agreed = NONE_AGREED
    #: What is not judged now.
    left_out: Agreed = NONE_AGREED


def allocations_to_judge(
    allocations: Sequence[Allocation], evidence: Evidence, before: Agreed, holders: Holders
) -> AllocationsToJudge:
    """The allocations in use that may need a change. To judge all gives the same changes, in the same order.

    `before`: `agreed` of an earlier pass. Values are compared by identity: a source returns the same value
    for what has not changed.
    """
    granted, pods, life = evidence.granted, evidence.pods, evidence.life
    grants = {it.allocation: it for it in granted or ()}
    if granted is None or pods is None or len(grants) != len(granted):
        return AllocationsToJudge(allocations, evidence, before)
    same: dict[str, AgreedAllocation] = {}
    changed: list[Allocation] = []
    for allocation in allocations:  # the one walk over all in Python: lookups alone
        name = allocation.id
        known = before.get(name)
        if (
            known is not None
            and known.allocation is allocation
            and known.answer is grants.get(name)
            and known.containers is pods.get(known.pod)
            and allocation.life == life
        ):
            same[name] = known
        else:
            changed.append(allocation)
    sharing = _sharing_ids(changed, holders)
    left_out: dict[str, AgreedAllocation] = {}
    judged, part = allocations, evidence
    if all(it.ids for it in changed):  # one without IDs is listed in every container
        found = _pods_to_find(changed, grants, pods)
        left_out = {**same}
        for related in _related_ids(changed, same, sharing, grants, found):
            del left_out[related]
        judged = [it for it in allocations if it.id not in left_out]
        named = {pod: pods[pod] for it in judged if (pod := _pod_name(it.owner)) in pods}
        left = tuple(it for it in granted if it.allocation not in left_out)
        part = replace(evidence, granted=left, pods={**found, **named})
    alone = (it for it in _agreed(judged, grants, part) if it.allocation.id not in sharing)
    agreed = {**left_out, **{it.allocation.id: it for it in alone}}
    is_small = sum(len(it.allocation.ids) for it in agreed.values()) <= MAX_IDS
    return AllocationsToJudge(judged, part, agreed if is_small else NONE_AGREED, left_out)


def _sharing_ids(changed: Sequence[Allocation], holders: Holders) -> set[str]:
    """Ids of allocations that share a device ID: changed ones, and those that they share it with."""
    sharing: set[str] = set()
    for allocation in changed:
        names = {allocation.id, *(it.id for it in holders(allocation.resource, allocation.ids))}
        if len(names) > 1:
            sharing |= names
    return sharing


def _pods_to_find(
    changed: Sequence[Allocation], grants: Mapping[str, CheckpointAnswer], pods: Pods
) -> dict[tuple[str, str], Mapping[str, Mapping[str, frozenset[str]]]]:
    """The pods that are listed with the IDs of a changed allocation that is not listed under its own pod."""
    wanted = {it.ids[0] for it in changed if not _is_listed(it, grants.get(it.id), pods)}
    if not wanted:
        return {}
    return {name: containers for name, containers in pods.items() if _lists_one_of(wanted, containers)}


def _lists_one_of(ids: Set[str], containers: Mapping[str, Mapping[str, frozenset[str]]]) -> bool:
    for resources in containers.values():
        for listed in resources.values():
            if not listed.isdisjoint(ids):
                return True
    return False


def _is_listed(allocation: Allocation, answer: CheckpointAnswer | None, pods: Pods) -> bool:
    owner = allocation.owner
    if owner is None or not owner.pod or (answer is not None and answer.uid != owner.uid):
        return False
    return has_ids(allocation, pods.get(_pod_name(owner), {}).get(owner.container, {}))


def _related_ids(
    changed: Sequence[Allocation],
    same: dict[str, AgreedAllocation],
    sharing: Collection[str],
    grants: Mapping[str, CheckpointAnswer],
    found: Pods,
) -> set[str]:
    """Ids of unchanged allocations that decide about the changed ones, or that these decide about.

    They have a device ID, a pod or the name of a pod in common. The newest one shows that the kubelet has
    received every earlier answer.
    """
    related = [*changed, *(same[name].allocation for name in sharing if name in same)]
    uids = {uid for it in related for uid in _uids(it, grants.get(it.id))}
    names = {*found, *(_pod_name(it.owner) for it in related)}
    of_pods = [name for name, it in same.items() if it.pod in names or it.answer.uid in uids]
    if others := {same[it].pod for it in of_pods} - names:
        of_pods += [name for name, it in same.items() if it.pod in others]
    # Those that were recovered from the kubelet have no order.
    ordered = (it for it in reversed(same) if same[it].allocation.source is not AllocationSource.KUBELET)
    return {*of_pods, *islice(ordered, 1)}


def _uids(allocation: Allocation, answer: CheckpointAnswer | None) -> Iterator[str]:
    """The uids of the pods to which the allocation may belong."""
    for place in (answer, allocation.owner, allocation.claim):
        if place is not None:
            yield place.uid


def _agreed(
    judged: Sequence[Allocation], grants: Mapping[str, CheckpointAnswer], evidence: Evidence
) -> Iterator[AgreedAllocation]:
    """Those that every source shows, and that no other allocation of the same pod contradicts."""
    places = Counter((it.uid, it.container, it.resource) for it in evidence.granted or ())
    names: dict[str, set[tuple[str, str]]] = {}
    for allocation in judged:
        if (owner := allocation.owner) is not None and owner.pod:
            names.setdefault(owner.uid, set()).add(_pod_name(owner))
    for allocation in judged:
        owner, answer = allocation.owner, grants.get(allocation.id)
        if (
            owner is not None
            and answer is not None
            and owner.uid
            and allocation.ids
            and allocation.state is AllocationState.DONE
            and allocation.source is not AllocationSource.POD_RESOURCES
            and not allocation.forgotten
            and _is_listed(allocation, answer, evidence.pods or {})
            and (place := (answer.uid, answer.container, answer.resource))
            == (owner.uid, owner.container, allocation.resource)
            and places[place] == len(names[owner.uid]) == 1
            and {*answer.ids} == {*allocation.ids}
            and _has_own_claim(allocation, owner)
        ):
            pod = _pod_name(owner)
            yield AgreedAllocation(allocation, answer, pod, (evidence.pods or {})[pod])


def _has_own_claim(allocation: Allocation, owner: Owner) -> bool:
    """Whether the allocation has the claim of its container, or none."""
    claim = allocation.claim
    return claim is None or (claim.uid, claim.container) == (owner.uid, owner.container)


def _pod_name(owner: Owner | None) -> tuple[str, str]:
    """(namespace, name) of the owner's pod; two empty texts where they are not known."""
    return (owner.namespace, owner.pod) if owner else ("", "")
