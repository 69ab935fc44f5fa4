"""A vendor library that fails every wait for events, for good."""

from __future__ import annotations

import asyncio
import time

from bench import processes
from bench.pace import Pace
from bench.place import place
from bench.rows import Figure, Row
from bench.subjects import Subject

RUNS = 3
SECONDS = 5.0
LISTS = Figure("update storm: lists in 5 s", "messages", 2, "NVIDIA 64,000-127,000")
CPU = Figure("update storm: CPU", "% of a core", None, "NVIDIA 100")


async def measure(subject: Subject, pace: Pace) -> list[Row]:
    """What the kubelet hears, and what it costs, in the 5 s after EventSetWait began to fail."""
    lists, cpu = [], []
    async with place(subject) as here:
        for _ in range(pace.runs(RUNS)):
            async with here.running() as running:
                await asyncio.sleep(2)
                here.kubelet.events.clear()
                family = processes.tree(running.pid)
                began, before = time.time_ns(), processes.cpu_seconds(family)
                here.stub.wait_error()
                await asyncio.sleep(SECONDS)  # longer, where a storm keeps the bench busy too
                spent = processes.cpu_seconds(family) - before
                cpu.append(100 * spent / (time.time_ns() - began) * 1e9)
                until = began + SECONDS * 1e9
                lists.append(
                    float(sum(it["event"] == "list" and it["t_ns"] <= until for it in here.kubelet.events))
                )
                here.stub.clear()
            here.forget()
    return [LISTS.row(lists), CPU.row(cpu)]
