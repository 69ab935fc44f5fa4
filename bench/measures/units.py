"""128,000 units of memory, 0.001 GiB of eight cards of 16 GiB: their way to the kubelet, and the loop."""

from __future__ import annotations

import asyncio
import time

from bench.place import MS, Place, place
from bench.rows import Figure, Row
from bench.subjects import GPU, Subject
from bench.watched import longest_ms

from .big_list import SPIKE
from .flip import CARDS, on_two_nodes

RUNS = 7
FLIPS = 3
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


async def measure(subject: Subject) -> list[Row]:
    """As the list of 58,000 IDs: first, after a flip, and the loop meanwhile."""
    first, flips, blocks, size = [], [], [], 0
    async with place(subject, CARDS) as here:
        for _ in range(RUNS):
            async with here.running(counted(here), watched=True) as process:
                size = process.first["bytes"]
                first.append(float(process.first["t_ns"] - process.register["t_ns"]) / MS)
                await asyncio.sleep(1.5)
                since = time.time_ns()
                for card in range(FLIPS):
                    flips.append(await here.flip(card, unhealthy=(card + 1) * UNITS))
                    await asyncio.sleep(0.5)
                lags = here.directory / "lags"
                early = longest_ms(lags, process.register["t_ns"], process.first["t_ns"])
                blocks.append(max(early, longest_ms(lags, since, time.time_ns())))
            here.forget()
    note = f"{size:,} bytes, from Register" if size else ""
    return [
        FIRST.row(first, note),
        FLIP.row(flips, f"{UNITS:,} IDs change"),
        BLOCK.row(blocks, "lateness of a 2 ms heartbeat in the loop, both cases"),
    ]
