"""Allocate of one device as grpc-go sees it, one call after the other, a fresh process for each run."""

from __future__ import annotations

import asyncio

from bench.place import place
from bench.rows import Figure, Row
from bench.subjects import GPU, Refused, Subject

RUNS = 9
WARM = 10
#: The library that speaks with the API server is loaded right after the registration, in a thread.
SETTLED = 3.0
#: With them the ledger is as long as on a node with its 110 pods.
CALLS = 100
P50 = Figure("Allocate p50", "ms", 0.9, "NVIDIA 0.21; spike 0.46-0.65")
P99 = Figure("Allocate p99", "ms", 3.0, "NVIDIA 0.89; spike 0.8-1.5")


async def measure(subject: Subject) -> list[Row]:
    """Allocate without prepare, grpc-go client."""
    p50, p99 = [], []
    async with place(subject) as here:
        for _ in range(RUNS):
            async with here.running():
                await asyncio.sleep(SETTLED)
                devices = sorted(await here.kubelet.ids(GPU))
                await here.kubelet.allocate(GPU, devices[:1], WARM)
                timing = await here.kubelet.allocate(GPU, devices[:1], CALLS)
                if timing.errors:
                    raise Refused(f"Allocate failed: {timing.error}")
                p50.append(timing.p50_us / 1000)
                p99.append(timing.p99_us / 1000)
            here.forget()
    ledger = f"the ledger grows to {WARM + CALLS} allocations, as many as a node has pods"
    note = f"{CALLS} calls a run" + ("" if subject.is_rival else f"; {ledger}")
    return [P50.row(p50, note), P99.row(p99, note)]
