"""What it costs to measure the use of cards: CPU of a sample, memory, a scrape, Allocate beside it."""

from __future__ import annotations

import asyncio
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from statistics import quantiles

from nvml_stub import NvmlStub, Process

from bench import processes
from bench.node import node
from bench.pace import Pace
from bench.place import Place, place
from bench.rows import NO_SLACK, Figure, Row
from bench.subjects import Refused, Setup, Subject

from .crowd import free_port

RUNS = 3
CARDS, PROCESSES = 16, 64
#: Seconds between two samples, as the config has it if it says nothing.
EVERY = 5.0
#: Seconds of a window, and before it: the first sample, which has to read each process, comes before.
WINDOW, SETTLED = 30.0, 8.0
#: Calls of Allocate, and the seconds over which they are spread: two samples at least are among them.
WARM, CALLS, SPREAD = 10, 2_000, 12.0
CONTAINERS = 1_000
#: An answer is kept for a second. One scrape or two meet the pass that the agent makes every 30 s.
SCRAPES, BETWEEN = 15, 1.1
WITHOUT = Setup(cards=CARDS, replicas=150, api=False)
SAMPLED = replace(WITHOUT, usage=EVERY)
CROWD = f"{CARDS} cards x {PROCESSES} processes"

SAMPLE = Figure(f"CPU of a sample of use, {CROWD}", "ms", 20, tolerance=NO_SLACK)
MEMORY = Figure(f"memory for use, {CROWD}", "MiB", 4, tolerance=NO_SLACK)
SCRAPE = Figure(f"scrape with use, {CONTAINERS:,} containers", "ms", 50, tolerance=NO_SLACK)
BESIDE = Figure("Allocate p99 beside samples", "times quiet", 1, reference="1 is unchanged")


async def measure(subject: Subject, pace: Pace) -> list[Row]:
    """Samples of use: their CPU and memory, a scrape, and Allocate beside them."""
    spent: list[float] = []
    grown: list[float] = []
    p99: list[float] = []
    with _crowd(CARDS * PROCESSES) as pids:
        async with place(subject, CARDS) as here:
            _use(here.stub, pids)
            for run in range(pace.runs(RUNS)):
                pace.says(f"run {run + 1}")
                without, sampled = await _costs(here, WITHOUT), await _costs(here, SAMPLED)
                spent.append((sampled[0] - without[0]) * 1000 * EVERY / WINDOW)
                grown.append(sampled[1] - without[1])
                p99.append(sampled[2] / without[2])
        scrapes = await _scrapes(subject, pids, pace)
    return [
        SAMPLE.row(spent, f"windows of {WINDOW:g} s, a sample each {EVERY:g} s, less those without samples"),
        MEMORY.row(grown, "PSS of all processes, less that without samples"),
        SCRAPE.row(scrapes, "one at a time, each made anew"),
        BESIDE.row(p99, f"{CALLS:,} calls in {SPREAD:g} s each, a sample each {EVERY:g} s"),
    ]


@contextmanager
def _crowd(count: int) -> Iterator[Sequence[int]]:
    """The pids of so many threads that sleep: the kernel shows each thread below /proc."""
    end = threading.Event()
    crowd = [threading.Thread(target=end.wait, daemon=True) for _ in range(count)]
    for one in crowd:
        one.start()
    try:
        yield [one.native_id or 0 for one in crowd]
    finally:
        end.set()


def _use(stub: NvmlStub, pids: Sequence[int]) -> None:
    """Let as many of the processes use each of the cards."""
    for card in range(CARDS):
        stub.used(card, PROCESSES << 28)
        on_card = pids[card * PROCESSES : (card + 1) * PROCESSES]
        stub.processes(card, *(Process(pid, 1 << 28, samples=(1,)) for pid in on_card))


async def _costs(here: Place, setup: Setup) -> tuple[float, float, float]:
    """Processor seconds of an idle window, PSS in MiB after it, and the p99 of Allocate in microseconds."""
    async with here.running(setup) as running:
        await asyncio.sleep(SETTLED)
        family = processes.tree(running.pid)
        before = processes.cpu_seconds(family)
        await asyncio.sleep(WINDOW)
        spent = processes.cpu_seconds(family) - before
        size = sum(map(processes.pss, family))
        free = await here.device_ids()
        await here.allocate_each(free[:WARM])
        p99 = await _p99(here, free[WARM : WARM + CALLS])
    here.forget()
    return spent, size, p99


async def _p99(here: Place, ids: Sequence[str]) -> float:
    """The p99 of an Allocate for each of these IDs, in microseconds, spread over some samples."""
    took = []
    began = time.monotonic()
    for number, one in enumerate(ids):
        await asyncio.sleep(max(0.0, began + number * SPREAD / len(ids) - time.monotonic()))
        took.append((await here.allocate_each([one])).max_us)
    return quantiles(took, n=100)[-1]


async def _scrapes(subject: Subject, pids: Sequence[int], pace: Pace) -> list[float]:
    """How long a scrape takes on a node with many containers that have a card, milliseconds."""
    address = f"127.0.0.1:{free_port()}"
    took = []
    async with node(subject, replace(SAMPLED, http=address)) as one:
        await one.start()
        await one.fill(CONTAINERS, pace.says)
        await asyncio.sleep(SETTLED)
        for _ in range(SCRAPES):
            await asyncio.sleep(BETWEEN)
            began = time.monotonic()
            text = await asyncio.to_thread(_get, f"http://{address}/metrics")
            took.append((time.monotonic() - began) * 1000)
            if (shown := text.count("\nxpu_container_processes{")) < CONTAINERS:
                raise Refused(f"the scrape shows {shown} containers")
    return took


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return str(answer.read(), "utf-8")
