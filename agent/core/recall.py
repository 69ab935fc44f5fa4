"""The allocations that only the kubelet still knows. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from agent.core.changes import Recall
from agent.core.evidence import Granted, Pods
from agent.core.model import Allocation, AllocationState, Owner, Plan, Source
from agent.core.units import counted_in


def recall(granted: Iterable[Granted], plan: Plan, now: float) -> list[Recall]:
    """The allocations behind these answers, as far as the cards of their IDs are known."""
    found = []
    for it in granted:
        owner = Owner(it.uid, it.container)
        its = _recalled(it.allocation, it.resource, it.ids, owner, Source.KUBELET, plan, now, it.unit)
        if its is not None:
            found.append(Recall(replace(its, diverged=it.cards, handed=it.share or None)))
    return found


def recall_pods(pods: Pods, plan: Plan, name: Callable[[str], str], now: float) -> list[Recall]:
    """The same from PodResources alone, where the kubelet's checkpoint can not be read: without uids.

    `name` makes an id of a place, "namespace/pod/container/resource".
    """
    held = (
        (Owner("", container, namespace, pod), resource, tuple(sorted(ids)))
        for (namespace, pod), containers in pods.items()
        for container, resources in containers.items()
        for resource, ids in resources.items()
    )
    found = (
        _recalled(name(_place(owner, resource)), resource, ids, owner, Source.POD_RESOURCES, plan, now)
        for owner, resource, ids in held
    )
    return [Recall(it) for it in found if it is not None]


def _place(owner: Owner, resource: str) -> str:
    return f"{owner.namespace}/{owner.pod}/{owner.container}/{resource}"


def _recalled(
    allocation: str,
    name: str,
    ids: tuple[str, ...],
    owner: Owner,
    source: Source,
    plan: Plan,
    now: float,
    unit: str | None = None,
) -> Allocation | None:
    """`unit` None: nobody says what its IDs count, so they count what the resource's do now."""
    resource = plan.get(name)
    if resource is None or not ids:
        return None
    # The number may be one that an earlier config made of the card.
    cards = [card for it in ids if (card := resource.card_of(it) or resource.index.by_stem(it))]
    if len(cards) != len(ids):
        return None
    unit = counted_in(resource.rule.sharing) if unit is None else unit
    uuids = tuple(card.uuid for card in cards)
    return Allocation(
        allocation,
        name,
        resource.vendor,
        ids,
        uuids[:1] if unit and len(set(uuids)) == 1 else uuids,
        AllocationState.DONE,
        now,
        source=source,
        owner=owner,
        unit=unit,
    )
