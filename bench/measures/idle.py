"""Processor time of every process while nothing happens, with no pod and with 500."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping

from bench import processes
from bench.node import nodes
from bench.pace import Pace
from bench.place import places
from bench.rows import NO_SLACK, Figure, Row, Series
from bench.subjects import Contest

from .admission import LARGE

RUNS = 4
#: Each window has one of the passes that come every 30 s, more or less.
SECONDS = 30.0
#: From the start, or the last pod, to the first window.
SETTLED = 10.0
PODS = 500
EMPTY = Figure("idle CPU, 8 cards", "% of a core", 0.2, reference="NVIDIA 0.5", tolerance=NO_SLACK)
HELD = Figure(f"idle CPU, {PODS} pods", "% of a core", 0.25, reference="NVIDIA 0.5", tolerance=NO_SLACK)


async def measure(contest: Contest, pace: Pace) -> list[Row]:
    """All subjects at the same time, in windows of 30 s."""
    empty, held = Series(), Series()
    async with places(contest) as all_places, contextlib.AsyncExitStack() as stack:
        running = {it: await stack.enter_async_context(it.running()) for it in all_places}
        for here, process in running.items():
            await here.reported(process)
        await _windows({here.role: it.pid for here, it in running.items()}, empty, pace)
    async with nodes(contest, LARGE) as all_nodes:
        for one in all_nodes:
            await one.start()
            await one.fill(PODS, pace.says)
        await _windows({one.role: one.running.pid for one in all_nodes}, held, pace)
    note = f"windows of {SECONDS:g} s, the API server followed"
    return [
        EMPTY.row(empty.all(), f"{note}, the cards reported to Koordinator"),
        HELD.row(held.all(), f"{note}; 2,400 IDs"),
    ]


async def _windows(pids: Mapping[str, int], took: Series, pace: Pace) -> None:
    await asyncio.sleep(SETTLED)
    families = {role: processes.tree(pid) for role, pid in pids.items()}
    for run in range(pace.runs(RUNS)):
        pace.says(f"window {run + 1}")
        before = {role: processes.cpu_seconds(family) for role, family in families.items()}
        began = time.monotonic()
        await asyncio.sleep(SECONDS)
        for role, family in families.items():
            spent = processes.cpu_seconds(family) - before[role]
            took.add(role, 100 * spent / (time.monotonic() - began))
