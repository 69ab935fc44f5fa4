"""What each resource lists now: snapshot, rules and IDs in use in, resources out. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from agent.core.devices.cards_of_resources import Offer, cards_of_rules, other_modes
from agent.core.devices.device_ids import stems
from agent.core.devices.held_ids import HeldIds, NoShares, OutsideRanges
from agent.core.devices.ids_in_use import IdsInUse, ResourceUsage, kin
from agent.core.devices.memory_units import counted_in, units
from agent.core.model import (
    AdvertisedDevice,
    ClosedBecause,
    DeviceStatus,
    IdRange,
    NodeSnapshot,
    Plan,
    Resource,
    VendorState,
)
from agent.vendor_api.agent import FOREIGN_SLICES, IdForm, Policy, ResourceRule, Sharing

#: The policy of each kind of sharing where the rule names none.
_POLICIES: Mapping[str, Policy] = {"exclusive": "aligned", "replicas": "distributed", "memory": "packed"}

UNUSED = ResourceUsage()


def plan(
    offers: Sequence[Offer],
    snapshot: NodeSnapshot,
    *,
    before: Plan | None = None,
    usage: ResourceUsage = UNUSED,
    withheld: Collection[str] = (),
    of_others: Collection[str] = (),
) -> dict[str, Resource]:
    """The resources to serve. IDs in use stay listed until they are free, whatever the config says now.

    Args:
        offers: The cards that each resource is to have.
        snapshot: All cards of the node with their health.
        before: The plan until now.
        usage: The IDs and cards in use.
        withheld: Vendors and resources with no device for any pod, held or new.
        of_others: Resources in use that other plugins serve. Their pods hold cards, but the agent does not
            serve these resources.
    """
    before = before or {}
    uses = IdsInUse(usage, kin(snapshot.devices))
    resources = _offered_resources(offers, snapshot, before, usage.held, uses)
    offered_names = {rule.name for offer in offers for rule in offer.rules}
    orphans = usage.held.keys() - offered_names - before.keys() - {*of_others}
    resources |= _orphans(orphans, usage, snapshot)
    resources |= _retired_resources(before, resources, usage.held)
    kept = {name: _with_kept_ids(it, uses, snapshot) for name, it in resources.items()}
    closed = _closed_cards(kept.values(), offers, snapshot, usage.external)
    listed = {
        name: _withheld(resource)
        if resource.vendor in withheld or name in withheld
        else _with_closed_cards(resource, uses, closed[name])
        for name, resource in kept.items()
    }
    return {name: _without_forgotten(it, usage.forgotten.get(name, ())) for name, it in listed.items()}


def _offered_resources(
    offers: Sequence[Offer],
    snapshot: NodeSnapshot,
    before: Plan,
    held: Collection[str],
    uses: IdsInUse,
) -> dict[str, Resource]:
    """The resources of the offers, with the cards that they can list now.

    A resource without devices is planned only if it was served before: the kubelet must see an empty list.
    After a restart of the agent, IDs in use (`held`) count as served before, once the vendor has answered.
    Before that answer the devices would seem lost.
    """
    starting = {it.name for it in snapshot.vendors if it.state is VendorState.STARTING}
    names = stems(snapshot.devices)
    resources: dict[str, Resource] = {}
    for offer, rule, chosen in cards_of_rules(offers, snapshot):
        others = other_modes(offer, rule)
        offered = [_card(rule, status, names) for status in chosen if rule.form in names[status.uuid]]
        served = rule.name in before or (rule.name in held and offer.vendor not in starting)
        known = resources.get(rule.name)
        if known is None and (offered or served):
            cards, policy = _free_cards(rule, offered, others, uses), _policy(rule, dynamic=offer.dynamic)
            resources[rule.name] = Resource(rule.name, offer.vendor, rule, policy, cards, other_modes=others)
        elif known is not None and known.vendor == offer.vendor:
            resources[rule.name] = _joined(known, rule, _free_cards(rule, offered, others, uses), snapshot)
    return resources


def _free_cards(
    rule: ResourceRule, offered: Iterable[AdvertisedDevice], others: Collection[str], uses: IdsInUse
) -> tuple[AdvertisedDevice, ...]:
    """The offered cards without those that are in use in another way: they are offered once they are free.

    Another way is: by another resource, whole and not shared or sliced, or in another memory unit. While all
    cards are in use in another way, the resource is planned empty, so that the Node shows the resource.

    `others`: resources that may name the same cards. A card that one of them has is listed, but new pods do
    not get it.
    """
    moded = [_in_mode(rule, card, uses.mode(card, others), uses) for card in offered]
    left = (card for card in moded if card.mode or not _used_otherwise(rule, card, uses))
    return tuple(_with_shorter_range(rule, card, uses) for card in left)


def _retired_resources(
    before: Plan, resources: Collection[str], held: Collection[str]
) -> dict[str, Resource]:
    """Resources that were planned and are not any more. They are dropped once empty and unused."""
    return {
        name: Resource(name, old.vendor, old.rule, old.policy, (), retired=True)
        for name, old in before.items()
        if name not in resources and not (old.retired and not old.cards and name not in held)
    }


def _closed_cards(
    resources: Iterable[Resource],
    offers: Iterable[Offer],
    snapshot: NodeSnapshot,
    external: Iterable[str],
) -> Mapping[str, Mapping[str, ClosedBecause]]:
    """Resource to the healthy cards that new pods do not get by that resource, each with the reason.

    These are cordoned cards and two more kinds. A resource that makes its own hardware gives cards with
    foreign slices, other resources do not. A card in external use (`external`) is given whole to no other
    pod, if the placement of the resource follows schedulers.
    """
    healthy = [it for it in snapshot.devices if it.told_healthy]
    cordoned = {it.uuid: ClosedBecause.CORDON for it in healthy if it.cordon is not None}
    sliced = [it.uuid for it in healthy if FOREIGN_SLICES in it.device.attributes]
    given = {it.uuid for it in healthy}.intersection(external)
    made = {name for offer in offers for name in offer.made}
    closed: dict[str, dict[str, ClosedBecause]] = {}
    for resource in resources:
        foreign = () if resource.name in made else sliced
        by_scheduler = given if _follows_schedulers(resource) else ()
        closed[resource.name] = {
            **cordoned,
            **dict.fromkeys(by_scheduler, ClosedBecause.EXTERNAL_USE),
            **dict.fromkeys(foreign, ClosedBecause.FOREIGN_SLICES),
        }
    return closed


def _in_mode(rule: ResourceRule, card: AdvertisedDevice, mode: str, uses: IdsInUse) -> AdvertisedDevice:
    """The card as this resource lists it while another resource `mode` has it: unhealthy for new pods."""
    return replace(card, healthy=False, held=uses.listed(rule.name, card), mode=mode) if mode else card


def _follows_schedulers(resource: Resource) -> bool:
    """Whether the resource gives whole cards and a scheduler can use its cards without an Allocate."""
    return resource.rule.placement != "local" and resource.rule.sharing.kind == "exclusive"


def _withheld(resource: Resource) -> Resource:
    return replace(resource, cards=tuple(replace(card, healthy=False) for card in resource.cards))


def _with_closed_cards(resource: Resource, uses: IdsInUse, closed: Mapping[str, ClosedBecause]) -> Resource:
    """The resource with `closed` cards healthy only for the pods that have them. `closed`: card to reason.

    After a restart of the kubelet a pod is admitted again only if its IDs are healthy.
    """
    if closed.keys().isdisjoint(card.uuid for card in resource.cards):
        return resource
    held = (
        replace(card, healthy=False, held=uses.listed(resource.name, card), closed=closed[card.uuid])
        if card.uuid in closed
        else card
        for card in resource.cards
    )
    return replace(resource, cards=tuple(held))


def _without_forgotten(resource: Resource, ids: Collection[str]) -> Resource:
    """The resource with these IDs unhealthy for every pod, also for the pods that have them."""
    cards = {card.uuid for device_id in ids if (card := resource.card_of(device_id)) and card.healthy}
    if not cards:
        return resource
    healthy_rest = (
        replace(card, healthy=False, held=tuple(it for it in card if it not in ids))
        if card.uuid in cards
        else card
        for card in resource.cards
    )
    return replace(resource, cards=tuple(healthy_rest))


def _joined(
    resource: Resource, rule: ResourceRule, cards: tuple[AdvertisedDevice, ...], snapshot: NodeSnapshot
) -> Resource:
    """One resource of two rules. The rule that shares cards leads; the cards are in the node's order."""
    places = {status.uuid: place for place, status in enumerate(snapshot.devices)}
    both = sorted((*resource.cards, *cards), key=lambda card: places[card.uuid])
    leading = rule if resource.rule.sharing.kind == "exclusive" else resource.rule
    policy = _policy(leading, dynamic=bool(resource.other_modes))
    return replace(resource, rule=leading, policy=policy, cards=tuple(both))


