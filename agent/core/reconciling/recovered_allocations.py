"""Recovered allocations: allocations that only the kubelet still knows. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import cycle, islice

from msgspec import Struct, field

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
from agent.core.reconciling.cards_of_answers import AnswerReader, CardsOfAnswer, cards_by_other_answer
from agent.core.reconciling.reconcile_changes import RecoveredAllocation
from agent.core.reconciling.reconcile_evidence import FOREIGN, CheckpointAnswer, Pods
from agent.vendor_api.agent import ResourceRule


class RecoveredAllocations(Struct, frozen=True):
    """The allocations that only the kubelet still knew, and answers without present cards."""

    allocations: list[RecoveredAllocation] = field(default_factory=list)
    #: Allocation to vendor and answer, for answers that name cards that are not here.
    answers_without_cards: dict[str, tuple[str, CheckpointAnswer]] = field(default_factory=dict)


class _KnownUse(Struct, frozen=True):
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
    ids_of_card: int = 0


def recover_from_answers(
    granted: Iterable[CheckpointAnswer], plan: Plan, now: float, reader: AnswerReader | None = None
) -> RecoveredAllocations:
    """The allocations behind these answers, as far as their cards are known.

    The plan says which card an ID of a planned resource is on. Any other answer counts where it names a
    present card.
    """
    granted = [*granted]
    reader = reader or AnswerReader()
    plan = {
        **_resources_of_other_plugins({it.resource for it in granted} - plan.keys(), reader, plan),
        **plan,
    }
    recovered, named = RecoveredAllocations(), dict[str, CardsOfAnswer]()
    for answer in granted:
        allocation = _planned_allocation(_known_use(answer, now), plan)
        if allocation is not None:
            cards, why_ignored = _cards_that_differ(answer, allocation, plan[answer.resource], reader)
            allocation = replace(allocation, diverged=cards, handed=answer.share or None)
            recovered.allocations.append(RecoveredAllocation(allocation, why_ignored))
            named[answer.allocation] = CardsOfAnswer(allocation.vendor, cards or allocation.cards)
        elif answer.ids and (cards_of_answer := reader.cards_of(answer)) is not None:
            named[answer.allocation] = cards_of_answer
    named |= {it.allocation: cards for it, cards in cards_by_other_answer(granted, named)}
    known = {it.allocation.id for it in recovered.allocations}
    for answer in granted:
        cards_of_answer = named.get(answer.allocation)
        if cards_of_answer is None or answer.allocation in known:
            continue
        if cards_of_answer.cards:
            allocation = _allocation_on_named_cards(_known_use(answer, now), cards_of_answer)
            allocation = replace(allocation, handed=answer.share or None, unit=answer.unit or "")
            recovered.allocations.append(RecoveredAllocation(allocation))
        else:
            recovered.answers_without_cards[answer.allocation] = (cards_of_answer.vendor, answer)
    return recovered


def _known_use(answer: CheckpointAnswer, now: float) -> _KnownUse:
    owner, source = Owner(answer.uid, answer.container), AllocationSource.KUBELET
    return _KnownUse(
        answer.allocation, answer.resource, answer.ids, owner, source, now, answer.unit, answer.ids_of_card
    )


def _allocation_on_named_cards(use: _KnownUse, named: CardsOfAnswer) -> Allocation:
    """The allocation of a resource that the plan lacks, or that the plan has on other cards.

    Where the IDs name no cards, or other cards than the answer, each card gets its part of the IDs.
    """
    devices = named.card_of_each_id or tuple(islice(cycle(named.cards), len(use.ids)))
    differs = {*named.cards} - {*devices}
    return Allocation(
        use.allocation,
        use.resource,
        named.vendor,
        use.ids,
        devices,
        AllocationState.DONE,
        use.since,
        source=use.source,
        owner=use.owner,
        diverged=named.cards if differs else (),
    )


def _cards_that_differ(
    answer: CheckpointAnswer, allocation: Allocation, resource: Resource, reader: AnswerReader
) -> tuple[tuple[str, ...], str]:
    """The cards of an answer where its IDs name others, and why the cards that it names do not count."""
    cards = (
        reader.named_cards(allocation.vendor, answer.edits) if answer.allocation.startswith(FOREIGN) else None
    )
    if cards is None or {*cards} == {*allocation.devices}:
        return answer.cards, ""
    if not cards:
        return (), "its answer names no card that is here"
    if len(cards) > (1 if on_one_card(resource.rule.sharing) else len(allocation.ids)):
        return (), f"its answer names {len(cards)} cards, which are too many for its IDs"
    return cards, ""


def recover_from_pods(
    pods: Pods, plan: Plan, name: Callable[[str], str], now: float, reader: AnswerReader | None = None
) -> list[RecoveredAllocation]:
    """The allocations behind PodResources, where the kubelet's checkpoint cannot be read.

    PodResources has no uids and no answers: an ID must name its card. `name` makes an allocation's id of
    "namespace/pod/container/resource".
    """
    uses = (
        (Owner("", container, namespace, pod), resource, tuple(sorted(ids)))
        for (namespace, pod), containers in pods.items()
        for container, resources in containers.items()
        for resource, ids in resources.items()
    )
    reader = reader or AnswerReader()
    recovered: list[RecoveredAllocation] = []
    for owner, resource, ids in uses:
        allocation_id = name(_use_key(owner, resource))
        use = _KnownUse(allocation_id, resource, ids, owner, AllocationSource.POD_RESOURCES, now)
        allocation = _planned_allocation(use, plan)
        if allocation is None and (cards_of_ids := reader.cards_of_ids(ids)) is not None:
            allocation = _allocation_on_named_cards(use, cards_of_ids)
        if allocation is not None:
            recovered.append(RecoveredAllocation(allocation))
    return recovered


def _use_key(owner: Owner, resource: str) -> str:
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
        unit = _unit_of_other_plugin(resource, dict(zip(use.ids, cards, strict=True)), use.ids_of_card)
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


def _resources_of_other_plugins(names: Iterable[str], reader: AnswerReader, plan: Plan) -> Plan:
    """Resources that only other plugins have, with all cards that their vendor offers and no listed ID."""
    resources = {}
    for name in names:
        vendor = reader.vendor_of_resource(name)
        offered = [it for it in plan.values() if vendor and it.vendor == vendor]
        cards = {card.uuid: replace(card, ids=None, kept=(), held=()) for it in offered for card in it.cards}
        if offered:
            rule = ResourceRule(name)
            resources[name] = replace(offered[0], name=name, rule=rule, cards=tuple(cards.values()))
    return resources


def _card(resource: Resource, device_id: str) -> AdvertisedDevice | None:
    """The card of an ID: the card that lists it now, else the one that the ID names as other plugins do."""
    known = resource.card_of(device_id)
    return resource.index.by_stem(device_id) if known is None else known


def _unit_of_other_plugin(resource: Resource, cards: Mapping[str, AdvertisedDevice], ids_of_card: int) -> str:
    """The memory unit of another plugin's IDs; empty where they are as large as the resource's shares.

    `ids_of_card`: the number of IDs that the plugin made of the first ID's card; 0 where that is not known.
    """
    unit_of_rule = counted_in(resource.rule.sharing)
    numbered = {
        device_id: numbered_id
        for device_id, card in cards.items()
        if device_id not in card and (numbered_id := share(device_id)) and numbered_id.between != "::"
    }
    first = next(iter(cards.values()))
    if not numbered:
        return unit_of_rule
    if first.ids is None or first.ids.count is None:  # this agent does not share out the card, or not yet
        return UNKNOWN
    if ids_of_card and unit_of_rule:
        return next((unit for unit in THOUSANDTHS if units(first.memory, unit) == ids_of_card), UNKNOWN)
    fits = all(it.number < cards[device_id].shares for device_id, it in numbered.items()) and ids_of_card in (
        0,
        first.shares,
    )
    return unit_of_rule if fits else UNKNOWN
