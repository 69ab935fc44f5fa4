"""How messages name the holders of cards, and shorten long lists. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import islice
from typing import TypeVar

from agent.core.model import Allocation, AllocationSource, Owner
from agent.scheduler_api.claims import Claim

T = TypeVar("T")
#: How many things of a list a message names; of the others it says the number.
NAMED = 3


def holder_name(allocation: Allocation, resource: str = "") -> str:
    """The pod that has the allocation, with the allocation's resource where that is not `resource`."""
    pod = allocation.owner if allocation.owner and allocation.owner.pod else allocation.claim
    name = f"{pod.namespace}/{pod.pod}" if pod else f"allocation {allocation.id}"
    if allocation.source is AllocationSource.ANNOTATION:
        return f"{name}, by its scheduler's word alone"
    return name if allocation.resource == resource else f"{name} as {allocation.resource}"


def owner_name(owner: Owner) -> str:
    """The pod of the owner: NAMESPACE/POD, or pod/UID where PodResources has not shown the name."""
    return f"{owner.namespace or 'pod'}/{owner.pod or owner.uid}"


def claims_on_cards(claims: Collection[Claim]) -> str:
    """The pods of these claims with their cards."""
    return ", ".join(f"{claim.namespace}/{claim.pod} on {', '.join(claim.devices)}" for claim in claims)


def first_of(things: Collection[T], words: Callable[[T], str]) -> Sequence[str]:
    """The first ones in words, and how many more there are."""
    texts = [words(thing) for thing in islice(things, NAMED)]
    return [*texts, f"and {len(things) - NAMED} more"] if len(things) > NAMED else texts
