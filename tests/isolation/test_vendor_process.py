"""A process from its start to its end: what it gets, how its end is noticed."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from msgspec.structs import replace
from support.waiting import eventually

from agent.core.errors import VendorError
from agent.core.model import VendorState
from agent.isolation import backend_runner, vendor_process
from agent.isolation.deadlines import Deadlines
from agent.isolation.vendor_supervisor import VendorSupervisor
from agent.state.state_directory_lock import StateDirectoryLock

from .rig import HERE, QUICK, Flag, Recorder, files_of, is_running, runs_in_group, serving, vendor
from .strategies import message_lines


@pytest.mark.parametrize(
    ("reason", "message", "told"),
    [
        ("driver-not-loaded", "no /dev/xpu", "driver-not-loaded: no /dev/xpu"),
        ("driver-not-loaded", "", "driver-not-loaded"),
        ("No Driver", "no /dev/xpu", "unavailable: No Driver: no /dev/xpu"),
        ("driver-not-loaded, perhaps", "", "unavailable: driver-not-loaded, perhaps"),
        ("", "no /dev/xpu", "unavailable: no /dev/xpu"),
        ("x" * 65, "", f"unavailable: {'x' * 65}"),
        ("gone", "y" * 3000, f"gone: {'y' * 511}…"),
    ],
)
async def test_why_a_vendor_is_unavailable_begins_with_one_word(
    reason: str, message: str, told: str, sink: Recorder
) -> None:
    async with serving(sink, does={"open": "unavailable"}, reason=reason, message=message):
        await sink.until(lambda: sink.losses)

        assert sink.losses[0] == (VendorState.UNAVAILABLE, told)


def test_only_a_backend_can_say_that_the_driver_was_not_loaded() -> None:
    lost = vendor_process.failed("driver-not-loaded: or so")

    assert (lost.state, lost.reason) == (VendorState.FAILED, "failed: driver-not-loaded: or so")


async def test_an_exception_with_a_long_text_is_cut(sink: Recorder) -> None:
    async with serving(sink, does={"discover": "raise"}, raises="x" * 10_000):
        await sink.until(lambda: sink.losses)

        assert len(sink.losses[0][1]) <= 600


def test_the_process_gets_no_environment_but_what_libraries_need(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_SECRET_ACCESS_KEY", "KUBECONFIG", "PYTHONPATH", "LC_ALL", "CUDA_HOME", "XPU_NVML_STUB"):
        monkeypatch.setenv(name, "x")

    found = backend_runner.environment(("CUDA_",))

    assert {"PATH", "LC_ALL", "CUDA_HOME", "XPU_NVML_STUB"} <= found.keys()
    assert not {"AWS_SECRET_ACCESS_KEY", "KUBECONFIG", "PYTHONPATH"} & found.keys()
    assert "CUDA_HOME" not in backend_runner.environment()


async def test_a_process_that_runs_has_no_secret_of_the_agents_environment(
    sink: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    async with serving(sink) as process:
        await sink.until(lambda: sink.lists)
        its = await asyncio.to_thread(Path(f"/proc/{process.pid}/environ").read_bytes)

    assert b"PATH=" in its
    assert b"AWS_SECRET_ACCESS_KEY" not in its


async def test_a_crash_is_noticed_though_a_forked_process_keeps_the_socket(sink: Recorder) -> None:
    short = Deadlines(call=2.0, close=0.01)
    async with serving(sink, deadlines=short, does={"partitions": "fork_and_segfault"}, every=100) as process:
        await sink.until(lambda: sink.lists)
        group = process.pid

        with pytest.raises(VendorError):
            await process.call("partitions")
        await sink.until(lambda: sink.losses)

        assert sink.losses[0] == (VendorState.FAILED, "killed by SIGSEGV")
        await eventually(lambda: not runs_in_group(group))


async def test_a_process_that_is_dropped_is_collected_though_nobody_waits_for_its_end() -> None:
    dropped = vendor_process.VendorProcess(vendor(), watch=None)
    pid = dropped.runner.pid

    dropped.drop()

    await eventually(lambda: not Path(f"/proc/{pid}").exists())  # a zombie would still be there


async def test_a_process_outlives_the_thread_that_started_it(sink: Recorder) -> None:
    """PR_SET_PDEATHSIG would tie it to that thread."""
    process = VendorSupervisor(vendor(), sink, deadlines=QUICK, python_path=(HERE,))
    thread = threading.Thread(target=process.start_early)
    thread.start()
    await asyncio.to_thread(thread.join)
    started = process.pid
    task = asyncio.create_task(process.run())

    await sink.until(lambda: len(sink.lists) >= 1)

    assert process.pid == started is not None
    assert sink.losses == []
    task.cancel()
    await asyncio.wait([task])


def test_a_process_whose_agent_died_before_it_could_ask_for_its_own_end_ends() -> None:
    code = (
        "import os; from agent.isolation.child import die_with_the_agent; "
        "ours, agents = os.pipe(); os.close(agents); die_with_the_agent(ours); print('lives')"
    )

    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, start_new_session=True)

    assert (ended.stdout, ended.returncode) == ("", 0)


HOSTILE = {
    "kill_its_group": "killed by SIGKILL",
    "close_the_socket": "exited with status 1",
    "close_every_file": "exited with status 120",
    "stop": "discover did not return within 2 s",
}


@pytest.mark.parametrize("deed", HOSTILE)
async def test_what_a_library_does_to_itself_costs_only_itself(
    deed: str, sink: Recorder, flag: Flag, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        vendor_process, "EXIT_PATIENCE", 30
    )  # its status is what is told, however late it ends
    short = replace(QUICK, discover=2.0, close=0.01)
    async with serving(sink, does={"discover": deed}, flag=str(flag), deadlines=short) as process:
        await eventually(lambda: process.pid)
        first = process.pid
        await sink.until(lambda: sink.losses)
        flag.lower()
        await sink.until(lambda: sink.lists)

        assert sink.losses[0] == (VendorState.FAILED, HOSTILE[deed])
        await eventually(lambda: not runs_in_group(first))


async def test_a_library_that_floods_the_agent_with_events_costs_only_its_process(
    sink: Recorder, flag: Flag
) -> None:
    async with serving(sink, does={"discover": "flood"}, flag=str(flag)) as process:
        await eventually(lambda: process.pid)
        first = process.pid
        await sink.until(lambda: sink.losses)
        flag.lower()
        await sink.until(lambda: sink.lists)

        told = "sent more than 16384 events at once, and 2000 a second after them"
        assert sink.losses[0] == (VendorState.FAILED, told)
        await eventually(lambda: not runs_in_group(first))


async def test_an_answer_is_heard_that_is_longer_than_what_is_read_ahead(sink: Recorder) -> None:
    async with serving(sink, does={"discover": "many"}):
        await sink.until(lambda: sink.lists)

        assert len(sink.lists[0]) == 1024
        assert sink.losses == []


AGENT = """
import asyncio, sys
from agent.vendor_api.agent import Settings, Vendor
from agent.isolation.deadlines import Deadlines
from agent.isolation.vendor_supervisor import VendorSupervisor
class Sink:
    def discovered(self, vendor, devices): print(process.pid, file=sys.stderr, flush=True)
    def observed(self, vendor, events): pass
    def lost(self, vendor, state, reason): print(reason, file=sys.stderr)
