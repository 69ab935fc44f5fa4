"""Which owners the kubelet is asked about before an answer, because it may err about IDs in use. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from agent.core.allocation.allocations_in_use import AllocationsInUse
from agent.core.model import Allocation, Owner

#: Seconds after which the pod of an answered Allocate is listed by the kubelet, if the pod is there.
SHOWN_AFTER = 60.0


def owners_of_earlier_lives(
    allocations: Iterable[Allocation], ids: Collection[str], life: str
) -> dict[str, Owner]:
    """Requested device ID to the owner that an earlier life of the kubelet knew.

    `allocations`: allocations with one of the IDs. `life`: the life of the kubelet that asks; empty where
    that is not known.
    """
    return {
        device_id: allocation.owner
        for allocation in allocations
        if allocation.owner is not None and "" not in (allocation.life, life) and allocation.life != life
        for device_id in allocation.ids
        if device_id in ids
    }


def owners_to_ask_about(
    allocations: Iterable[Allocation], now: float, alive: Collection[str]
) -> frozenset[Owner]:
    """The owners with a pod that may be gone, although their allocations still count.

    A pod that was answered a moment ago may not be listed yet. `alive`: uids of the pods that the
    API server shows and that have not ended.
    """
    return frozenset(
        allocation.owner
        for allocation in allocations
        if allocation.owner is not None and allocation.owner.uid not in alive
        if now - allocation.since >= SHOWN_AFTER
    )


def card_holders(
    in_use: AllocationsInUse, resource: str, free: Collection[str] = frozenset()
) -> dict[str, str]:
    """Card to the uid of the pod that has the card, as the kubelet or else a claim says.

    `free`: IDs that the kubelet gives out now. Allocations with one of them do not count.
    """
    given = frozenset(free)
    return {
        uuid: allocation.container_key[0]
        for uuid in in_use.cards_of_pods(resource)
        for allocation in in_use.on_card(resource, uuid)
        if allocation.container_key is not None and given.isdisjoint(allocation.ids)
    }
