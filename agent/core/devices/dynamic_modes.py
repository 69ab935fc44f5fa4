"""Cards of several resources: each is the first's that takes of it, until it is free. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations

from agent.core.model import Allocation, AllocationSource, Resource
from agent.vendor_api.agent import ResourceRule


def twins(rules: Sequence[ResourceRule]) -> Iterator[tuple[ResourceRule, ResourceRule]]:
    """Two rules each that would make the same IDs of one card: an ID is one thing on a node."""
    return (
        (one, other)
        for one, other in combinations(rules, 2)
        if one.name != other.name and _form(one) == _form(other) and _meet(one, other)
    )


def _form(rule: ResourceRule) -> tuple[str, bool]:
    """How its IDs are made of a card: the card's name in this form, alone or with a number."""
    return rule.form, rule.sharing.kind == "exclusive"


def _meet(one: ResourceRule, other: ResourceRule) -> bool:
    """Whether they may name the same card; of a count nobody knows which before the cards are there."""
    if isinstance(one.devices, tuple) and isinstance(other.devices, tuple):
        return not set(one.devices).isdisjoint(other.devices)
    return True


def elsewhere(resource: Resource, uuid: str, in_use: Iterable[Allocation]) -> Allocation | None:
    """Who has the card by another resource; the kubelet may not know it yet, and counts by resource alone.

    A share that lies on another card than that of its ID has that one. What a scheduler gave by its word
    alone is measured elsewhere.
    """
    its = (
        it for it in in_use if it.resource != resource.name and it.source is not AllocationSource.ANNOTATION
    )
    return next((it for it in its if uuid in it.cards), None)
