"""How much of each card is in use, through EFML."""

from __future__ import annotations

from agent.vendor_api.backend import Usage
from agent.vendors.common import library_cards

from .cards import EnflameCard, EnflameReading
from .library import Efml


def usage(efml: Efml, card: EnflameCard) -> Usage | None:
    """Memory and compute in use on a card; None if the memory is not readable."""
    reading = EnflameReading(efml, card.index)
    memory = reading.get(efml.memory, None)
    if memory is None:
        return None
    return library_cards.usage(card, memory.used, memory.total, reading.get(efml.utilization, None))
