"""From a fault on a card until the kubelet has the list, with 1,000 IDs listed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from bench.pace import Pace
from bench.place import Place, place
from bench.rows import Figure, Row
from bench.subjects import GPU, Setup, Subject

from .health import APART

RUNS = 2
CARDS = 8
REPLICAS = 125
FLIP = Figure("one flip among 1,000 IDs", "ms", 6, "spike, cached encoding 3.6; naive 42")


def replicated(here: Place, replicas: int) -> dict[str, object]:
    """The stub's cards, each shared by so many."""
    return on_two_nodes(here, {"name": GPU, "sharing": {"kind": "replicas", "replicas": replicas}})


def on_two_nodes(here: Place, rule: Mapping[str, object]) -> dict[str, object]:
    """The stub's cards as this resource, on two NUMA nodes as on a real board."""
    for card in range(CARDS):
        folder = here.directory / "sys" / "bus/pci/devices" / f"0000:{0x10 + card:02x}:00.0"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "numa_node").write_text(f"{card // 4}\n")
    settings = {"sysfs": str(here.directory / "sys")}
    return {"nvidia": {"library": str(here.stub.library), "settings": settings, "resources": [rule]}}


async def measure(subject: Subject, pace: Pace) -> list[Row]:
    """One card of eight, 125 IDs each, turns unhealthy."""
    took = []
    async with place(subject, CARDS) as here:
        for _ in range(pace.runs(RUNS)):
            async with here.running(Setup(vendors=replicated(here, REPLICAS))):
                await asyncio.sleep(2)
                for card in range(CARDS):
                    took.append(await here.flip(card, unhealthy=(card + 1) * REPLICAS))
                    await asyncio.sleep(APART)
            here.forget()
    return [FLIP.row(took, f"a card is {REPLICAS} of the IDs")]
