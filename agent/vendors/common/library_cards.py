"""Cards by the numbers of a vendor's library, and the uuid that each of them keeps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from agent.vendor_api.backend import Device

from .card_faults import NO_UUID


@dataclass(frozen=True, slots=True)
class LibraryCard(ABC):
    """A device and the number that the library knows it by now."""

    index: int
    device: Device

    @property
    def uuid(self) -> str:
        return self.device.uuid

    @property
    @abstractmethod
    def here(self) -> bool:
        """Whether the card can be asked anything."""


C = TypeVar("C", bound=LibraryCard)


def named(looks: Iterable[C], known: Mapping[str, C], completed: Callable[[C, C], C], vendor: str) -> list[C]:
    """Every card once, under the uuid that the card tells or told.

    `known` are the cards by uuid at the look before. `completed(look, before)` fills a look from the same
    card at the look before. A card without any uuid is nameless.
    """
    looks = list(looks)
    taken = {look.uuid for look in looks if look.uuid}
    found: dict[str, C] = {}
    for look in looks:
        before = known.get(look.uuid) if look.uuid else _before(look, known, taken)
        if before is not None and (look.uuid or look.device.fault):
            look = completed(look, before)
        elif not look.uuid:
            look = _nameless(look, vendor)
        if look.uuid not in found:  # a library that tells one uuid twice is not believed the second time
            found[look.uuid] = look
    return list(found.values())


def _before(look: C, known: Mapping[str, C], taken: set[str]) -> C | None:
    """The card that was there, by its PCI address or else its number."""
    index, pci = look.index, look.device.pci
    for card in known.values():
        same = card.device.pci == pci if pci else card.index == index
        if same and card.uuid not in taken and not card.device.nameless:
            taken.add(card.uuid)
            return card
    return None


def _nameless(look: C, vendor: str) -> C:
    """A card that tells no uuid, and of which nothing here knows any."""
    uuid, fault = f"{vendor}-nameless-{look.index}", look.device.fault or NO_UUID
    return replace(look, device=replace(look.device, uuid=uuid, nameless=True, fault=fault))


def labelled(found: Iterable[C], node: Mapping[str, str], own: Mapping[str, Mapping[str, str]]) -> list[C]:
    """The cards with the attributes that all of them have, and by uuid those that each has of its own."""
    made = []
    for card in found:
        attributes = {**node, **card.device.attributes, **own.get(card.uuid, {})}
        made.append(replace(card, device=replace(card.device, attributes=attributes)))
    return made


def in_order(found: Iterable[LibraryCard]) -> list[Device]:
    """The devices in the library's order, each card before its virtual functions."""
    devices = [card.device for card in found]
    return sorted(devices, key=lambda it: (it.index, -1 if it.slice is None else it.slice))
