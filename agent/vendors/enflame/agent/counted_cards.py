"""The cards of each resource that schedulers of Enflame's cards read on the Node. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from agent.vendor_api.agent import CountedCard, Device, Offering, ResourceRule
from agent.vendors.enflame.shared import constants

from .names import Brand

Offers = Callable[[Sequence[ResourceRule], Sequence[Device]], Offering]


def counted_cards(
    brand: Brand, offers: Offers, rules: Sequence[ResourceRule], devices: Sequence[Device]
) -> Sequence[CountedCard]:
    """The offered cards of the resources that are parts of cards, each with the number of its parts."""
    offered = offers(rules, devices).rules
    return tuple(
        card
        for name in (brand.shared, brand.memory, brand.drs)
        for card in _cards(brand, offered, name, devices)
    )


def _cards(
    brand: Brand, offered: Sequence[ResourceRule], name: str, devices: Sequence[Device]
) -> Iterator[CountedCard]:
    replicas = _replicas(offered, name)
    for device in devices:
        if device.uuid in replicas:
            foreign, count = _foreign(device), replicas[device.uuid]
            if name == brand.drs:
                count = constants.SLICES - foreign
            elif foreign:
                count = 0
            yield CountedCard(name, device, count, _profiles(device))


def _replicas(offered: Sequence[ResourceRule], name: str) -> Mapping[str, int]:
    """The number of IDs of each card of the resource, by uuid."""
    return {
        str(uuid): rule.sharing.replicas
        for rule in offered
        if rule.name == name and isinstance(rule.devices, tuple)
        for uuid in rule.devices
    }


def _foreign(card: Device) -> int:
    """Sixths of the card that foreign slices take."""
    text = card.attributes.get(constants.FOREIGN_SIXTHS, "")
    return int(text) if text.isdecimal() and len(text) < 4 else 0


def _profiles(card: Device) -> Mapping[str, str]:
    """Name to number of the profiles of slices that the card offers."""
    listed = card.attributes.get(constants.PROFILES, "").split(",")
    return {name: number for name, colon, number in (it.partition(":") for it in listed) if colon}
