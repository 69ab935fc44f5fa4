"""Plays all steps of the demo."""

from __future__ import annotations

import asyncio
import signal
import sys

from agent.demo.narrator import narrator
from agent.demo.stage import open_stage
from agent.demo.story import STORY


def main(*, fast: bool, as_json: bool) -> int:
    """Play all steps; 0 only if every step held. A closed terminal or SIGTERM ends the demo in order."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: sys.exit(128 + number))
    return asyncio.run(_play(fast=fast, as_json=as_json))


async def _play(*, fast: bool, as_json: bool) -> int:
    chosen = narrator(as_json=as_json, fast=fast, out=sys.stdout)
    async with open_stage() as stage:
        for step in STORY:
            held = await chosen.step(step, stage)
            if not held:
                chosen.end(False, stage.log_tail())
                return 1
    chosen.end(True, "")
    return 0
