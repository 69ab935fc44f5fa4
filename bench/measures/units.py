"""128,000 units of memory, 0.001 GiB of eight cards of 16 GiB: their way to the kubelet, and the loop."""

from __future__ import annotations

from bench.pace import Pace
from bench.place import Place
from bench.rows import Figure, Row
from bench.subjects import GPU, Subject

from .big_list import SPIKE, listed
from .flip import CARDS, on_two_nodes

CARD_BYTES = 16 << 30
UNITS = 16_000
FIRST = Figure("128,000 units of memory, first", "ms", 150, SPIKE)
FLIP = Figure("128,000 units of memory, one card flips", "ms", 150, SPIKE)
BLOCK = Figure("units of memory: longest block of the loop", "ms", 20, "spike 4")


def counted(here: Place) -> dict[str, object]:
    """The stub's cards as smaller ones, counted in the finest unit."""
    for card in range(CARDS):
        here.stub.memory(card, CARD_BYTES)
    rule = {"name": GPU, "sharing": {"kind": "memory", "unit": "0.001"}}
    return on_two_nodes(here, rule)


async def measure(subject: Subject, pace: Pace) -> list[Row]:
    """As the list of 58,000 IDs: first, after a flip, and the loop meanwhile."""
    return await listed(subject, pace, (FIRST, FLIP, BLOCK), counted, of_a_card=UNITS)
