"""Recovered allocations: those that only the kubelet still knows. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import cycle, islice

from agent.core.devices.memory_units import THOUSANDTHS, UNKNOWN, counted_in, on_one_card, units
from agent.core.model import (
    AdvertisedDevice,
    Allocation,
    AllocationSource,
    AllocationState,
    Owner,
    Plan,
    Resource,
    share,
)
from agent.core.reconciling.cards_of_answers import AnswerTie, AnswerTies, companions
from agent.core.reconciling.reconcile_changes import RecoveredAllocation
from agent.core.reconciling.reconcile_evidence import FOREIGN, CheckpointAnswer, Pods
from agent.vendor_api.agent import ResourceRule


@dataclass(frozen=True, slots=True)
class RecoveredAllocations:
    """What was read back from the kubelet."""

    found: list[RecoveredAllocation] = field(default_factory=list)
    #: Allocation to vendor and answer, for answers that name cards that are not here.
    unfit: dict[str, tuple[str, CheckpointAnswer]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _KnownUse:
    """Device IDs that a container has, as the kubelet says."""

    allocation: str
    resource: str
    ids: tuple[str, ...]
    owner: Owner
    source: AllocationSource
    since: float
    #: The memory unit of the IDs; None where no answer of this agent says it.
    unit: str | None = None
    #: The number of IDs that another plugin made of the first ID's card; 0 where that is not known.
    of: int = 0


def recall(
    granted: Iterable[CheckpointAnswer], plan: Plan, now: float, ties: AnswerTies | None = None
) -> RecoveredAllocations:
    """The allocations behind these answers, as far as their cards are known.

    The plan says which card an ID of a planned resource is on. Any other answer counts where it names a
    present card.
    """
    granted = [*granted]
    ties = ties or AnswerTies()
    plan = {**_resources_of_other_plugins({it.resource for it in granted} - plan.keys(), ties, plan), **plan}
    recalled, tied = RecoveredAllocations(), dict[str, AnswerTie]()
    for answer in granted:
        allocation = _planned_allocation(_use_of(answer, now), plan)
        if allocation is not None:
            cards, doubt = _cards(answer, allocation, plan[answer.resource], ties)
            allocation = replace(allocation, diverged=cards, handed=answer.share or None)
            recalled.found.append(RecoveredAllocation(allocation, doubt))
            tied[answer.allocation] = AnswerTie(allocation.vendor, cards or allocation.cards)
        elif answer.ids and (tie := ties.tie(answer)) is not None:
            tied[answer.allocation] = tie
    tied |= {it.allocation: tie for it, tie in companions(granted, tied)}
    known = {it.allocation.id for it in recalled.found}
    for answer in granted:
        tie = tied.get(answer.allocation)
        if tie is None or answer.allocation in known:
            continue
        if tie.cards:
            allocation = _tied_allocation(_use_of(answer, now), tie)
            allocation = replace(allocation, handed=answer.share or None, unit=answer.unit or "")
            recalled.found.append(RecoveredAllocation(allocation))
        else:
            recalled.unfit[answer.allocation] = (tie.vendor, answer)
    return recalled


def _use_of(answer: CheckpointAnswer, now: float) -> _KnownUse:
    owner, source = Owner(answer.uid, answer.container), AllocationSource.KUBELET
    return _KnownUse(
        answer.allocation, answer.resource, answer.ids, owner, source, now, answer.unit, answer.of
    )


def _tied_allocation(use: _KnownUse, tie: AnswerTie) -> Allocation:
    """The allocation of a resource that the plan lacks, or that the plan has on other cards.

    Where the IDs name no cards, or other cards than the answer, each card gets its part of the IDs.
    """
    devices = tie.by_id or tuple(islice(cycle(tie.cards), len(use.ids)))
    differs = {*tie.cards} - {*devices}
    return Allocation(
        use.allocation,
        use.resource,
        tie.vendor,
        use.ids,
        devices,
        AllocationState.DONE,
        use.since,
        source=use.source,
        owner=use.owner,
        diverged=tie.cards if differs else (),
    )


def _cards(
    answer: CheckpointAnswer, allocation: Allocation, resource: Resource, ties: AnswerTies
) -> tuple[tuple[str, ...], str]:
    """The cards of an answer where its IDs name others, and why the cards that it names do not count."""
    cards = (
        ties.named_cards(allocation.vendor, answer.answer) if answer.allocation.startswith(FOREIGN) else None
    )
    if cards is None or {*cards} == {*allocation.devices}:
        return answer.cards, ""
    if not cards:
        return (), "its answer names no card that is here"
    if len(cards) > (1 if on_one_card(resource.rule.sharing) else len(allocation.ids)):
        return (), f"its answer names {len(cards)} cards, which are too many for its IDs"
    return cards, ""


def recall_pods(
    pods: Pods, plan: Plan, name: Callable[[str], str], now: float, ties: AnswerTies | None = None
) -> list[RecoveredAllocation]:
    """The allocations behind PodResources, where the kubelet's checkpoint cannot be read.

    PodResources has no uids and no answers: an ID must name its card. `name` makes an allocation's id of a
    place, "namespace/pod/container/resource".
    """
    uses = (
        (Owner("", container, namespace, pod), resource, tuple(sorted(ids)))
        for (namespace, pod), containers in pods.items()
        for container, resources in containers.items()
        for resource, ids in resources.items()
    )
    ties = ties or AnswerTies()
    found: list[RecoveredAllocation] = []
    for owner, resource, ids in uses:
        place = name(_place(owner, resource))
        use = _KnownUse(place, resource, ids, owner, AllocationSource.POD_RESOURCES, now)
        allocation = _planned_allocation(use, plan)
        if allocation is None and (tie := ties.by_id(ids)) is not None:
            allocation = _tied_allocation(use, tie)
        if allocation is not None:
            found.append(RecoveredAllocation(allocation))
    return found


def _place(owner: Owner, resource: str) -> str:
    return f"{owner.namespace}/{owner.pod}/{owner.container}/{resource}"


def _planned_allocation(use: _KnownUse, plan: Plan) -> Allocation | None:
    """The allocation of a planned resource; None where an ID names none of its cards."""
    resource = plan.get(use.resource)
    if resource is None or not use.ids:
        return None
    # The number in an ID may be one that an earlier config made of the card.
    cards = [card for device_id in use.ids if (card := _card(resource, device_id)) is not None]
    if len(cards) != len(use.ids):
        return None
    unit = use.unit
    if unit is None:
        unit = _unit_of_other_plugin(resource, dict(zip(use.ids, cards, strict=True)), use.of)
    uuids = tuple(card.uuid for card in cards)
    return Allocation(
        use.allocation,
        use.resource,
        resource.vendor,
        use.ids,
        uuids[:1] if unit and len(set(uuids)) == 1 else uuids,
        AllocationState.DONE,
        use.since,
        source=use.source,
        owner=use.owner,
        unit=unit,
    )


def _resources_of_other_plugins(names: Iterable[str], ties: AnswerTies, plan: Plan) -> Plan:
    """Resources that only other plugins have, with all cards that their vendor offers and no listed ID."""
    found = {}
    for name in names:
        vendor = ties.former(name)
        offered = [it for it in plan.values() if vendor and it.vendor == vendor]
        cards = {card.uuid: replace(card, ids=None, kept=(), held=()) for it in offered for card in it.cards}
        if offered:
            rule = ResourceRule(name)
            found[name] = replace(offered[0], name=name, rule=rule, cards=tuple(cards.values()))
    return found


def _card(resource: Resource, device_id: str) -> AdvertisedDevice | None:
    """The card of an ID: the card that lists it now, else the one that the ID names as other plugins do."""
    known = resource.card_of(device_id)
    return resource.index.by_stem(device_id) if known is None else known


def _unit_of_other_plugin(resource: Resource, cards: Mapping[str, AdvertisedDevice], of: int) -> str:
    """The memory unit of another plugin's IDs; empty where they are as large as the resource's shares.

    `of`: the number of IDs that the plugin made of the first ID's card; 0 where that is not known.
    """
    mine = counted_in(resource.rule.sharing)
    numbered = {
        device_id: numbered_id
        for device_id, card in cards.items()
        if device_id not in card and (numbered_id := share(device_id)) and numbered_id.between != "::"
    }
    first = next(iter(cards.values()))
    if not numbered:
        return mine
    if first.ids is None or first.ids.count is None:  # this agent does not share out the card, or not yet
        return UNKNOWN
    if of and mine:
        return next((unit for unit in THOUSANDTHS if units(first.memory, unit) == of), UNKNOWN)
    fits = all(it.number < cards[one].shares for one, it in numbered.items()) and of in (0, first.shares)
    return mine if fits else UNKNOWN
