"""The allocations that only the kubelet still knows. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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
from agent.core.units import THOUSANDTHS, UNKNOWN, counted_in, units
from agent.core.vendor import ResourceRule


def recall(
    granted: Iterable[Granted], plan: Plan, now: float, former: Mapping[str, str] = MappingProxyType({})
) -> list[Recall]:
    """The allocations behind these answers, as far as the cards of their IDs are known.

    `former`: resources of other plugins to the vendor whose cards they are, where the plan may lack them.
    """
    found = []
    granted = [*granted]
    plan = {**_lacking({it.resource for it in granted} - plan.keys(), former, plan), **plan}
    for it in granted:
        owner = Owner(it.uid, it.container)
        its = _recalled(it.allocation, it.resource, it.ids, owner, Source.KUBELET, plan, now, it.unit, it.of)
        if its is not None:
            found.append(Recall(replace(its, diverged=it.cards, handed=it.share or None)))
    return found


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
    unit = _counted(resource, ids, cards[0], of) if unit is None else unit
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


def _counted(resource: Resource, ids: Sequence[str], card: AdvertisedDevice, of: int) -> str:
    """What another plugin's IDs count memory in, empty where they are as large as our shares."""
    mine = counted_in(resource.rule.sharing)
    its = [it for one in ids if (it := share(one)) and it.between != "::" and one not in card]
    if its and card.ids is None:
        return UNKNOWN
    if not its or card.ids is None or card.ids.count is None:
        return mine
    if of and mine:
        return next((unit for unit in THOUSANDTHS if units(card.memory, unit) == of), UNKNOWN)
    fits = max(it.number for it in its) < card.shares and of in (0, card.shares)
    return mine if fits else UNKNOWN
