"""How much of each card is in use, through MXSML."""

from __future__ import annotations

from agent.vendor_api.backend import Usage
from agent.vendors.common import library_cards

from .cards import KIB, MetaxCard, MetaxReading
from .library import Mxsml


def usage(mxsml: Mxsml, card: MetaxCard) -> Usage | None:
    """Memory and compute in use on a card; None if the memory is not readable."""
    reading = MetaxReading(mxsml, card.index, card.dies)
    memory = reading.each(mxsml.memory)
    if not memory:
        return None
    used, total = sum(it.used for it in memory) * KIB, sum(it.total for it in memory) * KIB
    return library_cards.usage(card, used, total, reading.get(mxsml.utilization, default=None))
