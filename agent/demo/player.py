"""Plays the day and answers whether every step held."""

from __future__ import annotations

import asyncio
import signal
import sys

from agent.demo.narrator import teller
from agent.demo.stage import open_stage
from agent.demo.story import STORY


def main(*, fast: bool, as_json: bool) -> int:
    """Play the day; 0 only if every step held. A terminal that closes or a SIGTERM ends it in order."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: sys.exit(128 + number))
    return asyncio.run(_play(fast=fast, as_json=as_json))


async def _play(*, fast: bool, as_json: bool) -> int:
    tell = teller(as_json=as_json, fast=fast, out=sys.stdout)
    async with open_stage() as stage:
        for step in STORY:
            held = await tell.step(step, stage)
            if not held:
                tell.end(False, stage.log_tail())
                return 1
    tell.end(True, "")
    return 0
