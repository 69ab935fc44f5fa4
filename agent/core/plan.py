"""What each resource lists now: snapshot, rules and IDs in use in, resources out. Pure."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from agent.core.model import (
    AdvertisedDevice,
    DeviceStatus,
    IdRange,
    NodeSnapshot,
    Owner,
    Plan,
    Resource,
    VendorState,
    share,
)
from agent.core.units import UNKNOWN, counted_in, units
from agent.core.vendor import IdForm, Policy, ResourceRule, Sharing

#: What each way to count a card packs or spreads without a word of the rule.
_POLICIES: Mapping[str, Policy] = {"exclusive": "aligned", "replicas": "distributed", "memory": "packed"}
#: Pods that a sentence names.
NAMED = 5
#: Resource name to device ID to the uuid of its card.
Held = Mapping[str, Mapping[str, str]]
#: Resource name to the cards on which shares of it lie by IDs of other cards.
Lying = Mapping[str, Collection[str]]
#: Resource to card to what the IDs in use there count memory in, empty of those that do not.
Counted = Mapping[str, Mapping[str, Collection[str]]]


@dataclass(frozen=True, slots=True)
class Offer:
    """A vendor and the resources made of its devices. Rules of one name are one resource."""

    vendor: str
    rules: tuple[ResourceRule, ...]
    #: Whether they may name the same cards, each of which is the first's that takes of it.
    dynamic: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """Cards that are to be one resource's, and that pods hold as another's: theirs until they are free."""

    resource: str
    holder: str
    cards: tuple[str, ...]
    #: The cards or slices on which IDs of the holder are in use.
    held: frozenset[str]


def plan(
    offers: Sequence[Offer],
    snapshot: NodeSnapshot,
    held: Held,
    before: Plan,
    owners: Mapping[str, str] | None = None,
    withheld: Collection[str] = (),
    forgotten: Mapping[str, Collection[str]] | None = None,
    external: Collection[str] = (),
    lying: Lying | None = None,
    counted: Counted | None = None,
) -> dict[str, Resource]:
    """The resources to serve. IDs in use stay listed until freed, whatever the config says now.

    `owners`: resource to vendor, of those in use. `withheld`: vendors and resources of which nothing is to be
    given out. `forgotten`: resource to IDs in use that the kubelet takes for free: they are not to be given
    out. `external`: cards that a scheduler gave to pods that the kubelet asks for nothing: they are given
    whole to nobody else, where the resource heeds schedulers. `lying`: resource to cards on which shares of
    it lie by IDs of other cards. `counted`: what IDs in use count memory in, which is said of all of them.

    A resource without devices is planned only once it has been served: the kubelet must see it empty. IDs in
    use bring it back after a restart, but not before its vendor was heard: they would seem lost until then.
    A card in use in another way (by another resource, whole where it is now shared or sliced, in units of
    memory where it is not, or of another size) is offered once free; a resource that waits for all of its
    cards is planned empty, so that the Node shows it. Where the resources of a vendor may name the same
    cards, one in use by another is listed, and well for nobody new.
    """
    uses = _Uses(held, _kin(snapshot.devices), lying or {}, counted or {})
    starting = {it.name for it in snapshot.vendors if it.state is VendorState.STARTING}
    resources: dict[str, Resource] = {}
    stems = _stems(snapshot.devices)
    for offer, rule, chosen in _dealt(offers, snapshot):
        vendor, beside = offer.vendor, _beside(offer, rule)
        offered = [_card(rule, status, stems) for status in chosen if rule.form in stems[status.uuid]]
        modes = [uses.mode(rule.name, card, beside) for card in offered]
        moded = [_in_mode(rule, *one, uses) for one in zip(offered, modes, strict=True)]
        left = (card for card in moded if card.mode or not _used_otherwise(rule, card, uses))
        cards = tuple(_making_way(rule, card, uses) for card in left)
        served = rule.name in before or (rule.name in held and vendor not in starting)
        known = resources.get(rule.name)
        if known is None and (offered or served):
            policy = _policy(rule, dynamic=offer.dynamic)
            resources[rule.name] = Resource(rule.name, vendor, rule, policy, cards, beside=beside)
        elif known is not None and known.vendor == vendor:
            resources[rule.name] = _joined(known, rule, cards, snapshot)
    offered_names = {rule.name for offer in offers for rule in offer.rules}
    resources |= _orphans(held.keys() - offered_names - before.keys(), held, snapshot, owners or {})
    for name, resource in before.items():
        if name not in resources and not (resource.retired and not resource.cards and name not in held):
            resources[name] = Resource(
                name, resource.vendor, resource.rule, resource.policy, (), retired=True
            )
    kept = {name: _keeping(it, uses, snapshot) for name, it in resources.items()}
    well = frozenset(it.uuid for it in snapshot.devices if it.told_healthy)
    cordoned = frozenset(it.uuid for it in snapshot.devices if it.cordon is not None) & well
    away = cordoned | well.intersection(external)
    given = {
        name: _withheld(it)
        if it.vendor in withheld or name in withheld
        else _holding(it, uses, away if _heeds(it) else cordoned)
        for name, it in kept.items()
    }
    return {name: _hiding(it, (forgotten or {}).get(name, ())) for name, it in given.items()}


def _beside(offer: Offer, rule: ResourceRule) -> frozenset[str]:
    """The other resources that may name the cards of this one."""
    names = {it.name for it in offer.rules if it.name != rule.name}
    return frozenset(names) if offer.dynamic else frozenset()


def _in_mode(rule: ResourceRule, card: AdvertisedDevice, mode: str, uses: _Uses) -> AdvertisedDevice:
    """The card as who offers it beside others lists it: those who have it alone keep it."""
    return replace(card, healthy=False, held=uses.listed(rule.name, card), mode=mode) if mode else card


def _heeds(resource: Resource) -> bool:
    """Whether a card that a scheduler shares out on its own is not to be given whole to a pod."""
    return resource.rule.placement != "local" and resource.rule.sharing.kind == "exclusive"


def waits(
    offers: Iterable[Offer],
    snapshot: NodeSnapshot,
    held: Held,
    lying: Lying | None = None,
    counted: Counted | None = None,
) -> tuple[Wait, ...]:
    """What of the config waits until pods end, by resource and holder; that may be the resource itself."""
    kin = _kin(snapshot.devices)
    busy = {name: frozenset(ids.values()).union((lying or {}).get(name, ())) for name, ids in held.items()}
    found: list[Wait] = []
    for offer, rule, chosen in _dealt(offers, snapshot):
        for holder in sorted(busy.keys() - {rule.name} - _beside(offer, rule)):
            on = {it.uuid: busy[holder] & {it.uuid, *kin.get(it.uuid, ())} for it in chosen}
            if cards := tuple(uuid for uuid, its in on.items() if its):
                found.append(Wait(rule.name, holder, cards, frozenset().union(*on.values())))
        its = (counted or {}).get(rule.name, {})
        strange = tuple(it.uuid for it in chosen if UNKNOWN in its.get(it.uuid, ()))
        if strange:
            found.append(Wait(rule.name, rule.name, strange, frozenset(strange)))
    return tuple(found)


def awaited(it: Wait, owners: Sequence[Owner | None]) -> str:
    """The sentence for people; `owners` are those who hold the cards."""
    cards = "1 card" if len(it.cards) == 1 else f"{len(it.cards)} cards"
    how = "in shares of another plugin's size" if it.holder == it.resource else f"as {it.holder}"
    return f"{it.resource} waits for {cards} that pods hold {how}: {named(owners)}"


def named(owners: Sequence[Owner | None]) -> str:
    """The first of these pods by name, and how many more there are."""
    names = [f"{one.namespace}/{one.pod}" if one and one.pod else "one not known yet" for one in owners]
    pods = list(dict.fromkeys(names))
    more = f" and {len(pods) - NAMED} more" if len(pods) > NAMED else ""
    return ", ".join(pods[:NAMED]) + more


def _dealt(
    offers: Iterable[Offer], snapshot: NodeSnapshot
) -> Iterator[tuple[Offer, ResourceRule, Sequence[DeviceStatus]]]:
    """Offer, rule, and the devices that are to be its: a device is the first's that names it, or each's."""
    for offer in offers:
        its = [it for it in snapshot.of(offer.vendor) if not it.device.nameless]
        left: dict[str, list[DeviceStatus]] = {}
        for rule in offer.rules:
            whose = rule.name if offer.dynamic else ""
            chosen = _chosen(rule, left.setdefault(whose, its))
            taken = {status.uuid for status in chosen}
            left[whose] = [status for status in left[whose] if status.uuid not in taken]
            yield offer, rule, chosen


def _withheld(resource: Resource) -> Resource:
    return replace(resource, cards=tuple(replace(card, healthy=False) for card in resource.cards))


def _holding(resource: Resource, uses: _Uses, cordoned: frozenset[str]) -> Resource:
    """The resource whose cards that are cordoned, or in use elsewhere, are well for who has them alone.

    The kubelet must take a pod back after its restart, which it does only where the pod's IDs are healthy.
    """
    if cordoned.isdisjoint(card.uuid for card in resource.cards):
        return resource
    held = (
        replace(card, healthy=False, held=uses.listed(resource.name, card)) if card.uuid in cordoned else card
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


def _kin(statuses: Iterable[DeviceStatus]) -> dict[str, list[str]]:
    """A card to the slices made of it, and a slice to its card."""
    kin: defaultdict[str, list[str]] = defaultdict(list)
    for status in statuses:
        if status.device.parent is not None:
            kin[status.device.parent].append(status.uuid)
            kin[status.uuid].append(status.device.parent)
    return kin


def _orphans(
    names: Iterable[str], held: Held, snapshot: NodeSnapshot, owners: Mapping[str, str]
) -> dict[str, Resource]:
    """Resources in use that nobody offers now: the config left them, or their vendor can not be asked."""
    heard = {it.name for it in snapshot.vendors if it.state is not VendorState.STARTING}
    vendors = {status.uuid: status.vendor for status in snapshot.devices}
    found: dict[str, Resource] = {}
    for name in sorted(names):
        known = (vendors[uuid] for uuid in held[name].values() if uuid in vendors)
        vendor = next(known, owners.get(name))
        if vendor in heard:
            rule = ResourceRule(name)
            found[name] = Resource(name, vendor, rule, _policy(rule), (), retired=True)
    return found


def absent(offers: Iterable[Offer], snapshot: NodeSnapshot) -> tuple[str, ...]:
    """A sentence for each rule that names cards which its vendor does not list."""
    heard = {it.name for it in snapshot.vendors if it.state is VendorState.OPEN}
    found = (
        _absent(rule, offer.vendor, snapshot.of(offer.vendor))
        for offer in offers
        if offer.vendor in heard
        for rule in offer.rules
    )
    return tuple(sentence for sentence in found if sentence)


def _absent(rule: ResourceRule, vendor: str, statuses: Sequence[DeviceStatus]) -> str:
    whole = sum(it.device.parent is None for it in statuses)
    if isinstance(rule.devices, int) and rule.devices > whole:
        return f"{rule.name} asks for {rule.devices} cards, {vendor} lists {whole}"
    if not isinstance(rule.devices, tuple):
        return ""
    known = {it.uuid for it in statuses} | {it.device.index for it in statuses}
    missing = ", ".join(str(it) for it in rule.devices if it not in known)
    return f"{rule.name} names {missing}, which {vendor} does not list" if missing else ""


def _chosen(rule: ResourceRule, statuses: Sequence[DeviceStatus]) -> Sequence[DeviceStatus]:
    """A slice is chosen by its uuid only."""
    whole = [it for it in statuses if it.device.parent is None]
    if rule.devices == "all":
        return whole
    if isinstance(rule.devices, int):
        return whole[: rule.devices]
    wanted = set(rule.devices)
    indices = {it.uuid for it in whole if it.device.index in wanted}
    return [it for it in statuses if it.uuid in wanted or it.uuid in indices]


def _policy(rule: ResourceRule, *, dynamic: bool = False) -> Policy:
    """Shares are spread, but where whole cards are wanted, too: those that are free shall stay so."""
    default = _POLICIES[rule.sharing.kind]
    return rule.policy or ("packed" if dynamic and default == "distributed" else default)


def _card(
    rule: ResourceRule, status: DeviceStatus, stems: Mapping[str, Mapping[IdForm, str]]
) -> AdvertisedDevice:
    # Where a scheduler chooses the card, a NUMA hint could make the kubelet skip the preferred call.
    numa = status.device.numa if rule.placement == "local" else None
    memory, names = status.device.memory, stems[status.uuid]
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


class _Uses:
    """The device IDs in use, by resource and card. There may be tens of thousands: each is looked at once."""

    def __init__(self, held: Held, kin: Mapping[str, Sequence[str]], lying: Lying, counted: Counted) -> None:
        self._kin = kin
        self._lying = lying
        self._counted = counted
        self._ids = {resource: _by_card(ids) for resource, ids in held.items()}
        self._others: dict[tuple[str, AdvertisedDevice], list[str]] = {}

    def cards(self, resource: str) -> Iterable[str]:
        """The cards on which IDs of the resource are in use."""
        return self._ids.get(resource, {})

    def elsewhere(self, resource: str, uuid: str) -> bool:
        """Whether another resource is in use on the card, or any on its slices or its own card."""
        kin = self._kin.get(uuid, ())
        return any(
            (uuid in cards and name != resource) or any(it in cards for it in kin)
            for name, cards in (*self._ids.items(), *self._lying.items())
        )

    def mode(self, resource: str, card: AdvertisedDevice, beside: Collection[str]) -> str:
        """Which of the resources beside this one has the card, or a slice of it; empty where none has."""
        places = {card.uuid, *self._kin.get(card.uuid, ())}
        its = (*self._ids.items(), *self._lying.items())
        return min(
            (name for name, cards in its if name in beside and not places.isdisjoint(cards)), default=""
        )

    def counts_otherwise(self, resource: str, uuid: str, unit: str) -> bool:
        """Whether IDs of the resource in use on the card stand for something else than this much memory."""
        return any(it != unit for it in self._counted.get(resource, {}).get(uuid, ()))

    def has_shares_of_others(self, uuid: str) -> bool:
        """Whether shares lie on the card by IDs of other cards."""
        return any(uuid in cards for cards in self._lying.values())

    def beyond(self, resource: str, uuid: str, card: AdvertisedDevice | None) -> list[str]:
        """IDs of the resource in use on the card that its rule does not make."""
        ids = self._ids.get(resource, {}).get(uuid, [])
        if card is None or card.ids is None or not ids:
            return ids
        if (resource, card) not in self._others:
            self._others[resource, card] = card.ids.without(ids)
        return self._others[resource, card]

    def listed(self, resource: str, card: AdvertisedDevice) -> tuple[str, ...]:
        """IDs of the resource in use on the card that it lists."""
        ids = self._ids.get(resource, {}).get(card.uuid, [])
        return tuple(sorted(device_id for device_id in ids if device_id in card))

    def numbers(self, resource: str, card: AdvertisedDevice) -> list[int]:
        """Those of its range's IDs that are in use, highest first."""
        its = (share(it) for it in self.listed(resource, card))
        return sorted((it.number for it in its if it), reverse=True)


