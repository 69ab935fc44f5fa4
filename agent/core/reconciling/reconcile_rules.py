"""Reconciles the ledger with the evidence: which container has an allocation, and which are over. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from msgspec import Struct

from agent.core.model import Allocation, AllocationSource, AllocationState, Owner
from agent.core.reconciling.reconcile_changes import (
    AskKubelet,
    Change,
    Confirm,
    Release,
    Revive,
    SetForgotten,
)
from agent.core.reconciling.reconcile_evidence import CheckpointAnswer, Evidence, Pods

#: Seconds within which the kubelet has read an answer, however busy the node is. The kubelet keeps the answer
#: in memory at once (pkg/kubelet/cm/devicemanager/manager.go, allocateContainerResources): each checkpoint
#: that it writes later has the answer.
TAKEN_WITHIN = 3.0


def reconcile(
    allocations: Sequence[Allocation],
    evidence: Evidence,
    now: float,
    grace: float,
    busy: Collection[str] = (),
    fresh: Collection[str] = (),
    abandoned: Collection[str] = (),
) -> list[Change]:
    """The changes that these allocations in use need. The oldest allocation comes first.

    `busy`: ids of allocations that are answered now. `fresh`: ids of allocations that were answered or got an
    owner while the evidence was read, so that the evidence may be older. `abandoned`: ids of allocations
    without an owner that were promised to pods that have ended. `now`, `grace`: seconds. A source that could
    not be read changes nothing.
    """
    grants = {it.allocation: it for it in evidence.granted or ()}
    holders = {it.id: _present_owner(it, grants.get(it.id)) for it in allocations}
    superseded = _superseded_ids(allocations, holders)
    latest = _latest_ids(allocations)
    nameable = [it for it in allocations if it.id in grants and it.id in latest and it.id not in superseded]
    owners = _add_pod_names(holders, nameable, evidence.pods or {})
    lives = _known_lives(allocations, grants, evidence)
    changes: list[Change] = [*_new_confirmations(allocations, owners, lives, grants)]
    if evidence.granted is None:
        return changes
    freed = _freed_ids(allocations, superseded, owners, lives, grants, evidence) if superseded else ()
    never_used = {*abandoned, *_overtaken_ids(allocations, grants, evidence)}
    releasable = {
        allocation.id
        for allocation in allocations
        if allocation.id not in busy
        and (
            now - allocation.since >= grace
            or allocation.id in freed
            or (allocation.id not in fresh and _was_known(allocation, grants, evidence))
            or (
                _is_untaken(allocation, now, never_used)
                and evidence.proven
                and _granted_before(allocation, evidence)
            )
        )
    }
    written = {it.id for it in allocations if it.id in grants and _granted_before(it, evidence)}
    judged_ids = releasable | written.difference(busy)
    judged = [it for it in allocations if it.id in judged_ids]
    cases = _build_cases(allocations, judged, owners, lives, superseded, freed, evidence, releasable)
    verdicts = (_decide(it, evidence) for it in cases)
    return [*changes, *(it for it in verdicts if it is not None)]


def confirmations(allocations: Sequence[Allocation], evidence: Evidence) -> list[Confirm]:
    """The owners of these allocations in use, and the lives of the kubelet that know them.

    Only the kubelet's checkpoint counts as evidence. The allocations come oldest first.
    """
    changes = reconcile(allocations, replace(evidence, pods=None), 0.0, math.inf)
    return [it for it in changes if isinstance(it, Confirm)]


def revivals(
    released: Iterable[Allocation],
    holders: Callable[[str, Collection[str]], Collection[Allocation]],
    evidence: Evidence,
) -> list[Revive]:
    """The allocations that were released although the kubelet grants and shows them, with proof.

    `holders` returns the allocations that have some of these device IDs of a resource by now.
    """
    if not evidence.proven or evidence.pods is None:
        return []
    grants = {it.allocation: it for it in evidence.granted or ()}
    granted = [it for it in released if it.id in grants]
    # PodResources names the pod of an allocation that was released before its owner was confirmed.
    owners = _add_pod_names(
        {it.id: _present_owner(it, grants[it.id]) for it in granted}, granted, evidence.pods
    )
    return [
        Revive(allocation.id)
        for allocation in granted
        if _is_listed(allocation, owners[allocation.id], evidence.pods)
        and not holders(allocation.resource, allocation.ids)
    ]


def _known_lives(
    allocations: Sequence[Allocation], grants: Collection[str], evidence: Evidence
) -> Mapping[str, str]:
    """Allocation to the last life of the kubelet that is known to have known it or to have ended it.

    A kubelet starts with the content of its checkpoint. That file may be old, for instance from a backup. A
    life writes its answers in their order, so a file that has one answer had all earlier ones, too.

    An example: one life gave the answers a, b and c, and the file now has b alone. Then the file is younger
    than b. The present life knew a and has dropped a. The file may be older than c: whether the present life
    ever knew c is not known, and c keeps its former life.

    Once another life has begun, the evidence proves nothing for the life that it was read from.
    """
    if not (evidence.life and evidence.steady) or not evidence.proven or evidence.granted is None:
        return {it.id: it.life for it in allocations}
    newest: dict[str, int] = {}
    for number, allocation in enumerate(allocations):
        if allocation.id in grants and _is_answered_here(allocation):
            newest[allocation.life] = number
    newest.pop("", None)
    return {
        allocation.id: evidence.life
        if allocation.id in grants or number < newest.get(allocation.life, 0)
        else allocation.life
        for number, allocation in enumerate(allocations)
    }


def _new_confirmations(
    allocations: Iterable[Allocation],
    owners: Mapping[str, Owner | None],
    lives: Mapping[str, str],
    grants: Collection[str],
) -> Iterable[Confirm]:
    for allocation in allocations:
        owner = owners[allocation.id]
        known = allocation.state is AllocationState.DONE or allocation.id not in grants
        if owner is not None and (owner, lives[allocation.id], known) != (
            allocation.owner,
            allocation.life,
            True,
        ):
            yield Confirm(allocation.id, owner, lives[allocation.id])


class _Case(Struct, frozen=True):
    """One allocation, with all facts that decide whether it is over."""

    allocation: Allocation
    owner: Owner | None
    #: The kubelet's checkpoint has it.
    granted: bool
    #: PodResources shows its IDs in its container.
    shown: bool
    #: PodResources shows another container of its pod, or its pod has a cgroup.
    runs: bool
    #: Its container has a later answer: the kubelet keeps one answer for each resource.
    given_anew: bool
    #: A later allocation of another pod has one of its IDs.
    superseded: bool
    #: The kubelet is known to have freed it before that.
    freed: bool
    #: It was read from PodResources, and the kubelet's checkpoint has an answer with the same IDs.
    known_better: bool
    #: The kubelet started without its record of it, although its pod has not ended.
    forgotten: bool
    #: It may be released. The kubelet may only be asked about an allocation that is too young for that.
    releasable: bool


def _decide(case: _Case, evidence: Evidence) -> Change | None:
    """The change that the first fitting rule asks for."""
    allocation = case.allocation
    if not case.releasable:
        is_doubted = evidence.pods is not None and case.granted and not (case.shown or case.runs)
        return AskKubelet(allocation.id, allocation.resource, is_young=True) if is_doubted else None
    if allocation.state is not AllocationState.DONE:
        return None if case.granted else Release(allocation.id, "never answered")
    if evidence.pods is None:
        return None
    if case.freed and not case.forgotten:
        return Release(allocation.id, "superseded")
    if not (evidence.settled or _granted_before(allocation, evidence)):
        return None
    if case.given_anew:
        return Release(allocation.id, "given again")
    if case.forgotten:
        return None if allocation.forgotten else SetForgotten(allocation.id, forgotten=True)
    if case.superseded:
        return Release(allocation.id, "superseded")
    if case.known_better:
        return Release(allocation.id, "the kubelet's checkpoint knows it better")
    if allocation.forgotten and (case.shown or case.granted or case.runs):
        return SetForgotten(allocation.id, forgotten=False)
    if case.shown or case.runs:
        return None
    if case.granted:
        return AskKubelet(allocation.id, allocation.resource)
    return Release(allocation.id, "pod gone" if case.owner else "never used")


def _was_known(allocation: Allocation, grants: Collection[str], evidence: Evidence) -> bool:
    """Whether this life of the kubelet has shown the pod, or has dropped an allocation that it had written.

    The kubelet shows a pod until that pod is over, so such an allocation needs no grace. A pod name in the
    owner comes from PodResources alone.
    """
    known = allocation.owner is not None and (allocation.owner.pod != "" or allocation.id not in grants)
    return known and _granted_before(allocation, evidence)


def _is_untaken(allocation: Allocation, now: float, never_used: Collection[str]) -> bool:
    """Whether the kubelet has taken the answer by now, or never will.

    An answer of an earlier process of the agent cannot be under way any more. An answer to a pod that has
    ended, or one that a later answer has overtaken, can be under way for TAKEN_WITHIN; the kubelet may have
    dropped that answer before the agent saw its owner.
    """
    is_over = allocation.id in never_used and now - allocation.since >= TAKEN_WITHIN
    return allocation.owner is None and (is_over or allocation.source is AllocationSource.CHECKPOINT)


def _overtaken_ids(
    allocations: Sequence[Allocation], grants: Collection[str], evidence: Evidence
) -> set[str]:
    """Ids of answers that the kubelet's checkpoint lacks although it has a later one of the same life.

    The kubelet admits one container at a time, and keeps each answer in memory before it asks for the next. A
    file with one answer was written from a memory that had received all earlier ones. A kubelet without its
    record of running containers asks for several at a time, so nothing follows from the file then.
    """
    overtaken: set[str] = set()
    if any(it.forgotten or it.life != evidence.life for it in allocations if it.owner is not None):
        return overtaken
    is_later_there = False
    for allocation in reversed(allocations):
        if not (_is_answered_here(allocation) and _granted_before(allocation, evidence)):
            continue
        if allocation.id in grants:
            is_later_there = True
        elif is_later_there:
            overtaken.add(allocation.id)
    return overtaken


def _granted_before(allocation: Allocation, evidence: Evidence) -> bool:
    """Whether this life of the kubelet has granted the allocation; then it need not have served for long.

    A kubelet forgets nothing during one life, and drops nothing before it has heard of all its pods
    (pkg/kubelet/cm/devicemanager/manager.go, UpdateAllocatedDevices).
    """
    return evidence.steady and allocation.life == evidence.life != ""


def _build_cases(
    allocations: Sequence[Allocation],
    wanted: Iterable[Allocation],
    owners: Mapping[str, Owner | None],
    lives: Mapping[str, str],
    superseded: Collection[str],
    freed: Collection[str],
    evidence: Evidence,
    releasable: Collection[str],
) -> Iterable[_Case]:
    """The cases of these allocations, without those that are plainly in use."""
    pods, granted = evidence.pods or {}, evidence.granted or ()
    grants = {it.allocation for it in granted}
    current = (it for it in allocations if it.id not in superseded)
    shown = {it.id for it in current if _is_listed(it, _owner_with_name(owners[it.id]), pods)}
    running = {owner.uid for name, owner in owners.items() if owner and name in shown} | (
        evidence.running or frozenset()
    )
    read = any(it.source is AllocationSource.POD_RESOURCES for it in allocations)
    answers = {(it.resource, frozenset(it.ids)) for it in granted} if read else set()
    anew = _ids_given_anew(allocations, owners, granted)
    uids_by_name = _uids_by_name(allocations, owners, grants)
    for allocation in wanted:
        is_known = allocation.id in shown and allocation.id in grants and allocation.id not in anew
        if is_known and allocation.state is AllocationState.DONE and not (allocation.forgotten or read):
            continue  # every source shows the allocation: a case would change nothing
        owner = owners[allocation.id]
        missing = allocation.id not in grants and allocation.id not in shown
        yield _Case(
            allocation,
            owner,
            granted=allocation.id in grants,
            shown=allocation.id in shown,
            runs=owner is not None and owner.uid != "" and owner.uid in running,
            given_anew=allocation.id in anew,
            superseded=allocation.id in superseded,
            freed=allocation.id in freed,
            known_better=allocation.source is AllocationSource.POD_RESOURCES
            and (allocation.resource, frozenset(allocation.ids)) in answers,
            forgotten=missing and _is_forgotten(lives[allocation.id], owner, uids_by_name, evidence),
            releasable=allocation.id in releasable,
        )


def _uids_by_name(
    allocations: Sequence[Allocation], owners: Mapping[str, Owner | None], grants: Collection[str]
) -> Mapping[tuple[str, str], str]:
    """(namespace, pod) to uid: a name belongs to the newest pod, unless the kubelet grants another pod."""
    named = [
        (allocation.id in grants, (owner.namespace, owner.pod), owner.uid)
        for allocation in allocations
        if (owner := owners[allocation.id])
    ]
    return {name: uid for _, name, uid in sorted(named, key=lambda it: it[0])}


def _is_forgotten(
    life: str, owner: Owner | None, uids_by_name: Mapping[tuple[str, str], str], evidence: Evidence
) -> bool:
    """Whether a kubelet that started without its record dropped an allocation of an earlier life.

    Where cgroups cannot be read, a listed pod of that name counts as the owner's pod, unless the kubelet
    grants something to another pod of that name.
    """
    if owner is None or "" in (life, evidence.life) or life == evidence.life:
        return False
    if evidence.running is not None:
        return owner.uid in evidence.running
    name = (owner.namespace, owner.pod)
    return (
        owner.pod != "" and name in (evidence.pods or {}) and uids_by_name.get(name, owner.uid) == owner.uid
    )


def _ids_given_anew(
    allocations: Sequence[Allocation], owners: Mapping[str, Owner | None], granted: Iterable[CheckpointAnswer]
) -> set[str]:
    """Ids of allocations of containers with a later answer: the kubelet keeps one for each resource."""
    order = {it.id: number for number, it in enumerate(allocations)}
    latest = {(it.uid, it.container, it.resource): order.get(it.allocation, -1) for it in granted}
    return {
        allocation.id
        for allocation in allocations
        if (owner := owners[allocation.id])
        and latest.get((owner.uid, owner.container, allocation.resource), -1) > order[allocation.id]
    }


def _superseded_ids(allocations: Sequence[Allocation], owners: Mapping[str, Owner | None]) -> set[str]:
    """Ids of allocations with an ID that a later allocation of another pod has: the kubelet had freed it.

    The order of the ledger counts, since a clock that was set back makes times equal or turns them round.
    Allocations that were recovered from the kubelet at the same moment have no order.
    """
    later: dict[str, list[Allocation]] = {}
    held_later: dict[str, set[str]] = {}
    over: set[str] = set()
    for allocation in reversed(allocations):
        uid, read = _uid(owners[allocation.id]), _recovered_at(allocation)
        seen = held_later.setdefault(allocation.resource, set())
        if not seen.isdisjoint(allocation.ids) and any(
            uid != _uid(owners[other.id])
            and (read is None or read != _recovered_at(other))
            and not set(allocation.ids).isdisjoint(other.ids)
            for other in later[allocation.resource]
        ):
            over.add(allocation.id)
        if uid:
            later.setdefault(allocation.resource, []).append(allocation)
            seen.update(allocation.ids)
    return over


def _freed_ids(
    allocations: Sequence[Allocation],
    superseded: Collection[str],
    owners: Mapping[str, Owner | None],
    lives: Mapping[str, str],
    grants: Collection[str],
    evidence: Evidence,
) -> set[str]:
    """Ids of superseded allocations that the kubelet freed before it granted one of their IDs again.

    A kubelet gives out no ID that is in use (pkg/kubelet/cm/devicemanager/manager.go, devicesToAllocate), but
    a kubelet that lost its record may. Its life shows that it did not, or the cgroups do: a pod without a
    cgroup has no container that could use the device.
    """
    granted_later: dict[str, set[str]] = {}
    freed: set[str] = set()
    for allocation in reversed(allocations):
        later, uid = granted_later.setdefault(allocation.resource, set()), _uid(owners[allocation.id])
        if allocation.id in grants:
            later.update(allocation.ids)
        elif allocation.id in superseded and not later.isdisjoint(allocation.ids):
            same_life = evidence.steady and lives[allocation.id] == evidence.life != ""
            has_ended = uid != "" and evidence.running is not None and uid not in evidence.running
            if same_life or has_ended:
                freed.add(allocation.id)
    return freed


def _uid(owner: Owner | None) -> str:
    return owner.uid if owner else ""


def _is_answered_here(allocation: Allocation) -> bool:
    """Whether this agent answered the Allocate. Only then the order of the ledger is the kubelet's order."""
    return _recovered_at(allocation) is None


