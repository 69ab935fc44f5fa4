"""What a pod waits for: its whole admission by the kubelet's device manager, with few and many pods there."""

from __future__ import annotations

import asyncio
from statistics import median

from bench import processes
from bench.node import Node, nodes
from bench.pace import Pace
from bench.rows import NO_SLACK, Bound, Figure, Row, Series
from bench.subjects import AlikeSpike, Contest, Setup

RUNS = 4
#: 2,400 device IDs.
LARGE = Setup(replicas=300)
LEVELS = (0, 500, 2_000)
#: Pods of one block, admitted one after the other.
BLOCK = 10
#: By then all that follows an answer is done: owners are confirmed within a second.
SETTLED = 2.0
WHOLE = {
    level: Figure(
        f"whole admission, {level:,} pods held",
        "ms",
        reference=reference,
        bound=Bound("spike", plus=3),
        tolerance=NO_SLACK,
    )
    for level, reference in zip(LEVELS, ("spike 2.6", "spike 4.5", "spike 13.6"), strict=True)
}
#: Where the processor time of an admission is measured.
COUNTED = 500
CPU = Figure(
    f"CPU of one admission, {COUNTED} pods, all in",
    "ms",
    4,
    reference="NVIDIA < 1",
    tolerance=NO_SLACK,
)


async def measure(contest: Contest, pace: Pace) -> list[Row]:
    """Preferred allocation, Allocate and PreStartContainer by the device manager, in turns with the spike."""
    took = {level: Series() for level in LEVELS}
    spent = Series()
    async with nodes([*contest, AlikeSpike()], LARGE) as all_nodes:
        for one in all_nodes:
            await one.start()
            await asyncio.sleep(SETTLED)
        for level in LEVELS:
            for one in all_nodes:
                await one.fill(level, pace.says)
            await asyncio.sleep(SETTLED)
            for _ in range(pace.runs(RUNS)):
                for one in all_nodes:
                    waited, cpu = await block(one)
                    took[level].add(one.role, *waited)
                    if level == COUNTED:
                        spent.add(one.role, cpu)
    rows = [
        WHOLE[level].row(took[level].all(), _note(took[level]), took[level].of("spike")) for level in LEVELS
    ]
    return [*rows, CPU.row(spent.all(), f"until {SETTLED:g} s after a block")]


def _note(took: Series) -> str:
    floor = median(took.of(AlikeSpike.role))
    return (
        f"median pod of blocks of {BLOCK}; 2,400 IDs; {floor:.1f} ms where the spike's answers are like ours"
    )


async def block(one: Node) -> tuple[list[float], float]:
    """Admit pods; what each waited, and the plugin's processor time of one, milliseconds."""
    family = processes.tree(one.running.pid)
    before = processes.cpu_seconds(family)
    waited = [await one.admit() for _ in range(BLOCK)]
    await asyncio.sleep(SETTLED)
    return waited, (processes.cpu_seconds(family) - before) * 1000 / BLOCK
