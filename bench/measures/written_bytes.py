"""Bytes that the agent writes below its state directory for an Allocate, on a node with 500 pods."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from bench.node import node
from bench.pace import Pace
from bench.rows import NO_SLACK, Figure, Row
from bench.subjects import Refused, Subject
from bench.written import Counter

from .admission import LARGE, SETTLED

PODS = 500
CALLS = 1_000
BYTES = Figure(
    f"bytes written for one Allocate, {PODS} pods",
    "bytes",
    1_000,
    reference="spike and NVIDIA keep no state",
    tolerance=NO_SLACK,
)


async def measure(subject: Subject, pace: Pace) -> list[Row]:
    """What 1,000 Allocates in a row, by the real device manager, write below the state directory."""
    calls = pace.runs(CALLS)
    async with node(subject, LARGE) as one:
        counter = Counter.make(one.directory / "written", one.directory / "state")
        one.setup = replace(LARGE, environment=counter.environment)
        await one.start()
        await one.fill(PODS, pace.says)
        await asyncio.sleep(SETTLED)
        before = counter.read()
        if not before.written:
            raise Refused(f"{PODS} pods and nothing was counted: the library of the counter was not loaded")
        await one.fill(PODS + calls, pace.says)
        at_once = counter.read()
        await asyncio.sleep(SETTLED)
        after = counter.read()
    runs = [(after.written - before.written) / calls]
    later = (after.written - at_once.written) / calls
    note = (
        f"{calls:,} in a row, until {SETTLED:g} s after the last, without logs; {later:,.0f} after the last"
    )
    return [BYTES.row(runs, f"{note}; {after.calls - before.calls:,} writes")]
