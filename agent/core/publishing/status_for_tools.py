"""A vendor's cards with their allocations and promises, for the formats of other tools. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from agent.core.allocation.allocations_in_use import AllocationsInUse
from agent.core.allocation.container_allocations import containers_with_allocation
from agent.core.allocation.known_pods import KnownPods
from agent.core.attribution.claim_reading import read_claims
from agent.core.attribution.dialects_of_resource import cards_by_minor, dialects
from agent.core.model import Allocation, AllocationState, Resource
from agent.core.publishing.agent_status import AgentStatus
from agent.scheduler_api.candidate import Candidate
from agent.scheduler_api.claims import Claim
from agent.vendor_api.agent import CardCount, ContainerShare, Format, ListedPod, NodeListing, Vendor


def formats(status: AgentStatus) -> Mapping[str, tuple[Vendor, Format]]:
    """Format name to its vendor and format. Of two vendors with the same name the first one counts."""
    found: dict[str, tuple[Vendor, Format]] = {}
    for vendor in status.vendors.values():
        for tool_format in vendor.formats:
            found.setdefault(tool_format.name, (vendor, tool_format))
    return found


def node_listing(status: AgentStatus, vendor: Vendor) -> NodeListing:
    """The vendor's cards, and the pods that have or are promised them."""
    plan = {name: it for name, it in status.resources.items() if it.vendor == vendor.name}
    allocations = [it for it in status.allocations if it.vendor == vendor.name]
    held = [it for it in allocations if it.state is not AllocationState.RELEASED]
    found = [*_had(held, plan, status.pods), *_reserved(status, vendor, plan, held)]
    return NodeListing(
        status.node,
        status.snapshot.present(vendor.name),
        tuple(
            CardCount(name, card.uuid, len(card.ids or ()), card.mode)
            for name, resource in plan.items()
            for card in resource.cards
        ),
        tuple(sorted(found, key=_age)),
    )


def _age(share: ContainerShare) -> tuple[bool, float, str]:
    created = share.pod.created if share.pod else None
    return created is None, created or 0.0, share.pod.uid if share.pod else ""


def _had(
    held: Iterable[Allocation], plan: Mapping[str, Resource], pods: KnownPods
) -> Iterator[ContainerShare]:
    """What containers have. Of two containers of one pod with the same ID the later one counts.

    The earlier one is an init container that has ended.
    """
    seen: dict[object, set[tuple[str, str]]] = {}
    for allocation in reversed([*held]):
        holder = _holder(allocation, pods)
        passed = seen.setdefault(
            (holder.uid, holder.namespace, holder.name) if holder else allocation.id, set()
        )
        fresh = [n for n, id_ in enumerate(allocation.ids) if (allocation.resource, id_) not in passed]
        passed.update((allocation.resource, id_) for id_ in allocation.ids)
        cards = _cards(allocation, plan.get(allocation.resource))
        parameters = allocation.claim.parameters if allocation.claim else {}
        for uuid, count in Counter(cards[n] for n in fresh if cards).items():
            yield ContainerShare(
                allocation.resource,
                uuid,
                count,
                holder,
                _container(allocation),
                True,
                parameters,
                allocation.partitions,
            )


def _cards(allocation: Allocation, planned: Resource | None) -> list[str]:
    """The card of each ID. The IDs of a diverged allocation are spread over its cards in turn."""
    if len(allocation.cards) == 1 or allocation.diverged or planned is None:
        return (
            [allocation.cards[n % len(allocation.cards)] for n in range(len(allocation.ids))]
            if allocation.cards
            else []
        )
    known = (card.uuid if card else "" for card in planned.cards_of(allocation.ids))
    return [uuid or allocation.cards[n % len(allocation.cards)] for n, uuid in enumerate(known)]


def _container(allocation: Allocation) -> str:
    return (allocation.owner.container if allocation.owner else "") or (
        allocation.claim.container if allocation.claim else ""
    )


def _holder(allocation: Allocation, pods: KnownPods) -> ListedPod | None:
    """The pod that has the allocation: as the API server shows it, or else by the owner or the claim."""
    place, holder = (
        allocation.container_key,
        allocation.owner if allocation.owner and allocation.owner.pod else allocation.claim,
    )
    if place is not None:
        pod = pods.by_uid.get(place[0])
    else:
        pod = pods.newest(holder.namespace, holder.pod) if holder is not None else None
    if pod is not None:
        return _shown(pod)
    if holder is None:
        return ListedPod("", "", place[0], pending=False) if place else None
    return ListedPod(holder.namespace, holder.pod, holder.uid, pending=False)


def _shown(pod: Candidate) -> ListedPod:
    return ListedPod(pod.namespace, pod.name, pod.uid, pod.created, pod.pending)


def _reserved(
    status: AgentStatus, vendor: Vendor, plan: Mapping[str, Resource], held: Iterable[Allocation]
) -> Iterator[ContainerShare]:
    """What schedulers promised to containers that have no allocation yet. Invalid claims are skipped."""
    cards, in_use = cards_by_minor(status.snapshot, vendor.name), AllocationsInUse.of(enumerate(held))
    for planned in plan.values():
        taken = containers_with_allocation(in_use, planned.name, status.pods)
        for pod in status.pods:
            if pod.over or not any(it.limits.get(planned.name) for it in pod.containers):
                continue
            claims, _ = read_claims(pod, planned.name, dialects(status.schedulers, vendor, planned), cards)
            for claim in claims:
                if (pod.uid, claim.container) not in taken:
                    yield from _promised(planned, pod, claim)


def _promised(planned: Resource, pod: Candidate, claim: Claim) -> Iterator[ContainerShare]:
    """The claim's cards as shares, each with at most as many IDs as the card has.

    An init container has no share, because the containers after it get its devices.
    """
    asked = (it for it in pod.containers if it.name == claim.container and (it.restartable or not it.init))
    count = next((it.limits.get(planned.name, 0) for it in asked), 0)
    promised = ContainerShare(planned.name, "", 0, _shown(pod), claim.container, False, claim.parameters)
    has = {card.uuid: card.shares for card in planned.cards}
    for uuid, wanted in _in_turn(claim.devices, count).items():
        if taken := min(wanted, has.get(uuid, 0)):
            yield replace(promised, uuid=uuid, count=taken)


def _in_turn(uuids: Sequence[str], count: int) -> Mapping[str, int]:
    """Card uuid to its part of `count` IDs, as evenly as possible, the first cards more."""
    each, more = divmod(count, len(uuids)) if uuids else (0, 0)
    return {uuid: each + (n < more) for n, uuid in enumerate(uuids)}
