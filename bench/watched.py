"""Runs the agent with a heartbeat on its event loop: `python -m bench.watched FILE run ...`.

FILE gets a line for every beat that came late: the wall clock in nanoseconds, and by how many microseconds.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

from agent.cli import main
from agent.daemon import process

BEAT = 0.002
#: Timers of the loop are a little late always.
NOTEWORTHY = 0.001


async def beat(file: Path) -> None:
    """Write down how late each beat comes: so long the loop could serve nobody."""
    with file.open("w", buffering=1) as lags:
        due = time.monotonic() + BEAT
        while True:
            await asyncio.sleep(due - time.monotonic())
            now = time.monotonic()
            if now - due > NOTEWORTHY:
                lags.write(f"{time.time_ns()} {round((now - due) * 1e6)}\n")
            due = now + BEAT


def longest_ms(file: Path, since_ns: int, until_ns: int) -> float:
    """The longest block between two moments, milliseconds."""
    lines = [line.split() for line in file.read_text().splitlines()]
    lags = [int(lag) for at, lag in lines if since_ns <= int(at) <= until_ns]
    return max(lags, default=0) / 1000


def _watch(file: Path) -> None:
    serve = process.serve

    async def serve_watched(*args: Any, **kwargs: Any) -> None:
        beating = asyncio.create_task(beat(file))
        try:
            await serve(*args, **kwargs)
        finally:
            beating.cancel()

    process.serve = serve_watched


if __name__ == "__main__":
    _watch(Path(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
