"""What each resource lists now: snapshot, rules and IDs in use in, resources out. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from agent.core.devices.cards_of_resources import Offer, beside, dealt
from agent.core.devices.device_ids import stems
from agent.core.devices.ids_in_use import IdsInUse, ResourceUsage, kin
from agent.core.devices.memory_units import counted_in, units
from agent.core.model import (
    AdvertisedDevice,
    DeviceStatus,
    IdRange,
    NodeSnapshot,
    Plan,
    Resource,
    VendorState,
)
from agent.vendor_api.agent import FOREIGN_SLICES, IdForm, Policy, ResourceRule, Sharing

#: What each way to count a card packs or spreads without a word of the rule.
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
    """The resources to serve. IDs in use stay listed until freed, whatever the config says now.

    `before` is the plan until now. `withheld`: vendors and resources of which nothing is to be given out.
    `of_others`: resources in use that other plugins serve: they hold their cards, and are none of ours.

    A resource without devices is planned only once it has been served: the kubelet must see it empty. IDs in
    use bring it back after a restart, but not before its vendor was heard: they would seem lost until then.
    A card in use in another way (by another resource, whole where it is now shared or sliced, in units of
    memory where it is not, or of another size) is offered once free; a resource that waits for all of its
    cards is planned empty, so that the Node shows it. Where the resources of a vendor may name the same
    cards, one in use by another is listed, and well for nobody new; so is one on which others made slices,
    where the resource's own hardware is not made. IDs that the kubelet has forgotten are well for nobody.
    Cards that a scheduler gave to pods that ask no plugin are given whole to nobody else, where the resource
    heeds schedulers.
    """
    before, held = before or {}, usage.held
    uses = IdsInUse(usage, kin(snapshot.devices))
    starting = {it.name for it in snapshot.vendors if it.state is VendorState.STARTING}
    resources: dict[str, Resource] = {}
    names = stems(snapshot.devices)
    for offer, rule, chosen in dealt(offers, snapshot):
        vendor, others = offer.vendor, beside(offer, rule)
        offered = [_card(rule, status, names) for status in chosen if rule.form in names[status.uuid]]
        modes = [uses.mode(rule.name, card, others) for card in offered]
        moded = [_in_mode(rule, *one, uses) for one in zip(offered, modes, strict=True)]
        left = (card for card in moded if card.mode or not _used_otherwise(rule, card, uses))
        cards = tuple(_making_way(rule, card, uses) for card in left)
        served = rule.name in before or (rule.name in held and vendor not in starting)
        known = resources.get(rule.name)
        if known is None and (offered or served):
            policy = _policy(rule, dynamic=offer.dynamic)
            resources[rule.name] = Resource(rule.name, vendor, rule, policy, cards, beside=others)
        elif known is not None and known.vendor == vendor:
            resources[rule.name] = _joined(known, rule, cards, snapshot)
    offered_names = {rule.name for offer in offers for rule in offer.rules}
    orphans = held.keys() - offered_names - before.keys() - {*of_others}
    resources |= _orphans(orphans, usage, snapshot)
    for name, resource in before.items():
        if name not in resources and not (resource.retired and not resource.cards and name not in held):
            resources[name] = Resource(
                name, resource.vendor, resource.rule, resource.policy, (), retired=True
            )
    kept = {name: _keeping(it, uses, snapshot) for name, it in resources.items()}
    well = frozenset(it.uuid for it in snapshot.devices if it.told_healthy)
    cordoned = frozenset(it.uuid for it in snapshot.devices if it.cordon is not None) & well
    shared_out = well.intersection(usage.external)
    sliced = well.intersection(it.uuid for it in snapshot.devices if FOREIGN_SLICES in it.device.attributes)
    made = {name for offer in offers for name in offer.made}

    def away(it: Resource) -> frozenset[str]:
        """The cards that nobody new gets by it."""
        others = frozenset() if it.name in made else sliced
        return cordoned | others | (shared_out if _heeds(it) else frozenset())

    given = {
        name: _withheld(it) if it.vendor in withheld or name in withheld else _holding(it, uses, away(it))
        for name, it in kept.items()
    }
    return {name: _hiding(it, usage.forgotten.get(name, ())) for name, it in given.items()}


def _in_mode(rule: ResourceRule, card: AdvertisedDevice, mode: str, uses: IdsInUse) -> AdvertisedDevice:
    """The card as who offers it beside others lists it: those who have it alone keep it."""
    return replace(card, healthy=False, held=uses.listed(rule.name, card), mode=mode) if mode else card


def _heeds(resource: Resource) -> bool:
    """Whether a card that a scheduler shares out on its own is not to be given whole to a pod."""
    return resource.rule.placement != "local" and resource.rule.sharing.kind == "exclusive"


def _withheld(resource: Resource) -> Resource:
    return replace(resource, cards=tuple(replace(card, healthy=False) for card in resource.cards))


def _holding(resource: Resource, uses: IdsInUse, away: frozenset[str]) -> Resource:
    """The resource whose cards that nobody new gets are well for who has them alone.

    The kubelet must take a pod back after its restart, which it does only where the pod's IDs are healthy.
    """
    if away.isdisjoint(card.uuid for card in resource.cards):
        return resource
    held = (
        replace(card, healthy=False, held=uses.listed(resource.name, card), closed=True)
        if card.uuid in away
        else card
        for card in resource.cards
    )
    return replace(resource, cards=tuple(held))


def _hiding(resource: Resource, ids: Collection[str]) -> Resource:
    """The resource of which these IDs are well for nobody."""
    cards = {card.uuid for device_id in ids if (card := resource.card_of(device_id)) and card.healthy}
    if not cards:
        return resource
    hiding = (
        replace(card, healthy=False, held=tuple(it for it in card if it not in ids))
        if card.uuid in cards
        else card
        for card in resource.cards
    )
    return replace(resource, cards=tuple(hiding))


def _joined(
    resource: Resource, rule: ResourceRule, cards: tuple[AdvertisedDevice, ...], snapshot: NodeSnapshot
) -> Resource:
    """One resource of two rules: the one that shares leads, the cards stand in the order of the node."""
    places = {status.uuid: place for place, status in enumerate(snapshot.devices)}
    both = sorted((*resource.cards, *cards), key=lambda card: places[card.uuid])
    leading = rule if resource.rule.sharing.kind == "exclusive" else resource.rule
    policy = _policy(leading, dynamic=bool(resource.beside))
    return replace(resource, rule=leading, policy=policy, cards=tuple(both))


def _orphans(names: Iterable[str], usage: ResourceUsage, snapshot: NodeSnapshot) -> dict[str, Resource]:
    """Resources in use that nobody offers now: the config left them, or their vendor cannot be asked."""
    heard = {it.name for it in snapshot.vendors if it.state is not VendorState.STARTING}
    vendors = {status.uuid: status.vendor for status in snapshot.devices}
    found: dict[str, Resource] = {}
    for name in sorted(names):
        known = (vendors[uuid] for uuid in usage.held[name].values() if uuid in vendors)
        vendor = next(known, usage.vendors.get(name))
        if vendor in heard:
            rule = ResourceRule(name)
            found[name] = Resource(name, vendor, rule, _policy(rule), (), retired=True)
    return found


def _policy(rule: ResourceRule, *, dynamic: bool = False) -> Policy:
    """Shares are spread, but where whole cards are wanted, too: those that are free shall stay so."""
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
    """How many IDs a card with so many bytes has; None where it is one."""
    match sharing.kind:
        case "exclusive":
            return None
        case "memory":
            return units(memory, counted_in(sharing))
    return sharing.replicas


def _is_given_out(status: DeviceStatus) -> bool:
    return status.told_healthy and status.cordon is None


def _used_otherwise(rule: ResourceRule, card: AdvertisedDevice, uses: IdsInUse) -> bool:
    """Whether the card is held in a way that the rule does not know: it must not be given out twice."""
    if uses.elsewhere(rule.name, card.uuid):
        return True
    if uses.counts_otherwise(rule.name, card.uuid, counted_in(rule.sharing)):
        return True
    others = uses.beyond(rule.name, card.uuid, card)
    if rule.sharing.kind == "exclusive":
        return bool(others) or uses.has_shares_of_others(card.uuid)
    return not all("::" in device_id or card.knows(device_id) for device_id in others)


def _making_way(rule: ResourceRule, card: AdvertisedDevice, uses: IdsInUse) -> AdvertisedDevice:
    """The card whose range makes way for shares that pods have of another plugin, or of a longer range.

    The kubelet keeps their IDs, and takes back a pod after its restart only where they are listed; beside the
    whole range they would be shares that the card does not have. Those of the range that are in use stay.
    """
    if card.ids is None or card.ids.count is None:
        return card
    others = len(uses.beyond(rule.name, card.uuid, card))
    if not others:
        return card
    left = card.ids.count - others
    for number in uses.numbers(rule.name, card):
        if number < left:
            break
        left -= 1
    left = max(left, 0)
    return replace(card, ids=replace(card.ids, count=left), instead=card.ids.count - left)


def _keeping(resource: Resource, uses: IdsInUse, snapshot: NodeSnapshot) -> Resource:
    """The resource with IDs in use that its rule no longer makes."""
    cards = {card.uuid: card for card in resource.cards}
    strays = {uuid: _strays(resource, uuid, cards.get(uuid), uses) for uuid in uses.cards(resource.name)}
    if not any(strays.values()):
        return resource
    statuses = {status.uuid: status for status in snapshot.devices}
    local = resource.rule.placement == "local"
    for uuid, ids in strays.items():
        if ids:
            status, old = statuses.get(uuid), cards.get(uuid)
            kept = tuple(sorted(ids))
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


def _strays(resource: Resource, uuid: str, card: AdvertisedDevice | None, uses: IdsInUse) -> list[str]:
    """IDs in use on the card that the resource lists nowhere."""
    return [it for it in uses.beyond(resource.name, uuid, card) if resource.index.find(it) is None]
