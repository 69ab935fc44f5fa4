"""All cards of a node, as one look at each of them shows them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from agent.vendor_api.backend import Device, Fault
from agent.vendors.common import mount_points
from agent.vendors.enflame import sysfs

from . import cards, faults
from .cards import Card
from .library import Efml

Settings = Mapping[str, Any]
Known = Mapping[str, Card]


def survey(efml: Efml, settings: Settings, known: Known) -> list[Card]:
    """Every card under the uuid that it has or had.

    Raises:
        EfmlError: The library does not say how many there are.
    """
    looks = [cards.read(efml, settings, index) for index in range(efml.count())]
    return _named([it for it in looks if not _of_a_card(settings, it)], known)


def _of_a_card(settings: Settings, look: Card) -> bool:
    """Whether it is a virtual function of a card that is here itself."""
    return bool(look.device.pci) and sysfs.of_a_card(mount_points.sysfs(settings), look.device.pci or "")


def _named(looks: Iterable[Card], known: Known) -> list[Card]:
    """Fill what sick cards no longer tell, their names too, from what they told before."""
    looks = list(looks)
    taken = {look.uuid for look in looks if look.uuid}
    found: dict[str, Card] = {}
    for look in looks:
        before = known.get(look.uuid) if look.uuid else _before(look, known, taken)
        if before is not None and look.device.fault:
            look = cards.completed(look, before)
        elif not look.uuid:
            look = _nameless(look)
        if look.uuid not in found:  # a library that tells one uuid twice is not believed the second time
            found[look.uuid] = look
    return list(found.values())


def _before(look: Card, known: Known, taken: set[str]) -> Card | None:
    """The card that was there, by its PCI address or else its number."""
    index, pci = look.index, look.device.pci
    for card in known.values():
        same = card.device.pci == pci if pci else card.index == index
        if same and card.uuid not in taken and not card.device.nameless:
            taken.add(card.uuid)
            return card
    return None


def _nameless(look: Card) -> Card:
    """A card that tells no uuid, and of which nobody here knows any."""
    fault = look.device.fault or Fault(faults.UNREADABLE, "the card tells no uuid")
    uuid = f"enflame-nameless-{look.index}"
    return replace(look, device=replace(look.device, uuid=uuid, nameless=True, fault=fault))


def with_faults(found: Iterable[Card], more: Mapping[str, Fault]) -> list[Card]:
    """The cards with what is known of them beside what they say; it tells why one can not be read."""
    return [replace(it, device=replace(it.device, fault=_graver(it, more.get(it.uuid)))) for it in found]


def _graver(card: Card, more: Fault | None) -> Fault | None:
    own = card.device.fault
    return more if more and (own is None or own.reason == faults.UNREADABLE) else own


def labelled(
    found: Iterable[Card], node: Mapping[str, str], own: Mapping[str, Mapping[str, str]]
) -> list[Card]:
    """The cards with what all of them have, and with what else each has."""
    made = []
    for card in found:
        attributes = {**node, **card.device.attributes, **own.get(card.uuid, {})}
        made.append(replace(card, device=replace(card.device, attributes=attributes)))
    return made


def devices(found: Sequence[Card]) -> list[Device]:
    """In the library's order."""
    return sorted((card.device for card in found), key=lambda it: it.index)
