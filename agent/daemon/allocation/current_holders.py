"""Who holds what the kubelet gives out now, where it may err: it says so itself if it is asked."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from agent.core.allocation.ledger import Ledger
from agent.core.errors import GivenTwice, StillHeld
from agent.core.model import Allocation
from agent.daemon.allocation.allocate_evidence import KubeletEvidence

#: Seconds after which a pod that was answered shows, if it is there.
SHOWN_AFTER = 60.0


async def refuse_held(witness: KubeletEvidence, ledger: Ledger, resource: str, ids: Sequence[str]) -> None:
    """The kubelet may give out what a pod that runs has: it errs in two ways, and says so if asked.

    Raises:
        StillHeld: It lost its checkpoint, and takes the devices of pods for free.
        GivenTwice: Its devicemanager (1.36.3, manager.go:577) lets go of IDs whose Allocate is under way
            while PodResources is listed and a pod has gone, and gives them to the next pod, too.
    """
    life = witness.life
    known = [it for it in ledger.holders(resource, ids) if it.owner is not None]
    if not known:
        return
    holders = {
        device_id: it.owner
        for it in known
        if it.owner is not None and "" not in (it.life, life) and it.life != life
        for device_id in it.ids
        if device_id in ids
    }
    if not holders:
        for device_id, (namespace, pod) in (await witness.shown_with(resource, ids)).items():
            raise GivenTwice(resource, device_id, namespace, pod)
    shown = await witness.shows(set(holders.values())) if holders else ()
    for device_id, owner in holders.items():
        if owner in shown:
            raise StillHeld(resource, device_id, owner.namespace or "pod", owner.pod or owner.uid)


async def still_there(
    witness: KubeletEvidence, its: Sequence[Allocation], now: float, alive: Collection[str] = ()
) -> list[Allocation]:
    """Those whose pods may be there, as those do that are so young that they may not show yet.

    `alive`: uids of the pods that the API server has, and that have not ended.
    """
    old = {
        it.owner
        for it in its
        if it.owner is not None and it.owner.uid not in alive and now - it.since >= SHOWN_AFTER
    }
    gone = await witness.gone(old) if old else ()
    return [it for it in its if it.owner not in gone]