def _by_card(ids: Mapping[str, str]) -> dict[str, list[str]]:
    cards: defaultdict[str, list[str]] = defaultdict(list)
    for device_id, uuid in ids.items():
        cards[uuid].append(device_id)
    return cards


def _used_otherwise(rule: ResourceRule, card: AdvertisedDevice, uses: _Uses) -> bool:
    """Whether the card is held in a way that the rule does not know: it must not be given out twice."""
    if uses.elsewhere(rule.name, card.uuid):
        return True
    if uses.counts_otherwise(rule.name, card.uuid, counted_in(rule.sharing)):
        return True
    others = uses.beyond(rule.name, card.uuid, card)
    if rule.sharing.kind == "exclusive":
        return bool(others) or uses.has_shares_of_others(card.uuid)
    return not all("::" in device_id or card.knows(device_id) for device_id in others)


def _making_way(rule: ResourceRule, card: AdvertisedDevice, uses: _Uses) -> AdvertisedDevice:
    """The card whose range makes way for shares that pods of another plugin have.

    The kubelet keeps their IDs, and takes back a pod after its restart only where they are listed; beside the
    whole range they would be shares that the card does not have. Those of ours that are in use stay.
    """
    if card.ids is None or card.ids.count is None:
        return card
    others = sum(card.knows(it) for it in uses.beyond(rule.name, card.uuid, card))
    if not others:
        return card
    left = card.ids.count - others
    for number in uses.numbers(rule.name, card):
        if number < left:
            break
        left -= 1
    left = max(left, 0)
    return replace(card, ids=replace(card.ids, count=left), instead=card.ids.count - left)


