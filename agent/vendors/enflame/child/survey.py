"""All cards of a node, as one look at each of them shows them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from agent.vendor_api.backend import Fault
from agent.vendors.common import card_faults, host, library_cards
from agent.vendors.enflame import sysfs

from . import cards
from .cards import EnflameCard
from .library import Efml

Settings = Mapping[str, Any]
Known = Mapping[str, EnflameCard]


def survey(efml: Efml, settings: Settings, known: Known) -> list[EnflameCard]:
    """Every card under the uuid that it has or had.

    Raises:
        EfmlError: The library does not say how many there are.
    """
    looks = [cards.read(efml, settings, index) for index in range(efml.count())]
    shown = [it for it in looks if not _of_a_card(settings, it)]
    return library_cards.named(shown, known, cards.completed, "enflame")


def _of_a_card(settings: Settings, look: EnflameCard) -> bool:
    """Whether it is a virtual function of a card that is here itself."""
    return bool(look.device.pci) and sysfs.of_a_card(host.sysfs(settings), look.device.pci or "")


def with_faults(found: Iterable[EnflameCard], more: Mapping[str, Fault]) -> list[EnflameCard]:
    """The cards with what is known of them beside what they say; it tells why one cannot be read."""
    return [replace(it, device=replace(it.device, fault=_graver(it, more.get(it.uuid)))) for it in found]


def _graver(card: EnflameCard, more: Fault | None) -> Fault | None:
    own = card.device.fault
    return more if more and (own is None or own.reason == card_faults.UNREADABLE) else own