def _recovered_at(allocation: Allocation) -> float | None:
    """When the allocation was recovered from the kubelet; None where this agent answered it."""
    read = allocation.source in (AllocationSource.KUBELET, AllocationSource.POD_RESOURCES)
    return allocation.since if read else None


def _latest_ids(allocations: Sequence[Allocation]) -> set[str]:
    """Ids of allocations that share no device ID with a later allocation.

    Where IDs were given again, the pod that is shown with them has the later allocation. The kubelet's
    checkpoint is read before PodResources, and may lack that allocation.
    """
    asked_later: dict[str, set[str]] = {}
    latest: set[str] = set()
    for allocation in reversed(allocations):
        later = asked_later.setdefault(allocation.resource, set())
        if later.isdisjoint(allocation.ids):
            latest.add(allocation.id)
        later.update(allocation.ids)
    return latest


def _add_pod_names(
    owners: Mapping[str, Owner | None], granted: Sequence[Allocation], pods: Pods
) -> dict[str, Owner | None]:
    """The owners, with the pod names that PodResources adds. One listed container names its whole pod.

    A kubelet up to 1.33 also lists pods that have ended. Another pod may have their IDs by now: an owner
    keeps its name while it fits, and a name that no other owner has comes first.
    """
    known = {it.uid: (it.namespace, it.pod) for it in owners.values() if it and it.uid and it.pod}
    uids_by_name = {name: uid for uid, name in known.items()}
    nameless = [it for it in granted if it.ids and not _is_listed(it, owners[it.id], pods)]
    holders = _listed_pods(pods, {it.ids[0] for it in nameless}) if nameless else {}
    for allocation in nameless:
        if owner := owners[allocation.id]:
            names = holders.get((owner.container, allocation.resource, allocation.ids[0]), ())
            fits = [name for name in names if has_ids(allocation, pods[name][owner.container])]
            if fits:
                known[owner.uid] = min(fits, key=lambda name: uids_by_name.get(name, owner.uid) != owner.uid)
    return {name: it and _with_name(it, known.get(it.uid)) for name, it in owners.items()}