def _keeping(resource: Resource, uses: _Uses, snapshot: NodeSnapshot) -> Resource:
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


def _strays(resource: Resource, uuid: str, card: AdvertisedDevice | None, uses: _Uses) -> list[str]:
    """IDs in use on the card that the resource lists nowhere."""
    return [it for it in uses.beyond(resource.name, uuid, card) if resource.index.find(it) is None]


def _stems(statuses: Sequence[DeviceStatus]) -> dict[str, dict[IdForm, str]]:
    """Card to its ID in each form. A minor that is not known, or another card's too, makes none."""
    shorts = short_forms([status.uuid for status in statuses])
    stems: dict[str, dict[IdForm, str]] = {}
    minors: set[tuple[str, int]] = set()
    for it in statuses:
        stems[it.uuid] = {"uuid": it.uuid, "short": shorts[it.uuid]}
        minor = it.device.minor
        if minor is not None and (it.vendor, minor) not in minors:
            minors.add((it.vendor, minor))
            stems[it.uuid]["minor"] = str(minor)
    return stems


def short_forms(uuids: Sequence[str]) -> dict[str, str]:
    """Six base32 characters of SHA-256(uuid) each, longer for those that collide; derived, never stored."""
    left = {
        uuid: base64.b32encode(hashlib.sha256(uuid.encode()).digest()).decode().lower().rstrip("=")
        for uuid in uuids
    }
    shorts: dict[str, str] = {}
    length = 6
    while left:
        count = Counter(digest[:length] for digest in left.values())
        alone = {uuid for uuid, digest in left.items() if count[digest[:length]] == 1}
        shorts.update((uuid, left.pop(uuid)[:length]) for uuid in alone)
        length += 1
    return shorts
