"""A process from its start to its end: what it gets, how its end is noticed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.core.errors import VendorError
from agent.core.model import VendorState
from agent.isolation import contact
from agent.isolation.supervisor import Deadlines

from .rig import HERE, Recorder, files_of, is_running, runs_in_group, serving, until


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
    lost = contact.failed("driver-not-loaded: or so")

    assert (lost.state, lost.reason) == (VendorState.FAILED, "failed: driver-not-loaded: or so")


async def test_an_exception_with_a_long_text_is_cut(sink: Recorder) -> None:
    async with serving(sink, does={"discover": "raise"}, raises="x" * 10_000):
        await sink.until(lambda: sink.losses)

        assert len(sink.losses[0][1]) <= 600


def test_the_process_gets_no_environment_but_what_libraries_need(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_SECRET_ACCESS_KEY", "KUBECONFIG", "PYTHONPATH", "LC_ALL", "CUDA_HOME", "XPU_NVML_STUB"):
        monkeypatch.setenv(name, "x")

    found = contact.environment()

    assert {"PATH", "LC_ALL", "CUDA_HOME", "XPU_NVML_STUB"} <= found.keys()
    assert not {"AWS_SECRET_ACCESS_KEY", "KUBECONFIG", "PYTHONPATH"} & found.keys()


async def test_a_crash_is_noticed_though_a_forked_process_keeps_the_socket(sink: Recorder) -> None:
    short = Deadlines(call=0.3, close=0.01)
    async with serving(sink, deadlines=short, does={"usage": "fork_and_segfault"}, every=100) as process:
        await sink.until(lambda: sink.lists)
        group = process.pid

        with pytest.raises(VendorError):
            await process.call("usage")
        await sink.until(lambda: sink.losses)

        assert sink.losses[0] == (VendorState.FAILED, "killed by SIGSEGV")
        await until(lambda: not runs_in_group(group))


AGENT = """
import asyncio, sys
from agent.core.vendor import Vendor
from agent.isolation.supervisor import VendorProcess
class Sink:
    def discovered(self, vendor, devices): print(process.pid, file=sys.stderr, flush=True)
    def observed(self, vendor, events): pass
    def lost(self, vendor, state, reason): print(reason, file=sys.stderr)
vendor = Vendor("acme", "faulty_backends:Good", None, "acme.com/xpu", {"does": {"partitions": "hang"}})
process = VendorProcess(vendor, Sink(), python_path=(sys.argv[1],))
async def main():
    task = asyncio.create_task(process.run())
    while not process._service or not process._service.listed:
        await asyncio.sleep(0.01)
    await process.call("partitions")
asyncio.run(main())
"""


@pytest.fixture
def agent_process() -> Iterator[subprocess.Popen[str]]:
    args = [sys.executable, "-c", AGENT, HERE]
    with subprocess.Popen(args, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


async def test_the_process_dies_with_a_killed_agent_even_in_a_hung_call(
    agent_process: subprocess.Popen[str],
) -> None:
    assert agent_process.stderr is not None
    pid = (await asyncio.to_thread(agent_process.stderr.readline)).strip()
    assert pid.isdigit()

    agent_process.send_signal(signal.SIGKILL)

    await until(lambda: not is_running(pid))


async def test_the_process_gets_no_file_of_the_agent_but_its_socket(sink: Recorder, tmp_path: Path) -> None:
    with (tmp_path / "secret").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        async with serving(sink) as process:
            await sink.until(lambda: sink.lists)
            opened = files_of(process.pid)

    assert str(tmp_path / "secret") not in opened
    assert sum(name.startswith("socket:") for name in opened) == 1
