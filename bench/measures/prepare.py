"""Allocate of a resource whose hardware is made: two durable writes and the vendor's own time."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from statistics import median

from bench.measures.allocate import SETTLED
from bench.pace import Pace
from bench.place import place
from bench.rows import Figure, Row
from bench.subjects import Setup, Subject

RUNS = 7
WARM = 5
CALLS = 60
RESOURCE = "xpu-agent.io/simulated"
P50 = Figure("Allocate with prepare p50", "ms", None, "two durable writes and the vendor's time")
P99 = Figure("Allocate with prepare p99", "ms", None, "two durable writes and the vendor's time")


async def measure(subject: Subject, pace: Pace) -> list[Row]:
    """Allocate with prepare, simulated vendor, grpc-go client."""
    p50, p99, disk = [], [], 0.0
    async with place(subject) as here:
        partitions = here.directory / "partitions"
        settings = {"devices": WARM + CALLS, "prepares": True, "partitions": str(partitions)}
        vendors = {"simulated": {"settings": settings}, "nvidia": {"enabled": False}}
        for _ in range(pace.runs(RUNS)):
            async with here.running(Setup(vendors=vendors), resource=RESOURCE):
                await asyncio.sleep(SETTLED)
                free = await here.device_ids(RESOURCE)
                await here.allocate_each(free[:WARM], RESOURCE)
                timing = await here.allocate_each(free[WARM:], RESOURCE)
                p50.append(timing.p50_us / 1000)
                p99.append(timing.p99_us / 1000)
                disk = two_durable_writes(here.directory / "state")
            partitions.unlink()
            here.forget()
    note = f"two durable writes alone take {disk:.2f} ms on this disk"
    return [P50.row(p50, note), P99.row(p99, note)]


def two_durable_writes(directory: Path) -> float:
    """What the disk alone takes, milliseconds: twice write, sync, rename, sync of the directory."""
    took = []
    for _ in range(9):
        began = time.perf_counter()
        for _ in range(2):
            _durable_write(directory)
        took.append((time.perf_counter() - began) * 1000)
    return median(took)


def _durable_write(directory: Path) -> None:
    fresh = directory / "bench.new"
    with fresh.open("wb") as file:
        file.write(b"x" * 8192)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(directory / "bench")
    descriptor = os.open(directory, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
