"""Resident memory of every process, idle after registration."""

from __future__ import annotations

import asyncio

from bench import processes
from bench.place import place
from bench.rows import Figure, Row
from bench.subjects import Subject

RUNS = 3
#: The views are loaded, the paths between the cards are read.
SETTLED = 5.0
MEMORY = Figure(
    "resident memory (PSS), all processes", "MB", 75, "kubernetes-asyncio alone, imported whole: 104"
)


async def measure(subject: Subject) -> list[Row]:
    """PSS of the process and its children, 8 devices."""
    took, parts = [], ""
    async with place(subject) as here:
        for _ in range(RUNS):
            async with here.running() as process:
                await here.told()
                await asyncio.sleep(SETTLED)
                sizes = [processes.pss(pid) for pid in processes.tree(process.pid)]
                took.append(sum(sizes))
                parts = " + ".join(f"{size:.1f}" for size in sizes)
            here.forget()
    followed = "" if subject.is_rival else "; the API server is followed, a Device tells the cards"
    return [MEMORY.row(took, f"by process {parts}{followed}")]
