"""One vendor for as long as the agent runs."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
import structlog.testing
from support.waiting import eventually

from agent.core.errors import VendorTimeout
from agent.core.model import VendorState
from agent.isolation import backend_runner, vendor_process
from agent.isolation.deadlines import Deadlines
from agent.isolation.vendor_memory_limit import MemoryLimit
from agent.isolation.vendor_supervisor import ProcessTiming, RestartBackoff, VendorSupervisor
from agent.vendor_api.agent import Device, Host, Signs

from .rig import HERE, QUICK, Flag, Recorder, children, exists, files_of, serving, vendor


async def test_an_early_start_works_ahead_and_is_taken_over(sink: Recorder) -> None:
    process = VendorSupervisor(vendor(), sink, deadlines=QUICK, python_path=(HERE,))
    process.start_early()
    early = process.pid
    task = asyncio.create_task(process.run())

    await sink.until(lambda: sink.lists)

    assert process.pid == early is not None
    task.cancel()
    await asyncio.wait([task])


async def test_an_early_process_that_was_never_served_ends_before_the_next_supervisor_starts_one(
    sink: Recorder,
) -> None:
    """Two libraries of one vendor at once could damage its hardware."""
    earlier = VendorSupervisor(vendor(), sink, deadlines=QUICK, python_path=(HERE,))
    earlier.start_early()
    early = earlier._early
    assert early is not None

    with anyio.CancelScope() as scope:
        scope.cancel()
        await earlier.run()

    assert early.runner.ended() is not None
    assert earlier.pid is None
    assert earlier._ended.is_set()


@pytest.mark.parametrize("call", ["open", "discover"])
async def test_a_missing_driver_is_awaited(call: str, sink: Recorder, flag: Flag, in_process: bool) -> None:
    async with serving(sink, does={call: "unavailable"}, flag=str(flag), in_process=in_process) as process:
        await sink.until(lambda: len(sink.losses) >= 2)
        flag.lower()
        await sink.until(lambda: sink.lists)

        assert set(sink.losses) == {(VendorState.UNAVAILABLE, "driver-not-loaded: no /dev/xpu")}
        assert process.restarts == 0


@pytest.mark.parametrize(
    ("reason", "required", "level"),
    [
        ("library-not-found", False, "info"),
        ("library-not-found", True, "error"),
        ("driver-not-loaded", False, "warning"),
        ("driver-not-loaded", True, "error"),
    ],
)
async def test_a_vendor_that_never_was_here_is_not_found_and_no_trouble_where_nobody_asked_for_it(
    reason: str, required: bool, level: str, sink: Recorder
) -> None:
    with structlog.testing.capture_logs() as logs:
        async with serving(sink, does={"open": "unavailable"}, reason=reason) as process:
            process.configure(required=required, sought=True)
            await sink.until(lambda: sink.losses)

    (said,) = (it for it in logs if it.get("reason") == sink.losses[0][1])
    assert (said["event"], said["log_level"]) == ("vendor not found here", level)


# One that is not here


def shy(sink: Recorder, sign: Path, every: float = 0.01, **settings: Any) -> VendorSupervisor:
    """One that is started once its sign is there."""
    it = replace(vendor(**settings), host=Host(signs=Signs((str(sign),), sysfs=str(sign))))
    process = VendorSupervisor(
        it, sink, deadlines=QUICK, timing=ProcessTiming(every, (0.001, 1000.0)), python_path=(HERE,)
    )
    process.configure(required=False, sought=False)
    return process


@asynccontextmanager
async def running(process: VendorSupervisor) -> AsyncIterator[None]:
    process.start_early()
    task = asyncio.create_task(process.run())
    yield
    task.cancel()
    await asyncio.wait([task])


async def test_no_process_is_started_until_something_shows_that_the_vendor_is_here(
    sink: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    real = backend_runner.ProcessRunner

    def start(*given: Any) -> backend_runner.ProcessRunner:
        started.append(given)
        return real(*given)

    monkeypatch.setattr(vendor_process, "ProcessRunner", start)
    sign = tmp_path / "sign"
    with structlog.testing.capture_logs() as logs:
        async with running(shy(sink, sign)):
            await sink.until(lambda: len(sink.losses) >= 3)
            assert started == []
            sign.touch()
            await sink.until(lambda: sink.lists)

    words = f"library-not-found: here is none of {sign}; "
    assert {(state, why[: len(words)]) for state, why in sink.losses} == {(VendorState.UNAVAILABLE, words)}
    said = [it["log_level"] for it in logs if it["event"] == "vendor not found here"]
    assert said == ["info"]


async def test_a_vendor_that_the_config_begins_to_ask_for_is_started_at_once(
    sink: Recorder, tmp_path: Path
) -> None:
    process = shy(sink, tmp_path / "sign", every=1000.0)
    async with running(process):
        await sink.until(lambda: sink.losses)
        assert process.pid is None
        assert process.status.next_try is not None

        process.configure(required=False, sought=True)
        await sink.until(lambda: sink.lists)


@pytest.mark.parametrize(("required", "rests"), [(False, True), (True, False)])
async def test_a_vendor_without_a_library_rests_at_once_unless_the_config_insists_on_it(
    required: bool, rests: bool, sink: Recorder, tmp_path: Path
) -> None:
    """The first pause is 1 ms, the longest 1000 s."""
    process = shy(sink, tmp_path, does={"open": "unavailable"}, reason="library-not-found")
    process.configure(required=required, sought=True)
    began = time.time()
    async with running(process):
        await eventually(lambda: process.status.next_try)
        assert process.status.next_try is not None
        if rests:
            assert process.status.next_try >= began + 500
        else:
            await sink.until(lambda: len(sink.losses) >= 3)


async def test_a_vendor_whose_library_goes_is_tried_again_soon(
    sink: Recorder, tmp_path: Path, flag: Flag
) -> None:
    flag.lower()
    does = {"open": "unavailable", "discover": "unavailable"}
    process = shy(sink, tmp_path, does=does, reason="library-not-found", flag=str(flag))
    async with running(process):
        await sink.until(lambda: sink.lists)
        flag.raise_()
        await sink.until(lambda: len(sink.losses) >= 3)


async def test_a_vendor_that_was_here_is_lost(sink: Recorder, flag: Flag) -> None:
    flag.lower()
    with structlog.testing.capture_logs() as logs:
        async with serving(sink, does={"discover": "unavailable"}, flag=str(flag)):
            await sink.until(lambda: sink.lists)
            flag.raise_()
            await sink.until(lambda: sink.losses)

    assert [it["log_level"] for it in logs if it["event"] == "vendor lost"] == ["warning"]


async def test_a_vendor_that_was_here_with_other_settings_is_lost(sink: Recorder) -> None:
    former = VendorSupervisor(vendor(), sink, deadlines=QUICK, python_path=(HERE,))
    task = asyncio.create_task(former.run())
    await sink.until(lambda: sink.lists)
    gone = vendor(does={"open": "unavailable"}, reason="library-not-found")
    process = VendorSupervisor(gone, sink, deadlines=QUICK, python_path=(HERE,))
    with structlog.testing.capture_logs() as logs:
        after = asyncio.create_task(process.run(former))
        task.cancel()
        await sink.until(lambda: sink.losses)
        after.cancel()
        await asyncio.wait([task, after])

    assert [it["event"] for it in logs if it.get("reason") == sink.losses[0][1]] == ["vendor lost"]


@pytest.mark.parametrize(
    ("backend", "reason"),
    [
        ("Unloadable", "open failed: ImportError: libxpu.so.1: cannot open shared object file"),
        (
            "NotABackend",
            "open failed: TypeError: support.faulty_backends:NotABackend is not a subclass of Backend",
        ),
        (
            "Missing",
            "open failed: AttributeError: module 'support.faulty_backends' has no attribute 'Missing'",
        ),
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
        await eventually(lambda: process.pid)
        pid = process.pid

    assert not exists(pid)


async def test_a_process_that_is_lost_just_as_its_scope_ends_ends_nothing_else(
    sink: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def lost(its: vendor_process.VendorProcess) -> None:
        begun.set()
        try:
            await anyio.sleep_forever()
        except asyncio.CancelledError:
            raise vendor_process.failed("its last answer arrives") from None

    monkeypatch.setattr(vendor_process.VendorProcess, "connect", lost)
    scope, process = anyio.CancelScope(), VendorSupervisor(vendor(), sink, deadlines=QUICK)

    async def serve() -> None:
        with scope:
            await process.run()
        ended.set()

    async with anyio.create_task_group() as group:
        group.start_soon(serve)
        await begun.wait()
        scope.cancel()
        await ended.wait()

    assert ended.is_set(), "what runs beside it was cancelled, too"


async def test_cancelling_by_a_scope_collects_the_process(sink: Recorder) -> None:
    process = VendorSupervisor(vendor(), sink, deadlines=QUICK, python_path=(HERE,))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(process.run)
        await sink.until(lambda: sink.lists)
        pid = process.pid
        tasks.cancel_scope.cancel()

    assert not exists(pid)


async def test_a_process_stuck_in_the_kernel_is_told_and_not_joined_by_a_second(
    sink: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend_runner.ProcessRunner, "kill", lambda self: None)
    short = Deadlines(call=0.1, close=0.01, kill=0.01)
    async with serving(sink, deadlines=short, does={"partitions": "hang"}) as process:
        await sink.until(lambda: sink.lists)
        stuck = process.pid
        assert stuck is not None
        with pytest.raises(VendorTimeout):
            await process.call("partitions")
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

    process = VendorSupervisor(vendor(), Broken(), python_path=(HERE,))

    with pytest.raises(ExceptionGroup) as caught, anyio.fail_after(30):
        await process.run()

    assert caught.group_contains(ZeroDivisionError)


async def test_a_process_that_can_not_start_is_told_and_tried_again(
    sink: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = backend_runner.ProcessRunner
    tries = iter([OSError("no more processes")])

    def start(sock: Any, limit: MemoryLimit, prefixes: Sequence[str]) -> backend_runner.ProcessRunner:
        for exc in tries:
            sock.close()
            raise exc
        return real(sock, limit, prefixes)

    monkeypatch.setattr(vendor_process, "ProcessRunner", start)
    async with serving(sink):
        await sink.until(lambda: sink.lists)

    assert sink.losses == [(VendorState.FAILED, "cannot start: no more processes")]


def test_backoff_grows_with_jitter_and_starts_again_after_good_service() -> None:
    backoff = RestartBackoff(0.1, 30)

    pauses = [backoff.pause(served=0) for _ in range(12)]

    assert all(0.05 * 2**n <= pause <= 0.1 * 2**n for n, pause in enumerate(pauses[:8]))
    assert all(15 <= pause <= 30 for pause in pauses[9:])
    assert backoff.pause(served=30) <= 0.1


# The breaker


async def test_a_process_that_is_lost_again_and_again_is_told_once_and_shown(
    sink: Recorder, flag: Flag
) -> None:
    with structlog.testing.capture_logs() as logs:
        async with serving(sink, does={"discover": "segfault"}, flag=str(flag)) as process:
            await sink.until(lambda: process.restarts >= 9)
            during = process.status
            flag.lower()
            await sink.until(lambda: len(sink.lists) >= 3)
            await eventually(lambda: process.status.breaker == "closed")

    told = "failed 5 times within 60 s (last: killed by SIGSEGV); tried again after up to 0.01 s"
    assert [reason for _, reason in sink.losses[:6]] == [*["killed by SIGSEGV"] * 4, told, told]
    assert [it["reason"] for it in logs if it["event"] == "vendor lost"] == ["killed by SIGSEGV", told]
    assert during.breaker in ("open", "half-open")


async def test_the_next_try_of_an_open_breaker_is_shown_and_far(sink: Recorder) -> None:
    process = VendorSupervisor(
        vendor(does={"discover": "segfault"}),
        sink,
        deadlines=QUICK,
        timing=ProcessTiming(backoff=(0.001, 1000.0)),
        python_path=(HERE,),
    )
    began = time.time()
    task = asyncio.create_task(process.run())
    await eventually(lambda: process.status.breaker == "open" and process.status.next_try)

    assert process.restarts == 5
    assert process.status.next_try is not None
    assert process.status.next_try >= began + 500
    task.cancel()
    await asyncio.wait([task])


async def test_a_driver_that_is_away_for_long_opens_no_breaker(sink: Recorder, flag: Flag) -> None:
    async with serving(sink, does={"open": "unavailable"}, flag=str(flag)) as process:
        await sink.until(lambda: len(sink.losses) >= 10)

        assert process.status.breaker == "closed"
        assert process.restarts == 0


# What does not end


@pytest.fixture
def unkillable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Processes that a signal does not end, as those that wait in a driver (state D) do not."""
    spared: set[backend_runner.ProcessRunner] = set()
    with monkeypatch.context() as patch:
        patch.setattr(backend_runner.ProcessRunner, "kill", lambda self: spared.add(self))
        yield
    for body in spared:
        if body.ended() is None:
            os.kill(body.pid, signal.SIGKILL)
            with suppress(ChildProcessError):  # collected as what was dropped
                os.waitid(os.P_PID, body.pid, os.WEXITED | os.WNOWAIT)
        body.kill()


