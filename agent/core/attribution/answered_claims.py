"""The claims of answered allocations: which pod has which claim, and what hardware must move. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from agent.core.allocation import room_on_cards
from agent.core.allocation.card_amounts import fit
from agent.core.allocation.taken_room import TakenRoom
from agent.core.allocation.vendor_requests import answer_parameters, edits_with, names_no_card
from agent.core.attribution.claim_reading import promised_claim
from agent.core.attribution.claim_swap_rules import swap_claims
from agent.core.attribution.dialects_of_resource import limits_dialect
from agent.core.attribution.scheduler_promises import Promises
from agent.core.devices.dynamic_modes import holder_in_other_mode
from agent.core.model import Allocation, AllocationSource
from agent.core.reconciling.allocations_to_judge import NONE_AGREED, Agreed
from agent.core.reconciling.reconcile_evidence import CheckpointAnswer
from agent.scheduler_api.candidate import Candidate
from agent.scheduler_api.claims import Claim


def claims_after_swaps(
    promises: Promises, granted: Sequence[CheckpointAnswer], left_out: Agreed = NONE_AGREED
) -> dict[str, Claim | None]:
    """Allocation to its new claim, for each claim that must change.

    `granted`: which container the kubelet gave each allocation. None: nothing was promised to the container.
    `left_out`: allocations that have the claim of their container, or none, and have nothing in common with
    one that has changed. Those without a claim are looked at where their pod is known, which may be new.
    """
    pods = promises.pods
    # A card in external use may have the claim of any container.
    if left_out and not promises.in_use.external():
        granted = [
            answer
            for answer in granted
            if (known := left_out.get(answer.allocation)) is None
            or (known.allocation.claim is None and answer.uid in pods)
        ]

    def promise(allocation: Allocation, answer: CheckpointAnswer) -> Claim | None:
        pod = pods.get(answer.uid)
        claim = promises.claim_of(allocation, pod, answer.container)
        if claim is None or not claim.devices or set(claim.devices) == set(allocation.cards):
            return claim
        if promises.scene.plan[allocation.resource].rule.placement == "local":
            return None  # with placement `local`, a scheduler's promise of another card does not count
        if may_move(promises, allocation, claim.devices):
            return claim
        if answer_parameters(allocation) == claim.parameters:  # the kubelet took equal pods in its own order
            return replace(claim, devices=tuple(dict.fromkeys(allocation.cards)))
        return _claim_by_limits(promises, allocation, pod, answer.container) or claim

    return swap_claims(promises.in_use, granted, promise)


def _claim_by_limits(
    promises: Promises, allocation: Allocation, pod: Candidate | None, container: str
) -> Claim | None:
    """What the container's own limits ask for, on any card."""
    served = promises.served(allocation.resource)
    limits = limits_dialect(served[1], served[0]) if served else None
    if pod is None or limits is None:
        return None
    return promised_claim(allocation.resource, pod, container, [limits], promises.cards(allocation.vendor))


def astray_allocations(
    promises: Promises, resource: str, idle: Collection[str]
) -> Sequence[tuple[Allocation, tuple[str, ...]]]:
    """Idle allocations on other cards than were chosen for their pods, with the chosen cards.

    Only allocations with an answer that names no card can move, and only if the chosen cards have room for
    all that move there. `idle`: ids of allocations with a container that does not run yet.
    """
    served = promises.served(resource)
    if served is None or served[0].rule.placement == "local" or not served[1].prepares(resource):
        return ()
    planned, in_use = served[0], promises.in_use
    healthy = {card.uuid for card in planned.cards if card.healthy}
    astray = {
        age: allocation.claim.devices
        for age, allocation in in_use.astray().items()
        if allocation.id in idle and allocation.claim is not None
        if healthy.issuperset(allocation.claim.devices)
        if may_move(promises, allocation, allocation.claim.devices)
        if all(
            holder_in_other_mode(planned, uuid, in_use.of_others_on_card(resource, uuid)) is None
            for uuid in allocation.claim.devices
        )
    }
    amounts = promises.amounts(planned)
    while astray:
        moved = in_use
        for age, cards in astray.items():
            allocation = in_use.astray()[age]
            moved = moved.replaced(age, allocation, replace(allocation, diverged=cards))
        taken = promises.in_the_way(planned, moved, amounts)
        full = {uuid for cards in astray.values() for uuid in cards if not fit(taken.amount(uuid))}
        if not full:
            break
        astray = {age: cards for age, cards in astray.items() if full.isdisjoint(cards)}
    return [(in_use.astray()[age], cards) for age, cards in astray.items()]


def may_move(promises: Promises, allocation: Allocation, cards: Sequence[str]) -> bool:
    """Whether the answer holds for these cards as well, once hardware is made on them.

    Only an answer of this process is known well enough.
    """
    scene, vendor = promises.scene, promises.scene.vendors.get(allocation.vendor)
    if allocation.source is not AllocationSource.ALLOCATE or vendor is None:
        return False
    return names_no_card(scene, vendor, allocation.resource, allocation.ids, [allocation.cards, cards])


def shown_claim(promises: Promises, allocation: Allocation) -> Claim | None:
    """The claim of an allocation that PodResources alone shows, if the pod can have what was promised.

    The IDs do not say on which card a share lies, and the agent's answers cannot be read.
    """
    if (
        allocation.source is not AllocationSource.POD_RESOURCES
        or allocation.claim is not None
        or allocation.owner is None
    ):
        return None
    pod = promises.scene.candidates.newest(allocation.owner.namespace, allocation.owner.pod)
    claim = promises.claim_of(allocation, pod, allocation.owner.container)
    if claim is None or not claim.devices or set(claim.devices) == set(allocation.cards):
        return claim
    planned = promises.scene.plan[allocation.resource]
    if planned.rule.placement == "local" or not all(map(planned.shares, allocation.ids)):
        return None
    others = promises.in_use.without([allocation])
    of_others = [it for it in others if it.resource != allocation.resource]
    taken = TakenRoom(planned.name, others, promises.amounts(planned), of_others)
    fits = room_on_cards.has_room(
        planned, claim.devices, len(allocation.ids), taken, sick=True, claims=(claim,)
    )
    return claim if fits else None


def is_unread(promises: Promises, allocation: Allocation, answer: CheckpointAnswer) -> bool:
    """Whether the limits of the container decide on its hardware, and its pod is not known yet.

    Where the config keeps the agent from seeing pods, no limits decide.
    """
    served = promises.served(allocation.resource)
    if served is None or promises.scene.unseen or limits_dialect(served[1], served[0]) is None:
        return False
    claim = allocation.claim
    if claim is not None and (claim.uid, claim.container) == (answer.uid, answer.container):
        return False
    return answer.uid not in promises.pods


def kept_parameters(
    promises: Promises, allocation: Allocation, claim: Claim | None
) -> Mapping[str, str] | None:
    """The parameters of the answer, where this claim would have another answer; else None."""
    was, wanted = answer_parameters(allocation), claim.parameters if claim else {}
    if was == wanted:
        return None
    scene = promises.scene
    same = edits_with(scene, allocation, was) == edits_with(scene, allocation, wanted)
    return None if same else was
