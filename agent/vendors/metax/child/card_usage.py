"""How much of each card and slice is in use, and by which processes, through MXSML.

MXSML tells neither how much compute a process uses, nor the energy that a card took.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

from agent.vendor_api.backend import ProcessUsage, Usage
from agent.vendors.common import library_cards
from agent.vendors.common.library_cards import MOST_CLOCK, MOST_DEGREES, MOST_POWER, measured, part

from .abi import ClockIp, TemperatureSensor, UsageIp
from .cards import KIB, MetaxCard, MetaxReading
from .layouts import SgpuSlice
from .library import Mxsml, MxsmlError
from .values import MxsmlProcess, Sgpu

T = TypeVar("T")

MIB = 1 << 20


def usages(mxsml: Mxsml, cards: Iterable[MetaxCard]) -> list[Usage]:
    """The use of each card and of each slice, which has the id of its partition. Figures that fail are None.

    A card or a slice without any figure is left out.
    """
    found = [it for card in cards if card.reachable for it in (_card(mxsml, card), *_slices(mxsml, card))]
    return [it for it in found if it != Usage(it.uuid)]


def _card(mxsml: Mxsml, card: MetaxCard) -> Usage:
    reading = MetaxReading(mxsml, card.index, card.dies)
    memory = _of_all_dies(reading, mxsml.memory)
    used = sum(it.used for it in memory) * KIB if memory else None
    total = sum(it.total for it in memory) * KIB if memory else None
    return replace(
        library_cards.usage(card, used, total, _percent(reading, UsageIp.XCORE)),
        encoder_utilization=part(_percent(reading, UsageIp.VPUE)),
        decoder_utilization=part(_percent(reading, UsageIp.VPUD)),
        power=measured(reading.get(mxsml.power, default=None), MOST_POWER),
        temperature=measured(_hottest(reading, TemperatureSensor.HOTSPOT), MOST_DEGREES),
        memory_temperature=measured(_hottest(reading, TemperatureSensor.HBM), MOST_DEGREES),
        clock=measured(reading.get(mxsml.clock, ClockIp.XCORE, default=None), MOST_CLOCK),
        memory_clock=measured(reading.get(mxsml.clock, ClockIp.MC0, default=None), MOST_CLOCK),
        ecc_errors=_ecc_errors(reading),
    )


def _of_all_dies(reading: MetaxReading, call: Callable[..., T]) -> list[T]:
    """The results of a call about the card, or about each of its dies; none if one of them fails."""
    found = reading.each(call)
    return found if len(found) == len(list(reading.parts())) else []


def _percent(reading: MetaxReading, engine: int) -> float | None:
    """Percent of an engine, which is the mean of the dies."""
    found = _of_all_dies(reading, partial(reading.mxsml.utilization, engine=engine))
    return sum(found) / len(found) if found else None


def _hottest(reading: MetaxReading, sensor: int) -> float | None:
    """Degrees Celsius of the hottest die."""
    return max(_of_all_dies(reading, partial(reading.mxsml.temperature, sensor=sensor)), default=None)


def _ecc_errors(reading: MetaxReading) -> dict[str, int]:
    errors = _of_all_dies(reading, reading.mxsml.ecc)
    if not errors:
        return {}
    return {
        "corrected": sum(it.sram_corrected + it.dram_corrected for it in errors),
        "uncorrected": sum(it.sram_uncorrected + it.dram_uncorrected for it in errors),
    }


# Slices


def _slices(mxsml: Mxsml, card: MetaxCard) -> Iterator[Usage]:
    """The use of the card's slices. Whether their utilization is a part of the card is not published."""
    with suppress(MxsmlError):  # without a list of slices, the card's own figures are left
        if card.may_be_sliced and mxsml.sgpu_count(card.index):
            for sgpu in mxsml.sgpus(card.index):
                yield _slice(MetaxReading(mxsml, card.index), card, sgpu)


def _slice(reading: MetaxReading, card: MetaxCard, sgpu: Sgpu) -> Usage:
    mxsml, limit = reading.mxsml, sgpu.vram * MIB
    memory = reading.get(mxsml.sgpu_memory, sgpu.id, default=None)
    return Usage(
        SgpuSlice(card.uuid, sgpu).id,
        memory_used=None if memory is None else min(max(0, memory.used), limit),
        memory_total=limit if memory else None,
        utilization=part(reading.get(mxsml.sgpu_utilization, sgpu.id, default=None)),
        parent=card.uuid,
    )


# Processes


def processes(mxsml: Mxsml, cards: Iterable[MetaxCard]) -> list[ProcessUsage]:
    """The processes on each card. A process on a slice is listed for the slice, by the id of its partition.

    Raises:
        MxsmlError: No card tells its processes.
    """
    found: list[ProcessUsage] = []
    asked = [card for card in cards if card.reachable]
    failed: list[MxsmlError] = []
    for card in asked:
        try:
            uses = mxsml.processes(card.index, card.bdf)
        except MxsmlError as error:
            failed.append(error)
        else:
            found += _named(mxsml, card, uses)
    if failed and len(failed) == len(asked):
        raise failed[0]
    return found


def _named(mxsml: Mxsml, card: MetaxCard, uses: Sequence[MxsmlProcess]) -> Iterator[ProcessUsage]:
    """What the processes use of the card and of its slices. The slice of a running process cannot go away."""
    slices = {number: _id(mxsml, card, number) for number in {use.sgpu for use in uses} if number is not None}
    for use in uses:
        if use.pid:
            usage = library_cards.process(card, use.pid, use.memory)
            yield usage if use.sgpu is None else replace(usage, uuid=slices[use.sgpu])


def _id(mxsml: Mxsml, card: MetaxCard, number: int) -> str:
    """The id of a slice's partition; the card's uuid if the slice cannot be read."""
    try:
        return SgpuSlice(card.uuid, mxsml.sgpu(card.index, number)).id
    except MxsmlError:
        return card.uuid
