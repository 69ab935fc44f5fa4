"""Which containers have an allocation of a resource. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from agent.core.model import Allocation
from agent.core.reconciling.reconcile_evidence import CheckpointAnswer
from agent.scheduler_api.candidate import Candidate
from agent.scheduler_api.claims import Claim

#: A container's place: pod uid, container name.
ContainerKey = tuple[str, str]


def container_of(claim: Claim) -> ContainerKey:
    return claim.uid, claim.container


def containers_with_allocation(
    allocations: Iterable[Allocation], resource: str, pods: Iterable[Candidate] = ()
) -> frozenset[ContainerKey]:
    """The containers that have an allocation of the resource, as the kubelet or else a claim says.

    An owner that PodResources alone shows has no uid. It is the pod of that name, if that pod existed then.
    """
    of_resource = [it for it in allocations if it.resource == resource]
    known = {it.container_key for it in of_resource if it.container_key is not None}
    without_uid = [it for it in of_resource if it.container_key is None]
    shown = [(it.owner, it.since) for it in without_uid if it.owner and it.owner.pod]
    if shown:
        known |= {
            (pod.uid, owner.container)
            for pod in pods
            for owner, since in shown
            if (owner.namespace, owner.pod) == (pod.namespace, pod.name) and pod.created <= since
        }
    return frozenset(known)


def starting_allocations(
    allocations: Iterable[Allocation],
    granted: Iterable[CheckpointAnswer] | None,
    resource: str,
    ids: Iterable[str],
) -> list[Allocation]:
    """The allocations in use behind a container that starts with these IDs.

    There may be several, all of one pod, because an init container passes its IDs on. Without the kubelet's
    checkpoint the newest allocation is meant. The same holds where the checkpoint lacks these IDs, because
    the kubelet may write the file twice at once, and the older content last.
    """
    wanted = frozenset(ids)
    fitting = [it for it in allocations if it.resource == resource and frozenset(it.ids) == wanted]
    answers = tuple(granted or ())
    known = {answer.allocation for answer in answers}
    lags = not any(it.resource == resource and frozenset(it.ids) == wanted for it in answers)
    return [it for it in fitting if it.id in known] or (fitting[-1:] if lags else [])
