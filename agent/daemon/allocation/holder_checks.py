"""Asks the kubelet whether a running pod has requested devices, where the kubelet may err about them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from agent.core.allocation.current_holders import owners_of_earlier_lives
from agent.core.allocation.holder_texts import owner_name
from agent.core.errors import GivenTwice, StillHeld
from agent.core.model import Allocation
from agent.daemon.allocation.allocate_evidence import KubeletEvidence


async def refuse_held(
    evidence: KubeletEvidence, holders: Collection[Allocation], resource: str, ids: Sequence[str]
) -> None:
    """Refuse device IDs that a running pod has. `holders`: the allocations that hold one of them.

    An allocation that was answered a moment ago has no owner yet; the kubelet may err about its IDs, too.

    Raises:
        StillHeld: The kubelet lost its checkpoint, and takes the devices of running pods for free.
        GivenTwice: The kubelet gives the IDs to a second pod. Its devicemanager (1.36.3, manager.go:577)
            frees the IDs of an Allocate that is under way while PodResources is listed and a pod has gone.
    """
    earlier = owners_of_earlier_lives(holders, ids, evidence.life)
    if not earlier:
        shown_pods = await evidence.pods_with_ids(resource, ids, [it.owner for it in holders])
        for device_id, (namespace, pod) in shown_pods.items():
            raise GivenTwice(resource, device_id, namespace, pod)
    shown = await evidence.existing_owners(set(earlier.values())) if earlier else ()
    for device_id, owner in earlier.items():
        if owner in shown:
            raise StillHeld(resource, device_id, owner_name(owner))
