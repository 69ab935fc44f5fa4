"""Allocate of device IDs that a pod had before, on a node that has no other: each answer needs a proof."""

from __future__ import annotations

import asyncio

from bench.node import Node, nodes
from bench.pace import Pace
from bench.rows import NO_SLACK, Figure, Row, Series, percentile
from bench.subjects import Contest, Setup

CALLS = 40
#: 504 device IDs, and as many pods.
FULL = Setup(replicas=63)
#: Seconds from the end of a pod to the next pod.
APART = 0.1
USED = Figure(
    "Allocate of an ID that was used before, 500 pods", "ms", 2, reference="NVIDIA 0.1", tolerance=NO_SLACK
)
FRESH = Figure("Allocate of an ID that was never used, 500 pods", "ms")


async def measure(contest: Contest, pace: Pace) -> list[Row]:
    """Allocate as the real kubelet times it, on a full node where each new pod follows a deleted one."""
    used, fresh = Series(), Series()
    calls = pace.runs(CALLS)
    async with nodes(contest, FULL) as all_nodes:
        for one in all_nodes:
            await one.start()
            await one.fill(one.devices - calls, pace.says)
            await asyncio.sleep(APART)
            fresh.add(one.role, *[await _allocate(one) for _ in range(calls)])
        for _ in range(calls):
            for one in all_nodes:
                await one.delete(one.pods[0])
                await asyncio.sleep(APART)
                used.add(one.role, await _allocate(one))
    runs = used.of("ours")
    note = f"the kubelet's own measure of {len(runs)} calls; p99 {percentile(runs, 99):.1f}"
    return [USED.row(used.all(), note), FRESH.row(fresh.all(), "the last pods before the node is full")]


async def _allocate(one: Node) -> float:
    """Admit a pod; milliseconds that the kubelet waited for its Allocate."""
    before = await one.allocate_calls()
    await one.admit()
    after = await one.allocate_calls()
    return (after.seconds - before.seconds) * 1000
