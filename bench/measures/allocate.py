"""Allocate of one device as grpc-go sees it, one call after the other, with few and many in use."""

from __future__ import annotations

import asyncio

from bench.pace import Pace
from bench.place import Place, places
from bench.rows import NO_SLACK, Bound, Figure, Row, Series
from bench.subjects import Contest

from .admission import LARGE

RUNS = 5
WARM = 10
#: The library that speaks with the API server is loaded right after the registration, in a thread.
SETTLED = 3.0
CALLS = 100
#: Allocations in use before the calls are timed, which the calls add to.
LEVELS = (0, 500, 2_000)
FIRST = "Allocate p50, nothing allocated yet"
P50 = {
    0: Figure(FIRST, "ms", reference="NVIDIA 0.11", bound=Bound("spike", times=2), tolerance=NO_SLACK),
    **{
        level: Figure(
            f"Allocate p50, {level:,} in use",
            "ms",
            reference="NVIDIA 0.11",
            bound=Bound("nothing allocated", times=1.2),
            tolerance=NO_SLACK,
        )
        for level in LEVELS[1:]
    },
}
P99 = {
    0: Figure("Allocate p99, nothing allocated yet", "ms", 2, "NVIDIA 0.26; spike 0.98", tolerance=NO_SLACK),
    **{level: Figure(f"Allocate p99, {level:,} in use", "ms") for level in LEVELS[1:]},
}


async def measure(contest: Contest, pace: Pace) -> list[Row]:
    """Allocate without prepare, grpc-go client, in turns with the spike."""
    p50 = {level: Series() for level in LEVELS}
    p99 = {level: Series() for level in LEVELS}
    async with places(contest) as all_places:
        for run in range(pace.runs(RUNS)):
            for here in all_places:
                pace.says(f"{here.subject.name}, run {run + 1}")
                async with here.running(LARGE):
                    await asyncio.sleep(SETTLED)
                    await _levels(here, p50, p99)
                here.forget()
    note = f"{CALLS} calls a run, each of an ID that is free, of 2,400 IDs"
    return [
        *(P50[level].row(p50[level].all(), note, _bound(level, p50)) for level in LEVELS),
        *(P99[level].row(p99[level].all(), note) for level in LEVELS),
    ]


def _bound(level: int, p50: dict[int, Series]) -> list[float]:
    return [*p50[0].of("ours" if level else "spike")]


async def _levels(here: Place, p50: dict[int, Series], p99: dict[int, Series]) -> None:
    """Time calls at each level. No ID is given twice: a kubelet gives an ID again once its pod has ended."""
    free = await here.device_ids()
    given = 0
    for level in LEVELS:
        for calls in (level - given, WARM):
            if calls > 0:
                await here.allocate_each(free[given : given + calls])
                given += calls
        timing = await here.allocate_each(free[given : given + CALLS])
        given += CALLS
        p50[level].add(here.role, timing.p50_us / 1000)
        p99[level].add(here.role, timing.p99_us / 1000)