async def stuck(sink: Recorder) -> VendorSupervisor:
    """A vendor out of service whose process is still there."""
    short = Deadlines(call=0.1, close=0.01, kill=0.01)
    async with serving(sink, deadlines=short, does={"partitions": "hang"}) as process:
        await sink.until(lambda: sink.lists)
        with pytest.raises(VendorTimeout):
            await process.call("partitions")
        await eventually(lambda: process.status.stuck)
    return process


@pytest.mark.usefixtures("unkillable")
async def test_a_process_that_does_not_end_is_shown_and_holds_up_no_end_of_the_agent(
    sink: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vendor_process, "EXIT_PATIENCE", 0.05)
    process = await stuck(sink)  # it was cancelled, and is over

    pid = process.status.stuck
    assert pid is not None
    assert exists(pid)


@pytest.mark.usefixtures("unkillable")
async def test_a_vendor_that_comes_back_waits_for_its_process_that_does_not_end(
    sink: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vendor_process, "EXIT_PATIENCE", 0.05)
    first = await stuck(sink)
    pid = first.status.stuck
    assert pid is not None
    said = f"the process of the last configuration must end first; process {pid} is killed but does not end"

    second = VendorSupervisor(vendor(), sink, deadlines=QUICK, python_path=(HERE,))
    gone_again = asyncio.create_task(second.run(first))
    await sink.until(lambda: sink.losses[-1] == (VendorState.FAILED, said))
    gone_again.cancel()
    await asyncio.wait([gone_again])

    heard = Recorder()
    third = VendorSupervisor(vendor(), heard, deadlines=QUICK, python_path=(HERE,))
    task = asyncio.create_task(third.run(second))
    await heard.until(lambda: heard.losses)
    assert heard.losses == [(VendorState.FAILED, said)]
    assert (third.status.stuck, third.pid) == (pid, None)

    os.kill(pid, signal.SIGKILL)
    await heard.until(lambda: heard.lists)
    assert third.status.stuck is None
    task.cancel()
    await asyncio.wait([task])


