"""One vendor for as long as the agent runs."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from agent.core.errors import VendorTimeout
from agent.core.model import VendorState
from agent.core.vendor import Device
from agent.isolation import contact
from agent.isolation.memory import MemoryLimit
from agent.isolation.supervisor import Backoff, Deadlines, VendorProcess

from .rig import HERE, QUICK, Flag, Recorder, children, exists, files_of, serving, until, vendor


async def test_an_early_start_works_ahead_and_is_taken_over(sink: Recorder) -> None:
    process = VendorProcess(vendor(), sink, deadlines=QUICK, python_path=(HERE,))
    process.start_early()
    early = process.pid
    task = asyncio.create_task(process.run())

    await sink.until(lambda: sink.lists)

    assert process.pid == early is not None
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.parametrize("call", ["open", "discover"])
async def test_a_missing_driver_is_awaited(call: str, sink: Recorder, flag: Flag, in_process: bool) -> None:
    async with serving(sink, does={call: "unavailable"}, flag=str(flag), in_process=in_process) as process:
        await sink.until(lambda: len(sink.losses) >= 2)
        flag.lower()
        await sink.until(lambda: sink.lists)

        assert set(sink.losses) == {(VendorState.UNAVAILABLE, "driver-not-loaded: no /dev/xpu")}
        assert process.restarts == 0


@pytest.mark.parametrize(
    ("backend", "reason"),
    [
        ("Unloadable", "open failed: ImportError: libxpu.so.1: cannot open shared object file"),
        ("NotABackend", "open failed: TypeError: faulty_backends:NotABackend is not a subclass of Backend"),
        ("Missing", "open failed: AttributeError: module 'faulty_backends' has no attribute 'Missing'"),
    ],
)
async def test_a_backend_that_can_not_be_loaded_says_why(backend: str, reason: str, sink: Recorder) -> None:
    async with serving(sink, backend):
        await sink.until(lambda: sink.losses)

        assert sink.losses[0] == (VendorState.FAILED, reason)


async def test_twenty_crashes_leak_no_file_and_no_zombie(sink: Recorder) -> None:
    files, before = files_of(os.getpid()), children()

    async with serving(sink, does={"discover": "segfault"}) as process:
        await sink.until(lambda: process.restarts >= 20)
    await asyncio.sleep(0)

    assert len(files_of(os.getpid())) == len(files)
    assert children() == before


async def test_cancelling_lets_the_backend_close_and_collects_the_process(
    sink: Recorder, tmp_path: Path
) -> None:
    closed = tmp_path / "closed"
    async with serving(sink, closed=str(closed)) as process:
        await sink.until(lambda: sink.lists)
        pid = process.pid

    assert pid is not None
    assert not exists(pid)
    assert closed.name in os.listdir(tmp_path)


async def test_cancelling_does_not_wait_for_a_hung_call(sink: Recorder) -> None:
    short = Deadlines(close=0.01)
    async with serving(sink, deadlines=short, does={"open": "hang"}) as process:
        await until(lambda: process.pid)
        pid = process.pid

    assert not exists(pid)


async def test_cancelling_by_a_scope_collects_the_process(sink: Recorder) -> None:
    process = VendorProcess(vendor(), sink, deadlines=QUICK, python_path=(HERE,))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(process.run)
        await sink.until(lambda: sink.lists)
        pid = process.pid
        tasks.cancel_scope.cancel()

    assert not exists(pid)


async def test_a_process_stuck_in_the_kernel_is_told_and_not_joined_by_a_second(
    sink: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contact.Process, "kill", lambda self: None)
    short = Deadlines(call=0.1, close=0.01, kill=0.01)
    async with serving(sink, deadlines=short, does={"usage": "hang"}) as process:
        await sink.until(lambda: sink.lists)
        stuck = process.pid
        assert stuck is not None
        with pytest.raises(VendorTimeout):
            await process.call("usage")
        await sink.until(lambda: len(sink.losses) >= 2)
        assert sink.losses[1][1].endswith(f"process {stuck} is killed but does not end")
        assert process.pid is None

        os.kill(stuck, signal.SIGKILL)

        listed = len(sink.lists)
        await sink.until(lambda: len(sink.lists) > listed)
        monkeypatch.undo()


async def test_a_bug_in_the_sink_travels_up(sink: Recorder) -> None:
    class Broken(Recorder):
        def discovered(self, vendor: str, devices: Sequence[Device]) -> None:
            raise ZeroDivisionError

    process = VendorProcess(vendor(), Broken(), python_path=(HERE,))

    with pytest.raises(ExceptionGroup) as caught, anyio.fail_after(30):
        await process.run()

    assert caught.group_contains(ZeroDivisionError)


async def test_a_process_that_can_not_start_is_told_and_tried_again(
    sink: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = contact.Process
    tries = iter([OSError("no more processes")])

    def start(sock: Any, limit: MemoryLimit) -> contact.Process:
        for exc in tries:
            sock.close()
            raise exc
        return real(sock, limit)

    monkeypatch.setattr(contact, "Process", start)
    async with serving(sink):
        await sink.until(lambda: sink.lists)

    assert sink.losses == [(VendorState.FAILED, "can not start: no more processes")]


def test_backoff_grows_with_jitter_and_starts_again_after_good_service() -> None:
    backoff = Backoff(0.1, 30)

    pauses = [backoff.pause(served=0) for _ in range(12)]

    assert all(0.05 * 2**n <= pause <= 0.1 * 2**n for n, pause in enumerate(pauses[:8]))
    assert all(15 <= pause <= 30 for pause in pauses[9:])
    assert backoff.pause(served=30) <= 0.1
