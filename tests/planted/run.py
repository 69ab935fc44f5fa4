"""Plants one fault after the other, each in a copy of the tree, and sees whether its tests catch it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from .copies import Copy, Unsound, copied
from .edit import Unplaced, planted
from .fault import Fault

#: A test hangs where it takes so many times as long as without the fault, and at least so many seconds.
TIMES, LEAST = 4.0, 15.0
#: Seconds for a test, and for all of them, without a fault.
CLEAN_TEST, CLEAN = 180.0, 1200.0
#: Exit codes of pytest. 2 and above: pytest could not run the tests.
PASSED, FAILED, INTERNAL_ERROR = 0, 1, 3
#: What pytest-timeout says.
TIMED_OUT = "Failed: Timeout"
#: The last lines of pytest's output, where they are all that is known.
SHOWN = 12


class Verdict(StrEnum):
    """What came of a fault."""

    CAUGHT = "caught"
    SURVIVED = "SURVIVED"
    #: The run says nothing: the fault is not planted, or the tests cannot be collected.
    UNSOUND = "UNSOUND"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a fault, by which test or why, and after how many seconds."""

    fault: Fault
    verdict: Verdict
    by: str
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.verdict:9}{self.seconds:6.1f} s  {self.fault.name}  {self.by}"


@dataclass(frozen=True, slots=True)
class Limits:
    """How long tests may take, by how long each took without a fault: on a slow machine longer."""

    took: Mapping[str, float]

    def of(self, tests: Sequence[str]) -> tuple[float, float]:
        """Seconds for one of these tests, and for all of them."""
        its = [took for test, took in self.took.items() if any(_is_of(test, named) for named in tests)]
        one = max(LEAST, TIMES * max(its, default=0.0))
        return one, 2 * one + TIMES * sum(its)


def _is_of(test: str, named: str) -> bool:
    """Whether a test is one of those that a file or a node ID names."""
    return test == named or test.startswith((f"{named}::", f"{named}["))


def run(tree: Path, chosen: Sequence[Fault], jobs: int, tell: Callable[[str], object]) -> list[Outcome]:
    """Run the tests of each fault, so many faults at once.

    Raises:
        Unsound: The tests do not pass without a fault either.
    """
    with tempfile.TemporaryDirectory(prefix="planted-") as place, ThreadPoolExecutor(jobs) as pool:
        build = Path(place) / "build"
        build.mkdir()
        clean = copied(tree, Path(place) / "clean", build)
        parts = _parts(_named(chosen), jobs)
        took: dict[str, float] = {}
        for its, said in pool.map(lambda tests: _passed(clean, tests), parts):
            took |= its
            tell(said)
        limits = Limits(took)

        def one(numbered: tuple[int, Fault]) -> Outcome:
            number, fault = numbered
            with tempfile.TemporaryDirectory(prefix=f"{number}-", dir=place) as at:
                outcome = _timed(clean, fault, Path(at) / "tree", build, limits)
            tell(str(outcome))
            return outcome

        return list(pool.map(one, enumerate(chosen)))


def _named(chosen: Sequence[Fault]) -> list[str]:
    """All tests that some fault names, none of them twice."""
    tests = {test for fault in chosen for test in fault.caught_by}
    return sorted(test for test in tests if "::" not in test or test.partition("::")[0] not in tests)


def _parts(tests: Sequence[str], jobs: int) -> list[list[str]]:
    return [part for part in ([*tests[start::jobs]] for start in range(jobs)) if part]


def _passed(clean: Copy, tests: Sequence[str]) -> tuple[Mapping[str, float], str]:
    """How long each test took without a fault, and a line on all of them."""
    began = time.monotonic()
    code, output = _pytest(clean, (*tests, "--durations=0"), CLEAN_TEST, CLEAN)
    if code != PASSED:
        raise Unsound(
            "\n".join(["without a fault the tests do not pass either:", *output.splitlines()[-SHOWN:]])
        )
    took: dict[str, float] = {}
    for seconds, test in re.findall(r"^([\d.]+)s (?:setup|call|teardown) +(.+)$", output, re.MULTILINE):
        took[test] = took.get(test, 0.0) + float(seconds)
    return took, f"{'clean':9}{time.monotonic() - began:6.1f} s  {output.splitlines()[-1]}"


def _timed(clean: Copy, fault: Fault, at: Path, build: Path, limits: Limits) -> Outcome:
    began = time.monotonic()
    verdict, by = _tried(clean, fault, at, build, limits)
    return Outcome(fault, verdict, by, time.monotonic() - began)


def _tried(clean: Copy, fault: Fault, at: Path, build: Path, limits: Limits) -> tuple[Verdict, str]:
    try:
        edited = planted(clean.path, fault)
        copy = copied(clean.path, at, build)
        copy.write(fault.file, edited)
        copy.prove(fault.module)
    except (Unplaced, Unsound) as exc:
        return Verdict.UNSOUND, str(exc)
    test, all_ = limits.of(fault.caught_by)
    code, output = _pytest(copy, fault.caught_by, test, all_)
    if code == PASSED:
        return Verdict.SURVIVED, ", ".join(fault.caught_by)
    # pytest-timeout interrupts a hook of pytest, too, if the time ends between the phases of a test.
    hung = code is None or (code in (FAILED, INTERNAL_ERROR) and TIMED_OUT in output)
    if code != FAILED and not hung:
        return Verdict.UNSOUND, " / ".join(output.splitlines()[-SHOWN:])
    by = _failed(output)
    if hung:
        # Not for a machine that is slow at the moment: without the fault the same tests end now.
        again, _ = _pytest(clean, by or fault.caught_by, test, all_)
        if again != PASSED:
            return Verdict.UNSOUND, f"they take as long without the fault now: {', '.join(by)}"
    return Verdict.CAUGHT, ", ".join(by) or f"they hang: no end after {all_:.0f} s"


def _failed(output: str) -> tuple[str, ...]:
    """The first test that failed, by its node ID."""
    found = re.search(r"^(?:FAILED|ERROR) (tests/.+?)(?: - |$)", output, re.MULTILINE)
    return (found[1],) if found else ()


def _pytest(copy: Copy, tests: Sequence[str], test: float, limit: float) -> tuple[int | None, str]:
    """The exit status, None after so many seconds without an end, and what was printed."""
    command = copy.pytest(tests, "-x", f"--timeout={test:g}")
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        # In a session of its own: what the tests have started ends with them.
        process = subprocess.Popen(
            command,
            cwd=copy.path,
            env=copy.environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
        output.seek(0)
        return code, output.read()


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
