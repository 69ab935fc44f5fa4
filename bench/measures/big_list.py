"""A list of 58,000 IDs, as long as the kubelet takes: its way to the kubelet, and the loop meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from bench.pace import Pace
from bench.place import MS, Place, place
from bench.rows import Figure, Row
from bench.subjects import Setup, Subject
from bench.watched import longest_ms

from .flip import CARDS, replicated

RUNS = 7
FLIPS = 3
REPLICAS = 7_250
SPIKE = "spike 60-90; betterproto2 2,600-3,200"
FIRST = Figure("full list of 58,000 IDs, first", "ms", 150, SPIKE)
FLIP = Figure("full list of 58,000 IDs, one card flips", "ms", 150, SPIKE)
BLOCK = Figure("full list: longest block of the loop", "ms", 20, "spike 4")


async def measure(subject: Subject, pace: Pace) -> list[Row]:
    """A list of almost 4 MiB: first, after a flip, and the loop meanwhile."""
    return await listed(
        subject, pace, (FIRST, FLIP, BLOCK), lambda here: replicated(here, REPLICAS), of_a_card=REPLICAS
    )


async def listed(
    subject: Subject,
    pace: Pace,
    figures: tuple[Figure, Figure, Figure],
    vendors: Callable[[Place], dict[str, object]],
    of_a_card: int,
) -> list[Row]:
    """How long the first list takes, one after a card with so many IDs flips, and how late the loop is."""
    on_start, on_flip, block = figures
    first, flips, blocks, size = [], [], [], 0
    async with place(subject, CARDS) as here:
        for _ in range(pace.runs(RUNS)):
            async with here.running(Setup(vendors=vendors(here), watched=True)) as running:
                size = running.first["bytes"]
                first.append(float(running.first["t_ns"] - running.register["t_ns"]) / MS)
                await asyncio.sleep(1.5)
                since = time.time_ns()
                for card in range(FLIPS):
                    flips.append(await here.flip(card, unhealthy=(card + 1) * of_a_card))
                    await asyncio.sleep(0.5)
                lags = here.directory / "lags"
                early = longest_ms(lags, running.register["t_ns"], running.first["t_ns"])
                blocks.append(max(early, longest_ms(lags, since, time.time_ns())))
            here.forget()
    note = f"{size:,} bytes, from Register" if size else ""
    return [
        on_start.row(first, note),
        on_flip.row(flips, f"{of_a_card:,} IDs change"),
        block.row(blocks, "lateness of a 2 ms heartbeat in the loop, both cases"),
    ]
