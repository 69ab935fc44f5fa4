"""A kubelet that restarts: how soon the plugin is back, and whether it still knows its faults."""

from __future__ import annotations

import asyncio

from bench.pace import Pace
from bench.place import MS, place
from bench.rows import Figure, Row
from bench.subjects import Subject

RUNS = 7
DOWN = 0.3
FAULTS = 2
AGAIN = Figure("kubelet restart to re-registered", "ms", 1000, "NVIDIA 13")
FORGOTTEN = Figure("faults forgotten by a kubelet restart", "of 2", 0, "NVIDIA 2: forgets every one")


async def measure(subject: Subject, pace: Pace) -> list[Row]:
    """From the new kubelet's socket until it has the list."""
    took, forgotten = [], []
    async with place(subject) as here, here.running():
        for card in range(FAULTS):
            await here.flip(card, unhealthy=card + 1)
            await asyncio.sleep(0.3)
        for _ in range(pace.runs(RUNS)):
            here.kubelet.events.clear()
            await here.kubelet.restart(down=DOWN)
            ready = await here.kubelet.next(lambda it: it["event"] == "ready")
            back = await here.event("list")
            took.append(float(back["t_ns"] - ready["t_ns"]) / MS)
            forgotten.append(float(FAULTS - back["unhealthy"]))
            await asyncio.sleep(0.5)
    return [AGAIN.row(took, f"kubelet away for {DOWN:g} s"), FORGOTTEN.row(forgotten)]
