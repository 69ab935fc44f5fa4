"""Processor time of every process while nothing happens."""

from __future__ import annotations

import asyncio
import time

from bench import processes
from bench.place import place
from bench.rows import Figure, Row
from bench.subjects import Subject

RUNS = 3
SECONDS = 20.0
IDLE = Figure("idle CPU", "% of a core", 0.3, "NVIDIA 0-1")


async def measure(subject: Subject) -> list[Row]:
    """Three windows of 20 s, 8 devices."""
    took = []
    async with place(subject) as here, here.running() as process:
        await asyncio.sleep(5)
        for _ in range(RUNS):
            family = processes.tree(process.pid)
            began, before = time.monotonic(), processes.cpu_seconds(family)
            await asyncio.sleep(SECONDS)
            spent = processes.cpu_seconds(family) - before
            took.append(100 * spent / (time.monotonic() - began))
    return [IDLE.row(took, f"windows of {SECONDS:g} s")]
