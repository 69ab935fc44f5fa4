"""Which cards each resource rule gets: offers and snapshot in, cards of each rule out. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from agent.core.model import DeviceStatus, NodeSnapshot, VendorState
from agent.vendor_api.agent import ResourceRule


class Offer(Struct, frozen=True):
    """The cards of one vendor that resources are to have. Rules with the same name are one resource."""

    vendor: str
    rules: tuple[ResourceRule, ...]
    #: Whether several resources may name the same card. The first one that gives it to a pod has the card.
    dynamic: bool = False
    #: The names of the resources with made hardware.
    made: frozenset[str] = frozenset()


def cards_of_rules(
    offers: Iterable[Offer], snapshot: NodeSnapshot
) -> Iterator[tuple[Offer, ResourceRule, Sequence[DeviceStatus]]]:
    """Yield each rule with its offer and its devices, in the order of the config.

    A device belongs to the first rule that names it. In a dynamic offer it belongs to every resource that
    names it.
    """
    for offer in offers:
        statuses = [it for it in snapshot.of(offer.vendor) if not it.device.nameless]
        left: dict[str, list[DeviceStatus]] = {}
        for rule in offer.rules:
            competition = rule.name if offer.dynamic else ""
            chosen = _chosen(rule, left.setdefault(competition, statuses))
            taken = {status.uuid for status in chosen}
            left[competition] = [status for status in left[competition] if status.uuid not in taken]
            yield offer, rule, chosen


def other_modes(offer: Offer, rule: ResourceRule) -> frozenset[str]:
    """The other resources that may have the cards of this rule's resource."""
    names = {it.name for it in offer.rules if it.name != rule.name}
    return frozenset(names) if offer.dynamic else frozenset()


def _chosen(rule: ResourceRule, statuses: Sequence[DeviceStatus]) -> Sequence[DeviceStatus]:
    """The devices that the rule names. Counts and indices name whole cards; only a uuid names a slice."""
    whole = [it for it in statuses if it.device.parent is None]
    if rule.devices == "all":
        return whole
    if isinstance(rule.devices, int):
        return whole[: rule.devices]
    wanted = set(rule.devices)
    indices = {it.uuid for it in whole if it.device.index in wanted}
    return [it for it in statuses if it.uuid in wanted or it.uuid in indices]


def missing_cards(offers: Iterable[Offer], snapshot: NodeSnapshot) -> tuple[str, ...]:
    """A sentence for each rule that names cards which its vendor does not list."""
    open_vendors = {it.name for it in snapshot.vendors if it.state is VendorState.OPEN}
    found = (
        _absent(rule, offer.vendor, snapshot.of(offer.vendor))
        for offer in offers
        if offer.vendor in open_vendors
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
