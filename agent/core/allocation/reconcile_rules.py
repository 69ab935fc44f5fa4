"""Who holds an allocation, and which are over: what the sources say against the ledger. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from agent.core.allocation.reconcile_changes import Change, Confirm, Doubt, Forget, Release, Revive
from agent.core.allocation.reconcile_evidence import CheckpointAnswer, Evidence, Pods
from agent.core.model import Allocation, AllocationSource, AllocationState, Owner

#: Seconds within which a kubelet has read an answer of ours, however busy the node is. It keeps the answer in
#: memory at once (pkg/kubelet/cm/devicemanager/manager.go, allocateContainerResources): a checkpoint that it
#: writes later has it.
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
    """What must change for these allocations in use, given oldest first. `busy` are being answered now.

    `fresh` were given, or got their owner, while the evidence was read: some of it may be older.
    `abandoned` have no owner yet, and the pods that they were promised to have ended.
    A source that could not be read leaves everything as it is.
    """
    grants = {it.allocation: it for it in evidence.granted or ()}
    holders = {it.id: _owner(it, grants.get(it.id)) for it in allocations}
    superseded = _superseded(allocations, holders)
    latest = _latest(allocations)
    nameable = [it for it in allocations if it.id in grants and it.id in latest and it.id not in superseded]
    owners = _named(holders, nameable, evidence.pods or {})
    lives = _lives(allocations, grants, evidence)
    changes: list[Change] = [*_confirmed(allocations, owners, lives, grants)]
    if evidence.granted is None:
        return changes
    freed = _freed(allocations, superseded, owners, lives, grants, evidence) if superseded else ()
    old = [
        it
        for it in allocations
        if it.id not in busy
        and (
            now - it.since >= grace
            or it.id in freed
            or (it.id not in fresh and _was_known(it, grants, evidence))
            or (_is_untaken(it, now, abandoned) and evidence.proven and _granted_before(it, evidence))
        )
    ]
    cases = _cases(allocations, old, owners, lives, superseded, freed, evidence)
    verdicts = (_verdict(it, evidence) for it in cases)
    return [*changes, *(it for it in verdicts if it is not None)]


def kept(allocations: Sequence[Allocation], evidence: Evidence) -> list[Confirm]:
    """What the kubelet's checkpoint alone says of these allocations in use, given oldest first: who has them,
    and which life of the kubelet knows them.
    """
    its = reconcile(allocations, replace(evidence, pods=None), 0.0, math.inf)
    return [it for it in its if isinstance(it, Confirm)]


def revived(
    released: Iterable[Allocation], held: Mapping[str, Collection[str]], evidence: Evidence
) -> list[Revive]:
    """Those that were released although the kubelet, as it proves, grants and shows them.

    `held`: resource to IDs in use, which are another's by now.
    """
    if not evidence.proven or evidence.pods is None:
        return []
    grants = {it.allocation: it for it in evidence.granted or ()}
    granted = [it for it in released if it.id in grants]
    # One that was released before its owner was confirmed learns its pod's name from what is shown.
    owners = _named({it.id: _owner(it, grants[it.id]) for it in granted}, granted, evidence.pods)
    return [
        Revive(it.id)
        for it in granted
        if _shown(it, owners[it.id], evidence.pods)
        and not any(one in held.get(it.resource, ()) for one in it.ids)
    ]


def _lives(
    allocations: Sequence[Allocation], grants: Collection[str], evidence: Evidence
) -> Mapping[str, str]:
    """Allocation to the life of the kubelet that knew it last, or knows that it does not.

    A kubelet begins with what its file said at some time, which may be long ago: in place of a lost file is
    that of a backup, or what a disk had kept. It writes each answer: whatever of a life was answered before
    one that it still knows, it knew then; what was answered later, it may never have known.
    Once another life has begun, nothing more is said of this one: that one may have been heard by then.
    """
    if not (evidence.life and evidence.steady) or not evidence.proven or evidence.granted is None:
        return {it.id: it.life for it in allocations}
    newest = {it.life: number for number, it in enumerate(allocations) if it.id in grants and _is_ours(it)}
    newest.pop("", None)
    return {
        it.id: evidence.life if it.id in grants or number < newest.get(it.life, 0) else it.life
        for number, it in enumerate(allocations)
    }


def _confirmed(
    allocations: Iterable[Allocation],
    owners: Mapping[str, Owner | None],
    lives: Mapping[str, str],
    grants: Collection[str],
) -> Iterable[Confirm]:
    for it in allocations:
        owner = owners[it.id]
        known = it.state is AllocationState.DONE or it.id not in grants
        if owner is not None and (owner, lives[it.id], known) != (it.owner, it.life, True):
            yield Confirm(it.id, owner, lives[it.id])


@dataclass(frozen=True, slots=True)
class _Case:
    """One allocation, and what speaks for and against it."""

    allocation: Allocation
    owner: Owner | None
    #: The kubelet's checkpoint holds it.
    granted: bool
    #: PodResources shows its IDs in its container.
    shown: bool
    #: Another container of its pod is shown, or its pod's cgroup is there.
    runs: bool
    #: Its container has a later answer: the kubelet keeps one of each resource.
    given_anew: bool
    #: A later allocation of another pod holds an ID of it; and the kubelet is known to have freed it before.
    superseded: bool
    freed: bool
    #: It was read from PodResources, and the kubelet's checkpoint has an answer with its IDs.
    known_better: bool
    #: A kubelet that began without its memory dropped it, not the end of its pod.
    forgotten: bool


def _verdict(case: _Case, evidence: Evidence) -> Change | None:
    """The first rule that fits decides."""
    it = case.allocation
    if it.state is not AllocationState.DONE:
        return None if case.granted else Release(it.id, "never answered")
    if evidence.pods is None:
        return None
    if case.freed and not case.forgotten:
        return Release(it.id, "superseded")
    if not (evidence.settled or _granted_before(it, evidence)):
        return None
    if case.given_anew:
        return Release(it.id, "given anew")
    if case.forgotten:
        return None if it.forgotten else Forget(it.id, forgotten=True)
    if case.superseded:
        return Release(it.id, "superseded")
    if case.known_better:
        return Release(it.id, "the kubelet's checkpoint knows it better")
    if it.forgotten and (case.shown or case.granted or case.runs):
        return Forget(it.id, forgotten=False)
    if case.shown or case.runs:
        return None
    if case.granted:
        return Doubt(it.id, it.resource)
    return Release(it.id, "pod gone" if case.owner else "never used")


def _was_known(it: Allocation, grants: Collection[str], evidence: Evidence) -> bool:
    """Whether this very life of the kubelet has shown its pod, whose name it says nowhere else, or has let go
    of what it had written down.

    What it showed once it shows until the pod is over: no grace is needed for it to appear.
    """
    known = it.owner is not None and (it.owner.pod != "" or it.id not in grants)
    return known and _granted_before(it, evidence)


def _is_untaken(it: Allocation, now: float, abandoned: Collection[str]) -> bool:
    """Whether a kubelet that proves what it keeps has taken it already, or never will.

    No answer of an agent before this one is under way any more; one to a pod that has ended since, which the
    kubelet may have let go of before anybody saw its owner, is only for a moment.
    """
    is_over = it.id in abandoned and now - it.since >= TAKEN_WITHIN
    return it.owner is None and (is_over or it.source is AllocationSource.CHECKPOINT)


def _granted_before(it: Allocation, evidence: Evidence) -> bool:
    """Whether this very life of the kubelet has granted it: such a one need not have served for long.

    While it lives it forgets nothing, and lets go of nothing before it has heard of all its pods
    (pkg/kubelet/cm/devicemanager/manager.go, UpdateAllocatedDevices).
    """
    return evidence.steady and it.life == evidence.life != ""


def _cases(
    allocations: Sequence[Allocation],
    wanted: Iterable[Allocation],
    owners: Mapping[str, Owner | None],
    lives: Mapping[str, str],
    superseded: Collection[str],
    freed: Collection[str],
    evidence: Evidence,
) -> Iterable[_Case]:
    pods, granted = evidence.pods or {}, evidence.granted or ()
    grants = {it.allocation for it in granted}
    current = (it for it in allocations if it.id not in superseded)
    shown = {it.id for it in current if _shown(it, _by_name(owners[it.id]), pods)}
    running = {owner.uid for name, owner in owners.items() if owner and name in shown} | (
        evidence.running or frozenset()
    )
    read = any(it.source is AllocationSource.POD_RESOURCES for it in allocations)
    answers = {(it.resource, frozenset(it.ids)) for it in granted} if read else set()
    anew = _given_anew(allocations, owners, granted)
    bearers = _bearers(allocations, owners, grants)
    for it in wanted:
        owner = owners[it.id]
        missing = it.id not in grants and it.id not in shown
        yield _Case(
            it,
            owner,
            granted=it.id in grants,
            shown=it.id in shown,
            runs=owner is not None and owner.uid != "" and owner.uid in running,
            given_anew=it.id in anew,
            superseded=it.id in superseded,
            freed=it.id in freed,
            known_better=it.source is AllocationSource.POD_RESOURCES
            and (it.resource, frozenset(it.ids)) in answers,
            forgotten=missing and _forgotten(lives[it.id], owner, bearers, evidence),
        )


def _bearers(
    allocations: Sequence[Allocation], owners: Mapping[str, Owner | None], grants: Collection[str]
) -> Mapping[tuple[str, str], str]:
    """Namespace and pod to uid: a name is the newest pod's, unless the kubelet says whose it is."""
    named = [
        (it.id in grants, (owner.namespace, owner.pod), owner.uid)
        for it in allocations
        if (owner := owners[it.id])
    ]
    return {name: uid for _, name, uid in sorted(named, key=lambda it: it[0])}


