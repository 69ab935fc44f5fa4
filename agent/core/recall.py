"""The allocations that only the kubelet still knows. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from agent.core.changes import Recall
from agent.core.evidence import Granted, Pods
from agent.core.model import (
    AdvertisedDevice,
    Allocation,
    AllocationState,
    Owner,
    Plan,
    Resource,
    Source,
    share,
)
from agent.core.units import THOUSANDTHS, UNKNOWN, counted_in, on_one_card, units
from agent.core.vendor import ResourceRule

#: A vendor's name and the variables of another plugin's answer to the cards that they name, as its Vendor's
#: `cards_told` says.
Told = Callable[[str, Mapping[str, str]], tuple[str, ...] | None]


def recall(
    granted: Iterable[Granted],
    plan: Plan,
    now: float,
    former: Mapping[str, str] = MappingProxyType({}),
    told: Told = lambda vendor, variables: None,
) -> list[Recall]:
    """The allocations behind these answers, as far as the cards of their IDs are known.

    `former`: resources of other plugins to the vendor whose cards they are, where the plan may lack them.
    `told`: such a plugin may have answered with other cards than those of the IDs that the kubelet chose.
    """
    found = []
    granted = [*granted]
    plan = {**_lacking({it.resource for it in granted} - plan.keys(), former, plan), **plan}
    for it in granted:
        owner = Owner(it.uid, it.container)
        its = _recalled(it.allocation, it.resource, it.ids, owner, Source.KUBELET, plan, now, it.unit, it.of)
        if its is not None:
            cards, doubt = _cards(it, its, plan[it.resource], told)
            found.append(Recall(replace(its, diverged=cards, handed=it.share or None), doubt))
    return found


def _cards(it: Granted, its: Allocation, resource: Resource, told: Told) -> tuple[tuple[str, ...], str]:
    """The cards of an answer that are not those of its IDs, and why it is not those that it names."""
    cards = told(its.vendor, it.variables) if it.variables else None
    if cards is None or {*cards} == {*its.devices}:
        return it.cards, ""
    if not cards:
        return (), "its answer names no card that is here"
    if len(cards) > (1 if on_one_card(resource.rule.sharing) else len(its.ids)):
        return (), f"its answer names {len(cards)} cards, which are too many for its IDs"
    return cards, ""


def recall_pods(pods: Pods, plan: Plan, name: Callable[[str], str], now: float) -> list[Recall]:
    """The same from PodResources alone, where the kubelet's checkpoint can not be read: without uids.

    `name` makes an id of a place, "namespace/pod/container/resource".
    """
    held = (
        (Owner("", container, namespace, pod), resource, tuple(sorted(ids)))
        for (namespace, pod), containers in pods.items()
        for container, resources in containers.items()
        for resource, ids in resources.items()
    )
    found = (
        _recalled(name(_place(owner, resource)), resource, ids, owner, Source.POD_RESOURCES, plan, now)
        for owner, resource, ids in held
    )
    return [Recall(it) for it in found if it is not None]


def _place(owner: Owner, resource: str) -> str:
    return f"{owner.namespace}/{owner.pod}/{owner.container}/{resource}"


def _recalled(
    allocation: str,
    name: str,
    ids: tuple[str, ...],
    owner: Owner,
    source: Source,
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


def _lacking(names: Iterable[str], former: Mapping[str, str], plan: Plan) -> Plan:
    """These resources of other plugins, each with all cards that its vendor offers now, and no ID on them."""
    found = {}
    for name in names:
        its = [it for it in plan.values() if it.vendor == former.get(name)]
        cards = {card.uuid: replace(card, ids=None, kept=(), held=()) for it in its for card in it.cards}
        if its:
            found[name] = replace(its[0], name=name, rule=ResourceRule(name), cards=tuple(cards.values()))
    return found


def _card(resource: Resource, device_id: str) -> AdvertisedDevice | None:
    """The card of an ID: one that is listed now wins over how another plugin writes those of another card."""
    known = resource.card_of(device_id)
    return resource.index.named(device_id) if known is None else known


def _counted(resource: Resource, cards: Mapping[str, AdvertisedDevice], of: int) -> str:
    """What another plugin's IDs count memory in, empty where they are as large as our shares.

    `of`: how many it made of the card of the first one.
    """
    mine = counted_in(resource.rule.sharing)
    its = {
        one: it for one, on in cards.items() if one not in on and (it := share(one)) and it.between != "::"
    }
    card = next(iter(cards.values()))
    if its and card.ids is None:
        return UNKNOWN
    if not its or card.ids is None or card.ids.count is None:
        return mine
    if of and mine:
        return next((unit for unit in THOUSANDTHS if units(card.memory, unit) == of), UNKNOWN)
    fits = all(it.number < cards[one].shares for one, it in its.items()) and of in (0, card.shares)
    return mine if fits else UNKNOWN
