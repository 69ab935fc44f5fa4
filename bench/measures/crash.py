"""From the SIGKILL of the plugin until all devices are allocatable again, on a node with 500 pods."""

from __future__ import annotations

import asyncio

from bench.node import nodes
from bench.pace import Pace
from bench.rows import NO_SLACK, Bound, Figure, Row, Series
from bench.subjects import Contest

from .admission import LARGE

RUNS = 7
PODS = 500
#: Seconds between a start and the next crash.
QUIET = 5.0
START = Figure("start to allocatable, no pod", "ms")
CRASH = Figure(
    f"SIGKILL to allocatable again, {PODS} pods",
    "ms",
    bound=Bound("our start to allocatable", times=1.2),
    tolerance=NO_SLACK,
)


async def measure(contest: Contest, pace: Pace) -> list[Row]:
    """Starts without state, then starts after a SIGKILL, until the real kubelet counts all devices."""
    starts, crashes = Series(), Series()
    async with nodes(contest, LARGE) as all_nodes:
        for run in range(runs := pace.runs(RUNS)):
            for one in all_nodes:
                starts.add(one.role, await one.start())
                await asyncio.sleep(QUIET / 2)
                if run + 1 < runs:
                    await one.forget()
        for one in all_nodes:
            await one.fill(PODS, pace.says)
        for _ in range(runs):
            for one in all_nodes:
                await asyncio.sleep(QUIET)
                crashes.add(one.role, await one.crash())
    note = "started again once the kubelet knows; 2,400 IDs"
    return [
        CRASH.row(crashes.all(), note, starts.of("ours")),
        START.row(starts.all(), "spawn to the kubelet's count"),
    ]
