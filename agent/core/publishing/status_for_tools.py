"""What of a vendor's cards is given out and promised, as the formats of other tools show it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from agent.core.allocation.heard_dialects import cards_by_minor, dialects
from agent.core.allocation.pod_attribution import places, read_claims
from agent.core.model import Allocation, AllocationState, Resource
from agent.core.publishing.agent_status import AgentStatus
from agent.scheduler_api import Candidate, Claim
from agent.vendor_api.agent import Format, Holder, Holding, Listing, Picture, Vendor


def formats(view: AgentStatus) -> Mapping[str, tuple[Vendor, Format]]:
    """Every format by its name; one that two vendors have is the first one's."""
    found: dict[str, tuple[Vendor, Format]] = {}
    for vendor in view.vendors.values():
        for it in vendor.formats:
            found.setdefault(it.name, (vendor, it))
    return found


def picture(view: AgentStatus, vendor: Vendor) -> Picture:
    """What is there, and who has or is promised it."""
    plan = {name: it for name, it in view.resources.items() if it.vendor == vendor.name}
    its = [it for it in view.allocations if it.vendor == vendor.name]
    held = [it for it in its if it.state is not AllocationState.RELEASED]
    found = [*_had(held, plan, view.pods), *_reserved(view, vendor, plan, held)]
    return Picture(
        view.node,
        view.snapshot.present(vendor.name),
        tuple(
            Listing(name, card.uuid, len(card.ids or ()), card.mode)
            for name, it in plan.items()
            for card in it.cards
        ),
        tuple(sorted(found, key=_age)),
    )


def _age(it: Holding) -> tuple[bool, float, str]:
    created = it.holder.created if it.holder else None
    return created is None, created or 0.0, it.holder.uid if it.holder else ""


def _had(
    held: Iterable[Allocation], plan: Mapping[str, Resource], pods: Collection[Candidate]
) -> Iterator[Holding]:
    """What containers have. Those of a pod that came last come first: who had an ID before them is over."""
    seen: dict[object, set[tuple[str, str]]] = {}
    for it in reversed([*held]):
        holder = _holder(it, pods)
        passed = seen.setdefault((holder.uid, holder.namespace, holder.name) if holder else it.id, set())
        fresh = [n for n, id_ in enumerate(it.ids) if (it.resource, id_) not in passed]
        passed.update((it.resource, id_) for id_ in it.ids)
        cards = _cards(it, plan.get(it.resource))
        parameters = it.claim.parameters if it.claim else {}
        for uuid, count in Counter(cards[n] for n in fresh if cards).items():
            yield Holding(it.resource, uuid, count, holder, _container(it), True, parameters, it.partitions)


def _cards(it: Allocation, planned: Resource | None) -> list[str]:
    """The card of each ID; a share that lies elsewhere takes of its cards in turn, as it is counted."""
    if len(it.cards) == 1 or it.diverged or planned is None:
        return [it.cards[n % len(it.cards)] for n in range(len(it.ids))] if it.cards else []
    known = (card.uuid if card else "" for card in planned.cards_of(it.ids))
    return [uuid or it.cards[n % len(it.cards)] for n, uuid in enumerate(known)]


def _container(it: Allocation) -> str:
    return (it.owner.container if it.owner else "") or (it.claim.container if it.claim else "")


def _holder(it: Allocation, pods: Collection[Candidate]) -> Holder | None:
    """As the API server shows the pod, or as much as the kubelet or a scheduler says of it."""
    place, whose = it.place, it.owner if it.owner and it.owner.pod else it.claim
    for pod in reversed([*pods]):
        named = whose is not None and (pod.namespace, pod.name) == (whose.namespace, whose.pod)
        if (place is not None and pod.uid == place[0]) or (place is None and named):
            return _shown(pod)
    if whose is None:
        return Holder("", "", place[0], pending=False) if place else None
    return Holder(whose.namespace, whose.pod, whose.uid, pending=False)


def _shown(pod: Candidate) -> Holder:
    return Holder(pod.namespace, pod.name, pod.uid, pod.created, pod.pending)


def _reserved(
    view: AgentStatus, vendor: Vendor, plan: Mapping[str, Resource], held: Collection[Allocation]
) -> Iterator[Holding]:
    """What schedulers promised to containers that have nothing yet. A claim that makes no sense is none."""
    cards = cards_by_minor(view.snapshot, vendor.name)
    for planned in plan.values():
        taken = places(held, planned.name, view.pods)
        for pod in view.pods:
            if pod.over or not any(it.limits.get(planned.name) for it in pod.containers):
                continue
            claims, _ = read_claims(pod, planned.name, dialects(view.schedulers, vendor, planned), cards)
            for claim in claims:
                if (pod.uid, claim.container) not in taken:
                    yield from _promised(planned, pod, claim)


def _promised(planned: Resource, pod: Candidate, claim: Claim) -> Iterator[Holding]:
    """An init container's goes to those after it. Who asks for more than a card has is promised all of it."""
    asked = (it for it in pod.containers if it.name == claim.container and (it.restartable or not it.init))
    count = next((it.limits.get(planned.name, 0) for it in asked), 0)
    its = Holding(planned.name, "", 0, _shown(pod), claim.container, False, claim.parameters)
    has = {card.uuid: card.shares for card in planned.cards}
    for uuid, wanted in _in_turn(claim.devices, count).items():
        if taken := min(wanted, has.get(uuid, 0)):
            yield replace(its, uuid=uuid, count=taken)


def _in_turn(uuids: Sequence[str], count: int) -> Mapping[str, int]:
    """How many each takes; `count` is what a pod asks for, and may be any number."""
    each, more = divmod(count, len(uuids)) if uuids else (0, 0)
    return {uuid: each + (n < more) for n, uuid in enumerate(uuids)}
