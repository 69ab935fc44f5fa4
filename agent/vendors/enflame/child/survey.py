"""Reads all cards of a node once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from agent.vendor_api.backend import Fault
from agent.vendors.common import card_faults, host, library_cards
from agent.vendors.enflame.shared import sysfs

from . import cards
from .cards import EnflameCard
from .library import Efml

Settings = Mapping[str, Any]
Known = Mapping[str, EnflameCard]


def survey(efml: Efml, settings: Settings, known: Known) -> list[EnflameCard]:
    """Read every card. A card that tells no uuid now keeps the one that it has in `known`.

    Raises:
        EfmlError: The library does not tell the number of cards.
    """
    read = [cards.read(efml, settings, index) for index in range(efml.count())]
    shown = [it for it in read if not _is_function(settings, it)]
    return library_cards.named(shown, known, cards.completed, "enflame")


def _is_function(settings: Settings, card: EnflameCard) -> bool:
    """Whether this is a virtual function of a card that this node has, too."""
    return bool(card.device.pci) and sysfs.of_a_card(host.sysfs(settings), card.device.pci or "")


def with_faults(found: Iterable[EnflameCard], more: Mapping[str, Fault]) -> list[EnflameCard]:
    """The cards with further faults by uuid. Such a fault replaces "unreadable", because it is the cause."""
    return [replace(it, device=replace(it.device, fault=_graver(it, more.get(it.uuid)))) for it in found]


def _graver(card: EnflameCard, more: Fault | None) -> Fault | None:
    own = card.device.fault
    return more if more and (own is None or own.reason == card_faults.UNREADABLE) else own
