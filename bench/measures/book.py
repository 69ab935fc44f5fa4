"""From the last event on a node until the agent's book says what the kubelet's book says."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence

from agent.http.admin_client import CannotAsk, fetch_document
from agent.testing.node_kubelet import Pod
from bench.node import Node, node
from bench.pace import Pace
from bench.rows import NO_SLACK, Figure, Row
from bench.subjects import GPU, Refused, Subject

from .admission import LARGE

RUNS = 3
PODS = 500
#: Pods that come, or end, at each step of a round.
ENDED = 50
#: Seconds between two looks at both books, and until the bench gives up.
LOOK_EVERY = 0.25
PATIENCE = 300.0
BOOK = Figure(
    "last event to our book = the kubelet's book", "s", 10, reference="60 and more", tolerance=NO_SLACK
)


async def measure(subject: Subject, pace: Pace) -> list[Row]:
    """Pods that end before, during and after a crash of the agent, some as soon as they were admitted."""
    took = []
    async with node(subject, LARGE) as one:
        await one.start()
        for run in range(pace.runs(RUNS)):
            await one.fill(PODS, pace.says)
            await _events(one)
            took.append(await _agreed(one))
            pace.says(f"round {run + 1}: {took[-1]:.1f} s")
    return [
        BOOK.row(
            took,
            f"{PODS} pods, {3 * ENDED + ENDED // 2} deletions, some at once, one SIGKILL; the kubelet stays",
        )
    ]


async def _events(one: Node) -> None:
    await _end(one, one.pods[:ENDED])
    await _admit(one)
    await one.kill()  # the agent may not know yet which pods have its last answers
    await _end(one, [*one.pods[:ENDED], *one.pods[-ENDED // 2 :]])
    one.spawn()
    await one.allocatable()
    await _admit(one)
    await _end(one, one.pods[-ENDED:])


async def _admit(one: Node) -> None:
    for _ in range(ENDED):
        await one.admit()


async def _end(one: Node, pods: Sequence[Pod]) -> None:
    """Delete these pods."""
    for pod in [*pods]:
        await one.delete(pod)


async def _agreed(one: Node) -> float:
    """Seconds until both books are one.

    Raises:
        Refused: They never are.
    """
    began = time.monotonic()
    theirs = await one.kubelet_book()
    ours: Mapping[str, frozenset[str]] = {}
    while time.monotonic() - began < PATIENCE:
        if (ours := await asyncio.to_thread(_our_book, one)) == theirs:
            return time.monotonic() - began
        await asyncio.sleep(LOOK_EVERY)
    raise Refused(f"after {PATIENCE:g} s our book has {len(ours)} pods, the kubelet's {len(theirs)}")


def _our_book(one: Node) -> dict[str, frozenset[str]]:
    """Pod UID to device IDs, as the agent's ledger has them; '' for allocations without a pod."""
    try:
        document = fetch_document(one.directory / "state" / "agent.sock")
    except CannotAsk:
        return {}
    book: dict[str, frozenset[str]] = {}
    for allocation in document.in_use:
        if allocation.resource == GPU:
            uid = (allocation.owner and allocation.owner.uid) or ""
            book[uid] = book.get(uid, frozenset()).union(allocation.ids)
    return book
