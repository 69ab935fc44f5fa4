"""Which containers have an allocation of a resource. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from msgspec import Struct

from agent.core.allocation.allocations_in_use import AllocationsInUse
from agent.core.allocation.known_pods import KnownPods
from agent.core.model import Allocation
from agent.core.reconciling.reconcile_evidence import CheckpointAnswer
from agent.scheduler_api.claims import Claim

#: A container's place: pod uid, container name.
ContainerKey = tuple[str, str]


def container_of(claim: Claim) -> ContainerKey:
    return claim.uid, claim.container


class ContainersWithAllocation(Struct, frozen=True):
    """The containers that have an allocation of a resource, as the kubelet or else a claim says."""

    in_use: AllocationsInUse
    resource: str
    #: The containers that PodResources alone shows. Their owners have no uid.
    shown: frozenset[ContainerKey] = frozenset()

    def __contains__(self, key: object) -> bool:
        return key in self.shown or bool(self._allocations(key))

    def cards_of(self, key: ContainerKey) -> frozenset[str]:
        """The cards of a container with a known pod; none where it has no allocation."""
        return frozenset(chain.from_iterable(it.cards for it in self._allocations(key)[-1:]))

    def _allocations(self, key: object) -> Sequence[Allocation]:
        match key:
            case (str(uid), str(container)):
                return self.in_use.of_container(self.resource, (uid, container))
        return ()


def containers_with_allocation(
    in_use: AllocationsInUse, resource: str, pods: KnownPods
) -> ContainersWithAllocation:
    """The containers that have an allocation of the resource.

    An owner that PodResources alone shows has no uid. It is the pod of that name, if that pod existed then.
    """
    shown = [(it.owner, it.since) for it in in_use.without_pod(resource) if it.owner and it.owner.pod]
    containers = frozenset(
        (pod.uid, owner.container)
        for owner, since in shown
        for pod in pods.by_name.get((owner.namespace, owner.pod), ())
        if pod.created <= since
    )
    return ContainersWithAllocation(in_use, resource, containers)


def starting_allocations(
    allocations: Iterable[Allocation],
    granted: Iterable[CheckpointAnswer] | None,
    resource: str,
    ids: Iterable[str],
) -> list[Allocation]:
    """The allocations behind a container that starts with these IDs. `allocations`: those with any of them.

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
