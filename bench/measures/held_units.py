"""The longest block of the loop while all of 128,000 units of memory are held, and nothing happens."""

from __future__ import annotations

import asyncio
import time

from bench.pace import Pace
from bench.place import Place, place
from bench.rows import NO_SLACK, Figure, Row
from bench.subjects import Setup, Subject
from bench.watched import longest_ms

from .flip import CARDS
from .units import UNITS, counted

RUNS = 3
#: Units of one pod.
POD = 2_000
#: Two discoveries of the vendor's cards, each of which plans all resources again.
SECONDS = 22.0
HELD = Figure(
    f"refresh with {CARDS * UNITS:,} units held by pods, longest block of the loop",
    "ms",
    15,
    reference="before 55",
    tolerance=NO_SLACK,
)


async def measure(subject: Subject, pace: Pace) -> list[Row]:
    """Allocate all units, then watch the loop over two discoveries."""
    blocks = []
    async with place(subject, CARDS) as here:
        for run in range(pace.runs(RUNS)):
            async with here.running(Setup(vendors=counted(here), watched=True)):
                await asyncio.sleep(3)
                pace.says(f"run {run + 1}")
                await hold_all(here)
                await asyncio.sleep(2)
                since = time.time_ns()
                await asyncio.sleep(SECONDS)
                blocks.append(longest_ms(here.directory / "lags", since, time.time_ns()))
            here.forget()
    note = f"lateness of a 2 ms heartbeat in {SECONDS:g} s; {CARDS * UNITS // POD} pods"
    return [HELD.row(blocks, note)]


async def hold_all(here: Place) -> None:
    """Allocate every unit, pod by pod, each on one card."""
    cards: dict[str, list[str]] = {}
    for device_id in await here.device_ids():
        cards.setdefault(device_id.rpartition("::")[0], []).append(device_id)
    for ids in cards.values():
        for first in range(0, len(ids), POD):
            await here.allocate(ids[first : first + POD], 1)