async def test_a_process_that_takes_over_begins_when_the_one_before_has_ended(
    sink: Recorder, tmp_path: Path
) -> None:
    closed = tmp_path / "closed"
    async with serving(sink, closed=str(closed)) as first:
        await sink.until(lambda: sink.lists)
        second = VendorSupervisor(vendor(), Recorder(), deadlines=QUICK, python_path=(HERE,))
        task = asyncio.create_task(second.run(first))
        await sink.until(lambda: len(sink.lists) >= 3)
        assert second.pid is None

    await eventually(lambda: second.pid)
    assert closed.name in os.listdir(tmp_path)
    task.cancel()
    await asyncio.wait([task])


async def test_a_process_waits_also_for_the_one_that_a_cancelled_one_waited_for(
    sink: Recorder, tmp_path: Path
) -> None:
    closed, heard = tmp_path / "closed", Recorder()
    second, third = (
        VendorSupervisor(vendor(), into, deadlines=QUICK, python_path=(HERE,)) for into in (Recorder(), heard)
    )
    async with serving(sink, closed=str(closed)) as first:
        await sink.until(lambda: sink.lists)
        replaced = asyncio.create_task(second.run(first))
        await anyio.wait_all_tasks_blocked()
        replaced.cancel()
        await asyncio.wait([replaced])
        task = asyncio.create_task(third.run(second))
        listed = len(sink.lists)
        await sink.until(lambda: len(sink.lists) >= listed + 3)
        assert third.pid is None

    await heard.until(lambda: heard.lists)
    assert closed.name in os.listdir(tmp_path)
    task.cancel()
    await asyncio.wait([task])


async def test_a_vendor_of_which_there_is_no_sign_waits_and_asks_for_memory_when_it_starts(
    tmp_path: Path,
) -> None:
    asked: list[MemoryLimit] = []

    def limit() -> MemoryLimit:
        asked.append(MemoryLimit(1 << 30))
        return asked[-1]

    shy = replace(vendor(), host=Host(signs=Signs((f"{tmp_path}/module",))))
    process = VendorSupervisor(shy, Recorder(), deadlines=QUICK, python_path=(HERE,), memory_limit=limit)
    assert not process.waits  # until the config says otherwise it is sought
    process.configure(required=False, sought=False)
    process.start_early()
    assert (process.waits, asked) == (True, [])

    (tmp_path / "module").touch()
    assert not process.waits
    process.start_early()

    assert (len(asked), process.status.memory_limit) == (1, 1 << 30)
    (tmp_path / "module").unlink()
    assert not process.waits  # its process is there
    task = asyncio.create_task(process.run())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
