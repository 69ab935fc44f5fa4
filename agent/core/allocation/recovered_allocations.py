"""The allocations that only the kubelet still knows. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import cycle, islice

from agent.core.allocation.cards_of_answers import AnswerTie, AnswerTies, companions
from agent.core.allocation.reconcile_changes import RecallChange
from agent.core.allocation.reconcile_evidence import FOREIGN, CheckpointAnswer, Pods
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
from agent.vendor_api.agent import ResourceRule


@dataclass(frozen=True, slots=True)
class Recalled:
    """What was read back, and what names cards that are not here: allocation to vendor and answer."""

    found: list[RecallChange] = field(default_factory=list)
    unfit: dict[str, tuple[str, CheckpointAnswer]] = field(default_factory=dict)


def recall(
    granted: Iterable[CheckpointAnswer], plan: Plan, now: float, ties: AnswerTies | None = None
) -> Recalled:
    """The allocations behind these answers, as far as the cards that they hold are known.

    A resource of the plan says which card an ID is of. Whatever else names one of our cards holds that, too.
    """
    granted = [*granted]
    ties = ties or AnswerTies()
    plan = {**_lacking({it.resource for it in granted} - plan.keys(), ties, plan), **plan}
    recalled, tied = Recalled(), dict[str, AnswerTie]()
    for it in granted:
        owner = Owner(it.uid, it.container)
        its = _recalled(
            it.allocation, it.resource, it.ids, owner, AllocationSource.KUBELET, plan, now, it.unit, it.of
        )
        if its is not None:
            cards, doubt = _cards(it, its, plan[it.resource], ties)
            recalled.found.append(RecallChange(replace(its, diverged=cards, handed=it.share or None), doubt))
            tied[it.allocation] = AnswerTie(its.vendor, cards or its.cards)
        elif it.ids and (tie := ties.tie(it)) is not None:
            tied[it.allocation] = tie
    tied |= {it.allocation: tie for it, tie in companions(granted, tied)}
    known = {it.allocation.id for it in recalled.found}
    for it in granted:
        tie = tied.get(it.allocation)
        if tie is not None and it.allocation not in known:
            if tie.cards:
                owner = Owner(it.uid, it.container)
                its = _held(it.allocation, it.resource, it.ids, owner, AllocationSource.KUBELET, tie, now)
                recalled.found.append(RecallChange(replace(its, handed=it.share or None, unit=it.unit or "")))
            else:
                recalled.unfit[it.allocation] = (tie.vendor, it)
    return recalled


def _held(
    allocation: str,
    resource: str,
    ids: tuple[str, ...],
    owner: Owner,
    source: AllocationSource,
    tie: AnswerTie,
    now: float,
) -> Allocation:
    """What holds cards under a name that the plan does not have, or not for these cards.

    Where the IDs say no cards, or others than the answer, each card has its part of them.
    """
    devices = tie.by_id or tuple(islice(cycle(tie.cards), len(ids)))
    elsewhere = {*tie.cards} - {*devices}
    return Allocation(
        allocation,
        resource,
        tie.vendor,
        ids,
        devices,
        AllocationState.DONE,
        now,
        source=source,
        owner=owner,
        diverged=tie.cards if elsewhere else (),
    )


def _cards(
    it: CheckpointAnswer, its: Allocation, resource: Resource, ties: AnswerTies
) -> tuple[tuple[str, ...], str]:
    """The cards of an answer that are not those of its IDs, and why it is not those that it names."""
    cards = ties.told(its.vendor, it.answer) if it.allocation.startswith(FOREIGN) else None
    if cards is None or {*cards} == {*its.devices}:
        return it.cards, ""
    if not cards:
        return (), "its answer names no card that is here"
    if len(cards) > (1 if on_one_card(resource.rule.sharing) else len(its.ids)):
        return (), f"its answer names {len(cards)} cards, which are too many for its IDs"
    return cards, ""


def recall_pods(
    pods: Pods, plan: Plan, name: Callable[[str], str], now: float, ties: AnswerTies | None = None
) -> list[RecallChange]:
    """The same from PodResources alone, where the kubelet's checkpoint cannot be read: without uids and
    answers, so that an ID has to name its card.

    `name` makes an id of a place, "namespace/pod/container/resource".
    """
    held = (
        (Owner("", container, namespace, pod), resource, tuple(sorted(ids)))
        for (namespace, pod), containers in pods.items()
        for container, resources in containers.items()
        for resource, ids in resources.items()
    )
    ties = ties or AnswerTies()
    found: list[RecallChange] = []
    for owner, resource, ids in held:
        where, source = name(_place(owner, resource)), AllocationSource.POD_RESOURCES
        its = _recalled(where, resource, ids, owner, source, plan, now)
        if its is None and (tie := ties.by_id(ids)) is not None:
            its = _held(where, resource, ids, owner, source, tie, now)
        if its is not None:
            found.append(RecallChange(its))
    return found


def _place(owner: Owner, resource: str) -> str:
    return f"{owner.namespace}/{owner.pod}/{owner.container}/{resource}"


def _recalled(
    allocation: str,
    name: str,
    ids: tuple[str, ...],
    owner: Owner,
    source: AllocationSource,
    plan: Plan,
    now: float,
    unit: str | None = None,
    of: int = 0,
) -> Allocation | None:
    """`unit` None: nobody says what its IDs count, but for how many (`of`) its plugin made of a card."""
    resource = plan.get(name)
    if resource is None or not ids:
        return None
    # The number may be one that an earlier config made of the card.
    cards = [card for it in ids if (card := _card(resource, it)) is not None]
    if len(cards) != len(ids):
        return None
    unit = _counted(resource, dict(zip(ids, cards, strict=True)), of) if unit is None else unit
    uuids = tuple(card.uuid for card in cards)
    return Allocation(
        allocation,
        name,
        resource.vendor,
        ids,
        uuids[:1] if unit and len(set(uuids)) == 1 else uuids,
        AllocationState.DONE,
        now,
        source=source,
        owner=owner,
        unit=unit,
    )


def _lacking(names: Iterable[str], ties: AnswerTies, plan: Plan) -> Plan:
    """These resources of other plugins, each with all cards that its vendor offers now, and no ID on them."""
    found = {}
    for name in names:
        vendor = ties.former(name)
        its = [it for it in plan.values() if vendor and it.vendor == vendor]
        cards = {card.uuid: replace(card, ids=None, kept=(), held=()) for it in its for card in it.cards}
        if its:
            found[name] = replace(its[0], name=name, rule=ResourceRule(name), cards=tuple(cards.values()))
    return found


def _card(resource: Resource, device_id: str) -> AdvertisedDevice | None:
    """The card of an ID: one that is listed now wins over how another plugin writes those of another card."""
    known = resource.card_of(device_id)
    return resource.index.by_stem(device_id) if known is None else known


def _counted(resource: Resource, cards: Mapping[str, AdvertisedDevice], of: int) -> str:
    """What another plugin's IDs count memory in, empty where they are as large as our shares.

    `of`: how many it made of the card of the first one.
    """
    mine = counted_in(resource.rule.sharing)
    its = {
        one: it for one, on in cards.items() if one not in on and (it := share(one)) and it.between != "::"
    }
    card = next(iter(cards.values()))
    if not its:
        return mine
    if card.ids is None or card.ids.count is None:  # of a card that we do not cut, or not yet
        return UNKNOWN
    if of and mine:
        return next((unit for unit in THOUSANDTHS if units(card.memory, unit) == of), UNKNOWN)
    fits = all(it.number < cards[one].shares for one, it in its.items()) and of in (0, card.shares)
    return mine if fits else UNKNOWN
