"""What a vendor's library leaves behind ends with its process, whatever session and parent that has."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.waiting import eventually

from agent.core.model import VendorState
from agent.isolation import descendants
from agent.isolation.vendor_supervisor import VendorSupervisor

from .rig import HERE, QUICK, Recorder, exists, is_running, serving, vendor

KINDS = 3  # of what the backend leaves


@pytest.fixture
def pids(tmp_path: Path) -> Iterator[Path]:
    """Says what was left; no test leaves it to the machine."""
    path = tmp_path / "pids"
    yield path
    for pid in left(path):
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


def left(pids: Path) -> list[str]:
    return pids.read_text().split() if pids.exists() else []


@pytest.mark.parametrize("end", [signal.SIGSEGV, signal.SIGKILL])
async def test_what_a_library_put_in_sessions_of_their_own_ends_with_a_process_that_crashes(
    end: signal.Signals, sink: Recorder, pids: Path
) -> None:
    """A fork holds the socket, so that nothing of the end is heard; no call is waiting, nor soon to come."""
    async with serving(sink, does={"open": "leave"}, pids=str(pids), every=100) as process:
        await sink.until(lambda: sink.lists)
        await eventually(lambda: len(left(pids)) == KINDS)
        assert all(map(is_running, left(pids)))
        assert process.pid is not None

        os.kill(process.pid, end)
        await sink.until(lambda: sink.losses)

        assert sink.losses[0] == (VendorState.FAILED, f"killed by {end.name}")
        await eventually(lambda: not any(map(is_running, left(pids)[:KINDS])))


async def test_what_a_library_put_in_sessions_of_their_own_ends_with_a_process_that_is_taken_out_of_service(
    sink: Recorder, pids: Path
) -> None:
    async with serving(sink, does={"open": "leave"}, pids=str(pids)):
        await sink.until(lambda: sink.lists)
        await eventually(lambda: len(left(pids)) == KINDS)

    await eventually(lambda: not any(map(is_running, left(pids))))


async def test_what_is_left_of_another_vendor_that_serves_is_let_alone(sink: Recorder, pids: Path) -> None:
    heard = Recorder()
    async with serving(sink, does={"open": "leave"}, pids=str(pids)) as process:
        await sink.until(lambda: sink.lists)
        await eventually(lambda: len(left(pids)) == KINDS)
        async with serving(heard):
            await heard.until(lambda: heard.lists)
        assert process.pid is not None

        assert descendants.end_of_the_dead({process.pid}) == []  # a killed process may be seen for a moment
        assert all(map(is_running, left(pids)))


async def test_what_is_left_of_a_dropped_process_ends(pids: Path) -> None:
    process = VendorSupervisor(
        vendor(does={"open": "leave"}, pids=str(pids)), Recorder(), deadlines=QUICK, python_path=(HERE,)
    )
    process.start_early()
    pid = process.pid
    await eventually(lambda: len(left(pids)) == KINDS)
    task = asyncio.create_task(process.run())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])

    await eventually(lambda: not exists(pid) and not any(map(is_running, left(pids))))


KILLED = """
import sys
from agent.vendor_api.agent import Settings, Vendor
from agent.isolation.vendor_process import VendorProcess
settings = {"does": {"open": "leave"}, "pids": sys.argv[2]}
vendor = Vendor("acme", "support.faulty_backends:Good", "acme.com/xpu", None, settings=Settings(settings))
started = VendorProcess(vendor, watch=None, python_path=(sys.argv[1],))
print(started.runner.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def agent(pids: Path) -> Iterator[subprocess.Popen[bytes]]:
    args = [sys.executable, "-c", KILLED, HERE, str(pids)]
    with subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield process
        process.kill()


async def test_what_a_killed_agent_left_behind_is_ended_by_the_next_one(
    agent: subprocess.Popen[bytes], pids: Path
) -> None:
    """The kernel ends the vendor's process with its agent, and knows nothing of what has another session."""
    await eventually(lambda: len(left(pids)) == KINDS)
    assert agent.stdout is not None
    origin = int(agent.stdout.readline())
    agent.kill()

    def ended() -> bool:
        descendants.end_of_the_dead({origin})
        return not any(map(is_running, left(pids)))

    await eventually(ended)


def test_whoever_left_it_is_meant_where_nobody_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    dead = 1 << 30  # no process has this number
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        monkeypatch.setattr(descendants, "_find_marked", lambda: iter([(child.pid, dead)]))

        assert descendants.end_of_the_dead({dead + 1}) == []
        assert descendants.end_of_the_dead() == [child.pid]
        assert child.wait(30) == -signal.SIGKILL