def _listed_pods(pods: Pods, wanted: Collection[str]) -> dict[tuple[str, str, str], list[tuple[str, str]]]:
    """(container, resource, device ID) to the pods that are listed with them, for the wanted IDs."""
    holders: dict[tuple[str, str, str], list[tuple[str, str]]] = {}
    for name, containers in pods.items():
        for container, resources in containers.items():
            for resource, ids in resources.items():
                for device_id in ids.intersection(wanted):
                    holders.setdefault((container, resource, device_id), []).append(name)
    return holders


def _with_name(owner: Owner, name: tuple[str, str] | None) -> Owner:
    if not name or not owner.uid or name == (owner.namespace, owner.pod):
        return owner  # nearly always: to make an equal value for each pod takes a third of a pass
    return replace(owner, namespace=name[0], pod=name[1])


def _present_owner(allocation: Allocation, grant: CheckpointAnswer | None) -> Owner | None:
    if grant is None or (allocation.owner is not None and allocation.owner.uid == grant.uid):
        return allocation.owner
    return Owner(grant.uid, grant.container)


def _is_listed(allocation: Allocation, owner: Owner | None, pods: Pods) -> bool:
    """Whether PodResources lists the IDs in the owner's container; without an owner, in any container."""
    if owner is None:
        listed = chain.from_iterable(containers.values() for containers in pods.values())
        return any(has_ids(allocation, resources) for resources in listed)
    return has_ids(allocation, pods.get((owner.namespace, owner.pod), {}).get(owner.container, {}))


def _owner_with_name(owner: Owner | None) -> Owner | None:
    """The owner if the name of its pod is known, else None: then a listed container of any pod counts."""
    return owner if owner and owner.pod else None


def has_ids(allocation: Allocation, resources: Mapping[str, frozenset[str]]) -> bool:
    """Whether a container's lists, resource to device IDs, have the allocation's IDs."""
    return resources.get(allocation.resource, frozenset()).issuperset(allocation.ids)