def _orphans(names: Iterable[str], usage: ResourceUsage, snapshot: NodeSnapshot) -> dict[str, Resource]:
    """Resources in use that no vendor offers now: the config dropped them, or the vendor cannot be asked."""
    started = {it.name for it in snapshot.vendors if it.state is not VendorState.STARTING}
    vendors = {status.uuid: status.vendor for status in snapshot.devices}
    found: dict[str, Resource] = {}
    for name in sorted(names):
        known = (vendors[uuid] for uuid in usage.held[name] if uuid in vendors)
        vendor = next(known, usage.vendors.get(name))
        if vendor in started:
            rule = ResourceRule(name)
            found[name] = Resource(name, vendor, rule, _policy(rule), (), retired=True)
    return found


def _policy(rule: ResourceRule, *, dynamic: bool = False) -> Policy:
    """The rule's policy, or the default of its sharing. Dynamic shares are packed, to keep cards whole."""
    default = _POLICIES[rule.sharing.kind]
    return rule.policy or ("packed" if dynamic and default == "distributed" else default)


def _card(
    rule: ResourceRule, status: DeviceStatus, forms: Mapping[str, Mapping[IdForm, str]]
) -> AdvertisedDevice:
    # Where a scheduler chooses the card, a NUMA hint could make the kubelet skip the preferred call.
    numa = status.device.numa if rule.placement == "local" else None
    memory, names = status.device.memory, forms[status.uuid]
    ids = IdRange(names[rule.form], _count(rule.sharing, memory))
    known = tuple(dict.fromkeys(names.values()))
    return AdvertisedDevice(status.uuid, ids, _is_given_out(status), numa, names=known, memory=memory)


