"""Prints the steps of the demo: prose for people, one JSON object for each step for programs."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Protocol, TextIO

from rich.console import Console

from agent.demo.stage import Stage
from agent.demo.story import Evidence, Step

#: Seconds that a person gets to read a step.
READING_SECONDS = 1.0


class Narrator(Protocol):
    async def step(self, step: Step, stage: Stage) -> bool:
        """Play the step and print it; returns whether the step held."""

    def end(self, held: bool, log_tail: str) -> None:
        """Print how the demo ended."""


def narrator(*, as_json: bool, fast: bool, out: TextIO) -> Narrator:
    return JsonNarrator(out) if as_json else ProseNarrator(out, 0.0 if fast else READING_SECONDS)


async def played(step: Step, stage: Stage) -> tuple[Evidence, str, float]:
    """The evidence, the error or an empty text, and the seconds that the step took."""
    started = time.monotonic()
    try:
        async with asyncio.timeout(step.seconds):
            evidence = await step.play(stage)
    except TimeoutError:
        return {}, f"what must follow did not follow within {step.seconds:g} s", step.seconds
    except Exception as exc:
        return {}, f"{type(exc).__name__}: {exc}", time.monotonic() - started
    return evidence, "", time.monotonic() - started


def title(number: int, step: Step) -> str:
    return f"{number}. {step.name[:1].upper()}{step.name[1:]}. {step.says}"


class ProseNarrator:
    """Prose, in colour where `out` is a terminal with colours."""

    def __init__(self, out: TextIO, pause: float) -> None:
        self._out = Console(file=out, highlight=False, markup=False, emoji=False)
        self._pause = pause
        self._number = 0
        self._started = time.monotonic()

    async def step(self, step: Step, stage: Stage) -> bool:
        self._number += 1
        self._say(f"\n{title(self._number, step)}", "bold")
        evidence, error, seconds = await played(step, stage)
        for key, value in evidence.items():
            self._say(f"     {key}: {_text(value)}")
        verdict, colour = (f"does not hold: {error}", "red") if error else ("holds", "green")
        self._say(f"   {verdict} ({seconds:.2f} s)", colour)
        await asyncio.sleep(self._pause)
        return not error

    def end(self, held: bool, log_tail: str) -> None:
        took = time.monotonic() - self._started
        if held:
            self._say(f"\nEvery step held, in {took:.1f} s.", "bold green")
        else:
            self._say(f"\nThe story ends here. The agent's last words:\n{log_tail}")

    def _say(self, text: str, style: str = "") -> None:
        self._out.print(text, style=style, soft_wrap=True)


class JsonNarrator:
    def __init__(self, out: TextIO) -> None:
        self._out = out

    async def step(self, step: Step, stage: Stage) -> bool:
        evidence, error, seconds = await played(step, stage)
        self._write(
            {
                "step": step.name,
                "says": step.says,
                "held": not error,
                "error": error or None,
                "seconds": round(seconds, 3),
                "evidence": evidence,
            }
        )
        return not error

    def end(self, held: bool, log_tail: str) -> None:
        if not held:
            self._write({"held": False, "log": log_tail.splitlines()})

    def _write(self, document: Mapping[str, object]) -> None:
        print(json.dumps(document), file=self._out, flush=True)


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={it}" for key, it in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
