"""GetPreferredAllocation with 16 devices while every question about NVLink takes the driver 1 ms."""

from __future__ import annotations

import asyncio
import random
import time
from statistics import median

from peers.real import Timing

from bench.pace import Pace
from bench.place import Place, place
from bench.rows import Figure, Row
from bench.subjects import GPU, Refused, Subject

RUNS = 3
RIVALS_RUNS = 1
CARDS = 16
SIZES = (1, 2, 4, 8)
CALLS = 100
#: A plugin that takes seconds is not asked a hundred times.
PATIENCE = 10.0
SLOW = (
    "nvmlDeviceGetNvLinkState",
    "nvmlDeviceGetNvLinkRemotePciInfo_v2",
    "nvmlDeviceGetNvLinkRemoteDeviceType",
)
PREFERRED = Figure(
    "GetPreferredAllocation p99, 16 devices, NVLink call 1 ms",
    "ms",
    5,
    "NVIDIA 17,900 (16 cards, size 4), 3,500 (8 cards)",
)


async def measure(subject: Subject, pace: Pace) -> list[Row]:
    """Sizes 1, 2, 4, 8 out of changing sets of the 16 cards."""
    p99, medians, cold = [], [], []
    async with place(subject, CARDS) as here:
        for symbol in SLOW:
            here.stub.latency(symbol, 0.001)
        for _ in range(RIVALS_RUNS if subject.role == "rival" else pace.runs(RUNS)):
            async with here.running():
                devices = sorted(await here.kubelet.ids(GPU))
                cold.append(await _ask(here, devices, 4))
                await asyncio.sleep(3)
                took = sorted([one for size in SIZES for one in await _asked(here, devices, size)])
            p99.append(took[(len(took) * 99 + 99) // 100 - 1])
            medians.append(took[len(took) // 2])
            here.forget()
    note = f"all sizes; median {median(medians):.2f}; right after registration {max(cold):.2f}"
    return [PREFERRED.row(p99, note)]


async def _asked(here: Place, devices: list[str], size: int) -> list[float]:
    """Ask for this size again and again, each time from another set of free devices."""
    rng = random.Random(size)
    took: list[float] = []
    until = time.monotonic() + PATIENCE
    while len(took) < CALLS and time.monotonic() < until:
        free = rng.sample(devices, rng.randint(max(size, len(devices) // 2), len(devices)))
        took.append(await _ask(here, sorted(free), size))
    return took


async def _ask(here: Place, available: list[str], size: int) -> float:
    timing: Timing = await here.kubelet.preferred(GPU, available, [], size)
    if timing.errors or len(timing.first) != size:
        raise Refused(f"GetPreferredAllocation of {size}: {timing.error or timing.first}")
    return timing.max_us / 1000
