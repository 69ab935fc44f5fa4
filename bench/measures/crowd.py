"""Allocate while strangers flood the views, beside Allocate while they flood a server of their own."""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from statistics import median

from bench.clients import PIPELINING, SLOW, request
from bench.pace import Pace
from bench.place import Place, place
from bench.rows import Figure, Row
from bench.subjects import Refused, Setup, Subject

from .allocate import SETTLED, WARM

RUNS = 7
#: The p99 of a hundred calls is the second slowest of them: one late wake-up of the machine decides it.
CALLS = 500
#: 600 device IDs: each call gets one that is free.
REPLICAS = 75
PROBES = 20
CARDS = 4
#: The kubelet's own, where a probe names none.
TIMEOUT = 1000.0
BUSY = f"{PIPELINING} pipelining and {SLOW} slow clients"
P50 = Figure(f"Allocate p50 under {BUSY}", "x quiet", 2, "without bounds none is answered in 30 s")
P99 = Figure(f"Allocate p99 under {BUSY}", "x quiet", 2, "the same")
XID = Figure(
    f"slowest of {CARDS} XIDs until the kubelet has the list, under the same",
    "ms",
    1000,
    "40 s without bounds",
)
PROBE = Figure("slowest of 20 probes under the same", "ms", TIMEOUT, "the kubelet's default timeout")


async def measure(subject: Subject, pace: Pace) -> list[Row]:
    """Allocate, probes and XIDs under clients that pipeline and clients that are slow."""
    address = f"127.0.0.1:{free_port()}"
    p50, p99, probes, xids, quiet, busy = [], [], [], [], [], []
    async with place(subject) as here:
        for _ in range(pace.runs(RUNS)):
            async with _clients(""):
                before = await _allocates(here, Setup(REPLICAS, http=address))
            async with here.running(Setup(REPLICAS, http=address)):
                await asyncio.sleep(SETTLED)
                async with _clients(address):
                    after = await _calls(here)
                    probes.append(max([await _probe(address) for _ in range(PROBES)]))
                    xids.append(
                        max([await here.flip(it, unhealthy=(it + 1) * REPLICAS) for it in range(CARDS)])
                    )
            here.forget()
            p50.append(after[0] / before[0])
            p99.append(after[1] / before[1])
            quiet.append(before)
            busy.append(after)
    note = f"quiet {_told(quiet)}, then {_told(busy)}; quiet is beside the same clients at a server of theirs"
    return [
        P50.row(p50, note),
        P99.row(p99, note),
        PROBE.row(probes, f"{PROBES} a run, one after the other"),
        XID.row(xids, "from the write of the stub's script, one after the other"),
    ]


async def _allocates(here: Place, setup: Setup) -> tuple[float, float]:
    async with here.running(setup):
        await asyncio.sleep(SETTLED)
        timed = await _calls(here)
    here.forget()
    return timed


async def _calls(here: Place) -> tuple[float, float]:
    """p50 and p99 of an Allocate, microseconds."""
    free = await here.device_ids()
    await here.allocate_each(free[:WARM])
    timing = await here.allocate_each(free[WARM : WARM + CALLS])
    return timing.p50_us, timing.p99_us


async def _probe(address: str) -> float:
    """How long the kubelet would wait for the liveness probe, milliseconds."""
    host, _, port = address.rpartition(":")
    began = time.monotonic()
    try:
        async with asyncio.timeout(60):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(request("/healthz"))
            answer = await reader.readline()
            writer.transport.abort()
    except (OSError, TimeoutError) as error:
        raise Refused(f"a probe was not answered: {error!r}") from None
    if b" 200 " not in answer:
        raise Refused(f"a probe was answered with {answer!r}")
    return (time.monotonic() - began) * 1000


@asynccontextmanager
async def _clients(address: str) -> AsyncIterator[None]:
    """The clients at this address, or at a server of theirs."""
    pipe = asyncio.subprocess.PIPE
    command = (sys.executable, "-m", "bench.clients", address)
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    try:
        assert process.stdout is not None
        if not await process.stdout.readline():
            raise Refused("the clients have ended")
        yield
    finally:
        process.kill()
        await process.wait()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _told(runs: list[tuple[float, float]]) -> str:
    p50, p99 = (median(it) / 1000 for it in zip(*runs, strict=True))
    return f"p50 {p50:.2f} p99 {p99:.2f} ms"
