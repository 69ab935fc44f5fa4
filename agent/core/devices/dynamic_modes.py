"""Cards that several resources offer: the first resource that gives a card to a pod keeps the card. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations

from agent.core.model import Allocation, AllocationSource, Resource
from agent.vendor_api.agent import ResourceRule


def rules_with_equal_ids(rules: Sequence[ResourceRule]) -> Iterator[tuple[ResourceRule, ResourceRule]]:
    """The pairs of rules of different resources that would make the same device IDs of one card."""
    return (
        (one, other)
        for one, other in combinations(rules, 2)
        if one.name != other.name and _form(one) == _form(other) and _meet(one, other)
    )


def _form(rule: ResourceRule) -> tuple[str, bool]:
    """How the rule makes IDs of a card: the form of the stem, and whether the stem is the whole ID."""
    return rule.form, rule.sharing.kind == "exclusive"


def _meet(one: ResourceRule, other: ResourceRule) -> bool:
    """Whether two rules may name the same card. A count of cards can mean any card."""
    if isinstance(one.devices, tuple) and isinstance(other.devices, tuple):
        return not set(one.devices).isdisjoint(other.devices)
    return True


def holder_in_other_mode(resource: Resource, uuid: str, in_use: Iterable[Allocation]) -> Allocation | None:
    """The allocation of another resource that has the card; None where there is none.

    The kubelet counts each resource alone, so it can assign a card that another resource already has. An
    allocation that diverged has the cards it lies on. External use is checked in another place.
    """
    allocations = (
        allocation
        for allocation in in_use
        if allocation.resource != resource.name and allocation.source is not AllocationSource.ANNOTATION
    )
    return next((it for it in allocations if uuid in it.cards), None)
