"""How much of each card is in use, through EFML.

EFML does not know the slices of DRS, so their use is told as the card's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from agent.vendor_api.backend import Usage
from agent.vendors.common import library_cards
from agent.vendors.common.library_cards import MOST_CLOCK, MOST_DEGREES, MOST_POWER, measured, part

from .cards import EnflameCard, EnflameReading
from .library import Efml


def usages(efml: Efml, cards: Iterable[EnflameCard]) -> list[Usage]:
    """The use of each card. A figure that fails is None, and a card without any figure is left out."""
    found = [_card(efml, card) for card in cards if card.reachable]
    return [it for it in found if it != Usage(it.uuid)]


def _card(efml: Efml, card: EnflameCard) -> Usage:
    reading = EnflameReading(efml, card.index)
    memory = reading.get(efml.memory, None)
    power = reading.get(efml.power, None)
    temperature = reading.get(efml.temperature, None)
    used, total = (memory.used, memory.total) if memory else (None, None)
    return replace(
        library_cards.usage(card, used, total, reading.get(efml.utilization, None)),
        memory_utilization=part(reading.get(efml.memory_utilization, None)),
        power=measured(power.drawn if power else None, MOST_POWER),
        temperature=measured(temperature.chip if temperature else None, MOST_DEGREES),
        memory_temperature=measured(temperature.memory if temperature else None, MOST_DEGREES),
        clock=measured(reading.get(efml.clock, None), MOST_CLOCK),
        memory_clock=measured(reading.get(efml.memory_clock, None), MOST_CLOCK),
        ecc_errors=_ecc_errors(reading),
    )


def _ecc_errors(reading: EnflameReading) -> dict[str, int]:
    ecc = reading.get(reading.efml.ecc, None)
    if ecc is not None:
        return {"corrected": ecc.single_bit, "uncorrected": ecc.double_bit}
    rma = reading.get(reading.efml.rma, None)
    return {} if rma is None or rma.double_bit is None else {"uncorrected": rma.double_bit}
