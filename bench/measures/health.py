"""From a fault on the card until the kubelet has the list that says so, 8 devices."""

from __future__ import annotations

import asyncio

from bench.pace import Pace
from bench.place import place
from bench.rows import Figure, Row
from bench.subjects import Subject

RUNS = 2
CARDS = 8
#: Longer than a plugin holds lists back to send several changes as one.
APART = 0.25
HEALTH = Figure("health event to kubelet, 8 devices", "ms", 5, "NVIDIA 5-19")


async def measure(subject: Subject, pace: Pace) -> list[Row]:
    """XID in the stub library until the kubelet's client has the list."""
    took = []
    async with place(subject, CARDS) as here:
        for _ in range(pace.runs(RUNS)):
            async with here.running():
                await asyncio.sleep(2)  # the paths between the cards are read
                for card in range(CARDS):
                    took.append(await here.flip(card, unhealthy=card + 1))
                    await asyncio.sleep(APART)
            here.forget()
    note = "from the write of the stub's script; the stub itself sleeps on inotify, it adds no interval"
    return [HEALTH.row(took, note)]