def _count(sharing: Sharing, memory: int) -> int | None:
    """How many IDs a card with `memory` bytes has; None for one ID without a number."""
    match sharing.kind:
        case "exclusive":
            return None
        case "memory":
            return units(memory, counted_in(sharing))
    return sharing.replicas


def _is_given_out(status: DeviceStatus) -> bool:
    return status.told_healthy and status.cordon is None


def _used_otherwise(rule: ResourceRule, card: AdvertisedDevice, uses: IdsInUse) -> bool:
    """Whether the card is in use in a way that the rule does not make, and must not be given out now."""
    if uses.elsewhere(rule.name, card.uuid):
        return True
    if uses.has_other_unit(rule.name, card.uuid, counted_in(rule.sharing)):
        return True
    outside = uses.outside_range(rule.name, card)
    if rule.sharing.kind == "exclusive":
        return bool(outside) or uses.has_shares_of_others(card.uuid)
    return bool(outside and uses.on_card(rule.name, card.uuid).chosen(NoShares(card.ids, card.names)))


def _with_shorter_range(rule: ResourceRule, card: AdvertisedDevice, uses: IdsInUse) -> AdvertisedDevice:
    """The card with a range shortened by the shares that pods have under IDs outside of the range.

    Such IDs are of another plugin, or of an earlier and longer range. They must stay listed, because the
    kubelet admits a pod again after its restart only with listed IDs. Without a shorter range the card would
    list more shares than it has. IDs of the range that are in use stay in the range.
    """
    if card.ids is None or card.ids.count is None:
        return card
    others = len(uses.outside_range(rule.name, card))
    if not others:
        return card
    left = card.ids.count - others
    for number in uses.on_card(rule.name, card.uuid).numbers(card.ids):
        if number < left:
            break
        left -= 1
    left = max(left, 0)
    return replace(card, ids=replace(card.ids, count=left), displaced=card.ids.count - left)


def _with_kept_ids(resource: Resource, uses: IdsInUse, snapshot: NodeSnapshot) -> Resource:
    """The resource with `kept` set to the IDs in use that its rule no longer makes."""
    cards = {card.uuid: card for card in resource.cards}
    name = resource.name
    to_keep = {
        uuid: _ids_to_keep(resource, cards.get(uuid), uses.on_card(name, uuid)) for uuid in uses.cards(name)
    }
    if not any(to_keep.values()):
        return resource
    statuses = {status.uuid: status for status in snapshot.devices}
    local = resource.rule.placement == "local"
    for uuid, kept in to_keep.items():
        if kept:
            status, old = statuses.get(uuid), cards.get(uuid)
            if old is not None and old.mode:
                cards[uuid] = replace(old, kept=kept, held=(*old.held, *kept))
                continue
            if old is not None:
                cards[uuid] = replace(old, kept=kept)
                continue
            healthy = _is_given_out(status) if status else False
            numa = status.device.numa if status and local else None
            cards[uuid] = AdvertisedDevice(uuid, None, healthy, numa, kept)
    return replace(resource, cards=tuple(cards.values()))


def _ids_to_keep(resource: Resource, card: AdvertisedDevice | None, held: HeldIds) -> tuple[str, ...]:
    """IDs in use on the card that the resource lists nowhere, sorted."""
    if card is not None and card.ids is not None and not held.chosen(OutsideRanges((card.ids,))):
        return ()
    index = resource.index
    named = sorted((index.stems & held.stems) | (index.stems & held.ids.keys()))
    return held.chosen(OutsideRanges(index.ranges(named)))
