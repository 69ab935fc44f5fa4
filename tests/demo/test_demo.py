"""The demo is the smoke test: it must hold, say so in its exit status, and tell when it does not."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from support.short_places import SHORT_PLACE

from agent.demo.narrator import JsonNarrator, Narrator, ProseNarrator
from agent.demo.stage import Stage
from agent.demo.story import STORY, Evidence, Step


def demo(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "agent", "demo", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)


def test_every_step_of_the_day_holds_and_nothing_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The prose of the same day is held by its recording: test_record."""
    with tempfile.TemporaryDirectory(dir=SHORT_PLACE) as root:
        monkeypatch.setenv("TMPDIR", root)

        told = demo("--fast", "--json")

        steps = [json.loads(line) for line in told.stdout.splitlines()]
        assert told.returncode == 0, told.stdout + told.stderr
        assert [it["step"] for it in steps] == [it.name for it in STORY]
        assert all(it["held"] for it in steps)
        assert list(Path(root).iterdir()) == []


@pytest.mark.parametrize("make", [lambda out: ProseNarrator(out, 0.0), JsonNarrator])
async def test_a_step_that_does_not_hold_is_told_as_such(make: type[Narrator]) -> None:
    async def broken(stage: Stage) -> Evidence:
        raise AssertionError("the card stayed")

    out = io.StringIO()
    held = await make(out).step(Step("a step", "It breaks.", broken), None)  # type: ignore[arg-type, call-arg]

    assert not held
    assert "the card stayed" in out.getvalue()


async def test_a_step_that_hangs_ends_at_its_deadline() -> None:
    async def hangs(stage: Stage) -> Evidence:
        import anyio

        await anyio.sleep_forever()
        return {}

    out = io.StringIO()
    held = await JsonNarrator(out).step(Step("a step", "It hangs.", hangs, seconds=0.01), None)  # type: ignore[arg-type]

    assert not held
    assert "within 0.01 s" in json.loads(out.getvalue())["error"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_demo_that_is_ended_takes_its_agent_along(number: signal.Signals) -> None:
    with tempfile.TemporaryDirectory(dir=SHORT_PLACE) as root:
        command = [sys.executable, "-m", "agent", "demo", "--json"]
        told = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "TMPDIR": root})
        assert told.stdout is not None
        told.stdout.readline()  # the first step: the agent runs

        told.send_signal(number)
        told.wait(30)
        told.stdout.close()

        deadline = time.monotonic() + 30
        while agents_below(root) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert agents_below(root) == []
        assert told.returncode != 0


def agents_below(root: str) -> list[str]:
    """Processes that were given something below the directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = process.read_bytes()
        except OSError:
            continue
        if root.encode() in words:
            found.append(words.decode(errors="replace"))
    return found


def test_a_story_that_nobody_hears_out_is_no_success() -> None:
    told = subprocess.Popen([sys.executable, "-m", "agent", "demo", "--fast"], stdout=subprocess.PIPE)
    assert told.stdout is not None

    told.stdout.readline()
    told.stdout.close()

    assert told.wait(60) == 1
