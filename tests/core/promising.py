"""What schedulers promised the pods of a node, as a value, and short ways to ask for it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from agent.core.allocation.admission import admit
from agent.core.allocation.scene import Scene
from agent.core.attribution.scheduler_promises import Promises
from agent.core.model import Allocation
from agent.core.placement.allocate_placement import PlacementChoice
from agent.core.placement.allocate_placement import choose_cards as choose_cards
from agent.core.placement.preferred_allocation import preferred_ids
from agent.scheduler_api import Candidate
from agent.vendor_api.agent import Sharing

from .scenes import BY_LIMITS, CHOSEN, SHARE, bound, cards_with_room, scene
from .values import grouped

TOGETHER = Sharing("replicas", 2, span_cards=False)
MEMORY = Sharing("memory", unit="1")


def promises(
    *pods: Candidate, in_use: Sequence[Allocation] = (), refused: Collection[str] = (), **more: Any
) -> Promises:
    """What a scheduler promised these pods; `more` is of the scene."""
    known = scene(*pods, **{"placement": "auto", "dialects": (CHOSEN,), **more})
    return Promises(known, grouped(in_use), frozenset(refused))


def counted(known: Scene, sharing: Sharing) -> Scene:
    """The scene where SHARE counts otherwise."""
    planned = known.plan[SHARE]
    rule = replace(planned.rule, sharing=sharing)
    return replace(known, plan={**known.plan, SHARE: replace(planned, rule=rule)})


def choose(its: Promises, resource: str, *ids: str) -> PlacementChoice:
    """What a request gets beside the allocations that have other IDs."""
    again = [it for it in its.in_use if it.resource == resource and {*it.ids} & {*ids}]
    return choose_cards(its, admit(its.scene, resource, ids), its.in_use.without(again))


def by_limits(*pods: Candidate, **more: Any) -> Promises:
    """The same where the pods' own limits say how much of a card they get."""
    return promises(*pods, limits=BY_LIMITS, cards_with_room=cards_with_room, **more)


def of(choice: PlacementChoice) -> tuple[str | None, tuple[str, ...]]:
    """The pod of a choice, and the cards that it gets instead of those of its IDs."""
    return choice.claim.pod if choice.claim else None, choice.actual_cards


def share(name: str, *cards: str, count: int = 1, **more: Any) -> Candidate:
    """A pod that waits for shares, to which a scheduler gave these cards, or (none) said nothing."""
    return bound(name, *cards, resource=SHARE, count=count, **more)


def prefer(
    its: Promises, resource: str, available: Sequence[str], required: Sequence[str], size: int
) -> list[str]:
    """The IDs to take: of the available ones, with the required ones, as many as that."""
    holders = [it for it in its.in_use if it.resource == resource and {*it.ids} & {*available}]
    return preferred_ids(its, its.scene.plan[resource], available, required, size, holders)
