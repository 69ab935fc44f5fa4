"""Resident memory of every process, idle after registration."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from bench import processes
from bench.pace import Pace
from bench.place import Place, places
from bench.rows import NO_SLACK, Figure, Row, Series
from bench.subjects import Contest, Setup

RUNS = 3
#: The views are loaded, the paths between the cards are read.
SETTLED = 5.0
REFERENCE = "NVIDIA 23.6; spike 37"
ALONE = Figure("resident memory (PSS), all processes, alone", "MiB", 46, REFERENCE, tolerance=NO_SLACK)
JOINED = Figure(
    "resident memory (PSS), all processes, with API server and Device reporting",
    "MiB",
    56,
    REFERENCE,
    tolerance=NO_SLACK,
)


#: Whole cards: replicas of them are not reported to Koordinator under their name.
WHOLE = Setup()


async def measure(contest: Contest, pace: Pace) -> list[Row]:
    """PSS of the process and its children, 8 cards, one subject at a time: they would share pages."""
    alone, joined = Series(), Series()
    parts = ("", "")
    async with places(contest) as all_places:
        for _ in range(pace.runs(RUNS)):
            for here in all_places:
                if here.role != "ours":
                    sizes = await _sizes(here, WHOLE)
                    for series in (alone, joined):
                        series.add(here.role, sum(sizes))
                    continue
                without, sizes = await _sizes(here, replace(WHOLE, api=False)), await _sizes(here, WHOLE)
                alone.add(here.role, sum(without))
                joined.add(here.role, sum(sizes))
                parts = (_parts(without), _parts(sizes))
    return [ALONE.row(alone.all(), parts[0]), JOINED.row(joined.all(), parts[1])]


async def _sizes(here: Place, setup: Setup) -> list[float]:
    """The PSS of each process."""
    async with here.running(setup) as running:
        if setup.api:
            await here.reported(running)
        await asyncio.sleep(SETTLED)
        sizes = [processes.pss(pid) for pid in processes.tree(running.pid)]
    here.forget()
    return sizes


def _parts(sizes: list[float]) -> str:
    return f"by process {' + '.join(f'{size:.1f}' for size in sizes)}"
