"""The pods that may ask for a resource. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping, Sequence

from msgspec import Struct, field

from agent.core.allocation.container_allocations import ContainerKey
from agent.core.allocation.known_pods import KnownPods
from agent.scheduler_api.candidate import Candidate
from agent.scheduler_api.claims import Claim
from agent.scheduler_api.dialects import Cards, Dialect

#: Takes a claim that names no card, and its number of IDs; returns the cards with room, best one first.
FindCardsWithRoom = Callable[[Claim, int], Sequence[str]]


def _no_cards(claim: Claim, count: int) -> Sequence[str]:
    return ()


class WaitingPods(Struct, frozen=True):
    """The pods that may ask for a resource, with all that decides which pod asks next."""

    candidates: KnownPods
    dialects: Sequence[Dialect]
    #: The vendor's cards.
    devices: Cards
    #: The containers that have an allocation of the resource.
    taken: Container[ContainerKey] = ()
    #: Card to the uid of the pod that has the whole card.
    holders: Mapping[str, str] = field(default_factory=dict)
    #: (namespace, name) of the pods that schedulers' locks of this node name.
    locked: Collection[tuple[str, str]] = ()
    #: Cards that new pods cannot get now, for instance because they failed after they were promised.
    failed: Collection[str] = ()
    #: The uids of pods that still seem to wait, but were most likely refused. They come last.
    refused: Collection[str] = ()
    #: The uids of pods that waited when the kubelet started. The kubelet takes them first, oldest first.
    pods_at_kubelet_start: Collection[str] = ()
    #: Finds the cards for a claim that names no card; no cards where that is not known.
    find_cards_with_room: FindCardsWithRoom = _no_cards
    #: The pods of `refused` where another pod may have been refused instead.
    guessed: Collection[str] = ()
    #: The cards of a container that has an allocation of the resource and a known pod.
    cards_of_container: Callable[[ContainerKey], frozenset[str]] = lambda _: frozenset()


def waiting_for(
    resource: str, count: int, candidates: KnownPods, taken: Container[ContainerKey]
) -> tuple[Candidate, ...]:
    """The pods with a container that asks for exactly this number of IDs and has no allocation yet."""
    return tuple(it for it in candidates.waiting if asking_containers(it, resource, count, taken))


def asking_containers(
    pod: Candidate, resource: str, count: int, taken: Container[ContainerKey]
) -> frozenset[str]:
    """The containers of the pod that wait for exactly this number of IDs."""
    if not pod.waits:
        return frozenset()
    return frozenset(
        container.name
        for container in pod.containers
        if container.limits.get(resource) == count and (pod.uid, container.name) not in taken
    )
