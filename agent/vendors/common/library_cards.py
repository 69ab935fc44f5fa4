"""Cards by the indices of a vendor's library, and the uuid that each card keeps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import isnan
from typing import TypeVar

from agent.vendor_api.backend import Device, ProcessUsage, Usage

from .card_faults import NO_UUID

#: More than a card draws in watts, measures in degrees Celsius, or clocks in hertz.
MOST_POWER, MOST_DEGREES, MOST_CLOCK = 1e5, 1e3, 1e11
#: More bytes than a card has.
MOST_MEMORY = 1 << 50


@dataclass(frozen=True, slots=True)
class LibraryCard(ABC):
    """A device, and the index that the library has for it now."""

    index: int
    device: Device

    @property
    def uuid(self) -> str:
        return self.device.uuid

    @property
    @abstractmethod
    def reachable(self) -> bool:
        """Whether calls of the library can reach the card."""


C = TypeVar("C", bound=LibraryCard)


def named(cards: Iterable[C], known: Mapping[str, C], completed: Callable[[C, C], C], vendor: str) -> list[C]:
    """Every card once, under the uuid that the library gives now or gave before.

    `known` are the cards of the survey before, by uuid. `completed(card, before)` fills the gaps of a card
    from the same card of the survey before. A card without a known uuid is nameless: its uuid is made of the
    vendor's name and the index.
    """
    cards = list(cards)
    taken = {card.uuid for card in cards if card.uuid}
    by_uuid: dict[str, C] = {}
    for card in cards:
        before = known.get(card.uuid) if card.uuid else _before(card, known, taken)
        if before is not None and (card.uuid or card.device.fault):
            card = completed(card, before)
        elif not card.uuid:
            card = _nameless(card, vendor)
        if card.uuid not in by_uuid:  # of two cards with one uuid the first one keeps it
            by_uuid[card.uuid] = card
    return list(by_uuid.values())


def _before(card: C, known: Mapping[str, C], taken: set[str]) -> C | None:
    """The same card in the survey before, by its PCI address, or by its index without an address.

    The uuid of that card is added to `taken`.
    """
    index, pci = card.index, card.device.pci
    for before in known.values():
        same = before.device.pci == pci if pci else before.index == index
        if same and before.uuid not in taken and not before.device.nameless:
            taken.add(before.uuid)
            return before
    return None


def _nameless(card: C, vendor: str) -> C:
    uuid, fault = f"{vendor}-nameless-{card.index}", card.device.fault or NO_UUID
    return replace(card, device=replace(card.device, uuid=uuid, nameless=True, fault=fault))


def labelled(cards: Iterable[C], node: Mapping[str, str], own: Mapping[str, Mapping[str, str]]) -> list[C]:
    """The cards with more attributes: `node` for all cards, `own` by uuid for single cards."""
    made = []
    for card in cards:
        attributes = {**node, **card.device.attributes, **own.get(card.uuid, {})}
        made.append(replace(card, device=replace(card.device, attributes=attributes)))
    return made


def usage(card: LibraryCard, used: int | None, total: int | None, percent: float | None) -> Usage:
    """The usage of a card: memory in bytes, at most the card's own, and compute as a part from 0 to 1.

    `total` is the memory that the library tells now. `percent` is the compute in use. None: unknown.
    """
    limit = card.device.memory or total or 0
    return Usage(
        card.uuid,
        memory_used=None if used is None else min(max(0, used), max(0, limit)),
        memory_total=total if total and total > 0 else None,
        utilization=part(percent),
    )


def part(percent: float | None) -> float | None:
    """Percent as a part from 0 to 1; None for an unknown value, and for one that is no number."""
    return None if percent is None or isnan(percent) else min(max(percent, 0.0), 100.0) / 100


def measured(value: float | None, most: float) -> float | None:
    """What a sensor shows; None if no working sensor shows this: below 0, above `most`, or no number."""
    return value if value is not None and 0 <= value <= most else None


def process(card: LibraryCard, pid: int, memory: int | None, percent: float | None = None) -> ProcessUsage:
    """How much of a card a process uses. Libraries write "unknown" as more memory than a card has."""
    if memory is not None and not 0 <= memory <= (card.device.memory or MOST_MEMORY):
        memory = None
    return ProcessUsage(card.uuid, pid, memory, part(percent))


def in_order(cards: Iterable[LibraryCard]) -> list[Device]:
    """The devices in the library's order, each card before its virtual functions."""
    devices = [card.device for card in cards]
    return sorted(devices, key=lambda it: (it.index, -1 if it.slice is None else it.slice))
