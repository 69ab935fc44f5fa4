"""What a run of the tests says of itself: how long it will take here, and where to look when a test fails."""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from pathlib import Path

import pytest
from _pytest._code.code import ExceptionChainRepr, ReprEntryNative

ROOT = Path(__file__).parents[2]
#: Seconds of a core that `make test` takes, waits included, where the probe takes this long.
WORK, PROBE = 980.0, 0.1
LAST = "xpu-agent/seconds-of-make-test"
LONGEST = 200


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("forecast") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Stopwatch(config))


def probed() -> float:
    """Seconds that this machine takes for some work of the interpreter."""

    def once() -> float:
        began = time.perf_counter()
        sum(number * number % 7 for number in range(1_000_000))
        return time.perf_counter() - began

    return min(once() for _ in range(3))


def forecast(config: pytest.Config) -> str:
    """How long `make test` will take here: as long as the last time, or by what the machine can do."""
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    seconds = WORK * probed() / PROBE / cores
    why = f"on {cores} cores as fast as these"
    if (cache := getattr(config, "cache", None)) and (last := cache.get(LAST, None)):
        seconds, why = last, "as the last one here that passed"
    more = f"; longer beside other work, the load is {load:.0f} now" if load > cores / 2 else ""
    return f"about {seconds / 60:.1f} minutes, {why}{more}"


class Stopwatch:
    """Says how long `make test` will take, and remembers how long one took that passed."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._began = time.monotonic()

    def pytest_report_header(self) -> str:
        return f"this will take {forecast(self._config)}"

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        if exitstatus == 0 and (cache := getattr(self._config, "cache", None)):
            cache.set(LAST, round(time.monotonic() - self._began))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """The first line of a failure: the line of the test, and where in the agent it was raised."""
    report = yield
    if report.failed and call.excinfo is not None and isinstance(report.longrepr, ExceptionChainRepr):
        first = ReprEntryNative([f"look at {place(item.path, call.excinfo)}\n"])
        said = report.longrepr.chain[0][0]
        said.reprentries = [first, *said.reprentries]
    return report


def place(test: Path, failure: pytest.ExceptionInfo[BaseException]) -> str:
    """Where it failed: the last line in the file of the test, and the last one of ours."""
    frames = [it for it in failure.traceback if ROOT in Path(it.path).parents and ".venv" not in str(it.path)]
    in_test = [it for it in frames if Path(it.path) == test]
    error = _first_line(failure.exconly())[:LONGEST]
    if not in_test:  # a fixture's word
        return f"{test.relative_to(ROOT)}: {error}"
    at, deepest = in_test[-1], frames[-1]
    parts = [
        f"{Path(at.path).relative_to(ROOT)}:{at.lineno + 1}: {_first_line(str(at.statement)).rstrip(':')}"
    ]
    if "agent" in Path(deepest.path).relative_to(ROOT).parts[:1]:
        parts.append(f"raised at {Path(deepest.path).relative_to(ROOT)}:{deepest.lineno + 1}")
    return f"{', '.join(parts)}: {error}"


def _first_line(text: str) -> str:
    """Of the source, nothing may be left: somebody edits the file while the tests run."""
    return next(iter(text.strip().splitlines()), "")