def _forgotten(
    life: str, owner: Owner | None, bearers: Mapping[tuple[str, str], str], evidence: Evidence
) -> bool:
    """Whether an allocation of that life was dropped by a kubelet without memory.

    Where cgroups cannot be seen, a pod of its name stands for its pod, unless the kubelet knows that one.
    """
    if owner is None or "" in (life, evidence.life) or life == evidence.life:
        return False
    if evidence.running is not None:
        return owner.uid in evidence.running
    name = (owner.namespace, owner.pod)
    return owner.pod != "" and name in (evidence.pods or {}) and bearers.get(name, owner.uid) == owner.uid


def _given_anew(
    allocations: Sequence[Allocation], owners: Mapping[str, Owner | None], granted: Iterable[CheckpointAnswer]
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


def _superseded(allocations: Sequence[Allocation], owners: Mapping[str, Owner | None]) -> set[str]:
    """Those of which a later allocation of another pod holds an ID: the kubelet had freed it by then.

    The order is the ledger's: a clock that was set back makes times of answers equal, or turns them round.
    Those that were read back from the kubelet at one moment were not answered by us, and have none.
    """
    later: dict[str, list[Allocation]] = {}
    held_later: dict[str, set[str]] = {}
    over: set[str] = set()
    for it in reversed(allocations):
        uid, read = _uid(owners[it.id]), _read_back(it)
        seen = held_later.setdefault(it.resource, set())
        if not seen.isdisjoint(it.ids) and any(
            uid != _uid(owners[one.id])
            and (read is None or read != _read_back(one))
            and not set(it.ids).isdisjoint(one.ids)
            for one in later[it.resource]
        ):
            over.add(it.id)
        if uid:
            later.setdefault(it.resource, []).append(it)
            seen.update(it.ids)
    return over


def _freed(
    allocations: Sequence[Allocation],
    superseded: Collection[str],
    owners: Mapping[str, Owner | None],
    lives: Mapping[str, str],
    grants: Collection[str],
    evidence: Evidence,
) -> set[str]:
    """Superseded ones of which the kubelet granted an ID to a later one, and which it freed before that.

    A kubelet gives out no ID that it has given (pkg/kubelet/cm/devicemanager/manager.go, devicesToAllocate);
    one that lost its memory may. That it did not is shown by its life, or by the cgroups: a pod without one
    has no container that could use the device.
    """
    granted_later: dict[str, set[str]] = {}
    found: set[str] = set()
    for it in reversed(allocations):
        later, uid = granted_later.setdefault(it.resource, set()), _uid(owners[it.id])
        if it.id in grants:
            later.update(it.ids)
        elif it.id in superseded and not later.isdisjoint(it.ids):
            same_life = evidence.steady and lives[it.id] == evidence.life != ""
            has_ended = uid != "" and evidence.running is not None and uid not in evidence.running
            if same_life or has_ended:
                found.add(it.id)
    return found


def _uid(owner: Owner | None) -> str:
    return owner.uid if owner else ""


def _is_ours(it: Allocation) -> bool:
    """Whether we answered it: its place in the ledger is then the kubelet's order."""
    return _read_back(it) is None


def _read_back(it: Allocation) -> float | None:
    """When it was read back from the kubelet; None of one that we answered."""
    return it.since if it.source in (AllocationSource.KUBELET, AllocationSource.POD_RESOURCES) else None


def _latest(allocations: Sequence[Allocation]) -> set[str]:
    """Those whose IDs nobody asked for since: a pod that is shown with IDs that came back is a later one's.

    The kubelet's checkpoint is read before PodResources, and may not know of that one yet.
    """
    asked_later: dict[str, set[str]] = {}
    found: set[str] = set()
    for it in reversed(allocations):
        later = asked_later.setdefault(it.resource, set())
        if later.isdisjoint(it.ids):
            found.add(it.id)
        later.update(it.ids)
    return found


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
    holders = _holders(pods, {it.ids[0] for it in nameless}) if nameless else {}
    for it in nameless:
        if owner := owners[it.id]:
            names = holders.get((owner.container, it.resource, it.ids[0]), ())
            fits = [name for name in names if _holds(it, pods[name][owner.container])]
            if fits:
                known[owner.uid] = min(fits, key=lambda name: bearers.get(name, owner.uid) != owner.uid)
    return {allocation: it and _called(it, known.get(it.uid)) for allocation, it in owners.items()}


def _holders(pods: Pods, wanted: Collection[str]) -> dict[tuple[str, str, str], list[tuple[str, str]]]:
    """Container name, resource and device ID to the pods that show them, for the IDs that are wanted."""
    holders: dict[tuple[str, str, str], list[tuple[str, str]]] = {}
    for name, containers in pods.items():
        for container, resources in containers.items():
            for resource, ids in resources.items():
                for device_id in ids.intersection(wanted):
                    holders.setdefault((container, resource, device_id), []).append(name)
    return holders


def _called(owner: Owner, name: tuple[str, str] | None) -> Owner:
    return replace(owner, namespace=name[0], pod=name[1]) if name and owner.uid else owner


def _owner(it: Allocation, grant: CheckpointAnswer | None) -> Owner | None:
    if grant is None or (it.owner is not None and it.owner.uid == grant.uid):
        return it.owner
    return Owner(grant.uid, grant.container)


def _shown(it: Allocation, owner: Owner | None, pods: Pods) -> bool:
    if owner is None:
        return any(_holds(it, resources) for containers in pods.values() for resources in containers.values())
    return _holds(it, pods.get((owner.namespace, owner.pod), {}).get(owner.container, {}))


def _by_name(owner: Owner | None) -> Owner | None:
    """The owner where its pod is known by name; else whoever is shown with the IDs may be it."""
    return owner if owner and owner.pod else None


def _holds(it: Allocation, resources: Mapping[str, frozenset[str]]) -> bool:
    return resources.get(it.resource, frozenset()).issuperset(it.ids)
