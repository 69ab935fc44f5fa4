"""Answered allocations without an owner: which of them no container will ever have. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from agent.core.allocation.allocations_in_use import AllocationsInUse
from agent.core.allocation.scene import Scene
from agent.core.model import Allocation, AllocationSource
from agent.core.reconciling.reconcile_rules import TAKEN_WITHIN


def answers_never_taken(
    answers: Iterable[Allocation], taken: Collection[str], scene: Scene, life: str, now: float
) -> Sequence[Allocation]:
    """The answers that this life of the kubelet did not take, though it asks for another container now.

    `answers`: allocations without an owner. `taken`: ids of allocations in the kubelet's checkpoint.
    """
    return [
        allocation
        for allocation in answers
        if allocation.vendor in scene.vendors and allocation.life == life and allocation.id not in taken
        if allocation.source is AllocationSource.CHECKPOINT or now - allocation.since >= TAKEN_WITHIN
    ]


def abandoned_ids(in_use: AllocationsInUse, scene: Scene) -> frozenset[str]:
    """Ids of allocations without an owner that were promised to pods that have ended."""
    if not scene.candidates:
        return frozenset()
    alive = scene.alive
    without_owner = in_use.all_without_owner()
    return frozenset(it.id for it in without_owner if it.claim is not None and it.claim.uid not in alive)