settings = {"does": {"partitions": sys.argv[2]}, "pids": sys.argv[3]}
vendor = Vendor("acme", "support.faulty_backends:Good", "acme.com/xpu", None, settings=Settings(settings))
patient = Deadlines(call=60)
process = VendorSupervisor(vendor, Sink(), deadlines=patient, python_path=(sys.argv[1],))
async def main():
    task = asyncio.create_task(process.run())
    while not process._service or not process._service.listed:
        await asyncio.sleep(0.01)
    await process.call("partitions")
asyncio.run(main())
"""


@pytest.fixture(params=["hang", "fork_and_hang"])
def agent_process(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    args = [sys.executable, "-c", AGENT, HERE, request.param, str(tmp_path / "pids")]
    with subprocess.Popen(args, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


async def test_the_process_and_what_it_forked_die_with_a_killed_agent_even_in_a_hung_call(
    agent_process: subprocess.Popen[str], tmp_path: Path
) -> None:
    assert agent_process.stderr is not None
    pid = (await asyncio.to_thread(agent_process.stderr.readline)).strip()
    assert pid.isdigit()

    pids = tmp_path / "pids"
    if "fork_and_hang" in cast("list[str]", agent_process.args):
        await eventually(lambda: pids.exists() and pids.read_text().endswith("\n"))
        assert all(is_running(it) for it in pids.read_text().split())

    agent_process.send_signal(signal.SIGKILL)

    await eventually(lambda: not is_running(pid) and not runs_in_group(int(pid)))


@pytest.fixture
def files_of_the_agent(tmp_path: Path) -> Iterator[None]:
    """An agent with its lock, and with files and sockets that it even lets others inherit."""
    with ExitStack() as stack:
        lock = stack.enter_context(StateDirectoryLock(tmp_path / "agent.lock"))
        assert lock.take() == ""
        for number in range(20):
            file = stack.enter_context((tmp_path / f"secret-{number}").open("w"))
            one, other = socket.socketpair()
            for it in (file, stack.enter_context(one), stack.enter_context(other)):
                os.set_inheritable(it.fileno(), True)
        yield


@pytest.mark.usefixtures("files_of_the_agent")
async def test_a_process_and_what_it_forks_get_no_file_of_the_agent(sink: Recorder, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    patient = Deadlines(call=60, close=0.01)
    does = {"partitions": "fork_and_hang"}
    async with serving(sink, deadlines=patient, does=does, pids=str(pids), every=100) as process:
        await sink.until(lambda: sink.lists)
        hung = asyncio.create_task(process.call("partitions"))
        await eventually(lambda: pids.exists() and pids.read_text().endswith("\n"))
        forked, program = map(int, pids.read_text().split())
        await eventually(lambda: Path(f"/proc/{program}/comm").read_text() == "sleep\n")

        own = ["/dev/null", "pipe", "pipe", "pipe", "socket"]
        assert [_kinds(pid) for pid in (process.pid, forked)] == [own, own]
        # The program opens and closes its locale's files at first.
        await eventually(lambda: _kinds(program) == own[:3])
        assert _inputs_and_outputs(process.pid) == ["/dev/null", "pipe", "pipe"]
        hung.cancel()


def _kinds(pid: int | None) -> list[str]:
    """What kinds of files it has; pipes and sockets are named by a number."""
    return sorted(name.partition(":")[0] for name in files_of(pid))


def _inputs_and_outputs(pid: int | None) -> list[str]:
    return [os.readlink(f"/proc/{pid}/fd/{number}").partition(":")[0] for number in range(3)]


@given(line=message_lines())
def test_any_line_is_a_message_or_costs_the_process_in_words(line: bytes) -> None:
    reason = _refusal(line)

    assert not reason or reason.startswith("sent what is no message: ")
    assert len(reason) <= 600


def test_a_message_that_nests_deeper_than_we_can_read_is_none() -> None:
    deep = b"[" * 100_000 + b"]" * 100_000

    assert _refusal(b'{"id": 1, "answer": ' + deep + b"}\n").startswith("sent what is no message: ")


def _refusal(line: bytes) -> str:
    """What is said of a line; empty where it is a message."""
    try:
        vendor_process._read(line)
    except vendor_process.ContactLost as exc:
        return exc.reason
    return ""
