"""Samples of use: beside the calls, or between them where the library has one caller."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs
from support.waiting import eventually

from agent.core.errors import SamplingEnded, VendorCrashed, VendorError, VendorTimeout
from agent.core.usage.usage_report import VendorSample
from agent.isolation import sample_answers, vendor_sampling
from agent.isolation.vendor_answers import OpenedBackend
from agent.isolation.vendor_process import VendorProcess
from agent.isolation.vendor_sampling import SampleLosses, Sampling
from agent.isolation.vendor_supervisor import VendorSupervisor
from agent.vendor_api.agent import ProcessUsage, Request, Usage

from .rig import QUICK, Flag, Recorder, serving, vendor

USAGES = (Usage("dev-a", memory_used=1 << 30),)
PROCESSES = (ProcessUsage("dev-a", 4711, 1 << 29, 0.5),)
HASTY, PATIENT = replace(QUICK, sample=0.05), 30.0


class Lane:
    """What waits for samples in place of the deadline, and the process that was asked last."""

    def __init__(self) -> None:
        self.seconds = HASTY.sample
        self.process: VendorProcess | None = None

    @property
    def busy(self) -> bool:
        return self.process is not None and self.process.is_sampling

    async def idle(self) -> None:
        """Wait until the last sample is answered."""
        await eventually(lambda: not self.busy)


@pytest.fixture
def lane(monkeypatch: pytest.MonkeyPatch) -> Lane:
    made = Lane()
    ask = VendorProcess.sample

    async def sample(process: VendorProcess, seconds: float) -> bytes:
        made.process = process
        return await ask(process, made.seconds)

    wait = VendorProcess.sampled

    async def sampled(process: VendorProcess, seconds: float) -> None:
        await wait(process, made.seconds)

    monkeypatch.setattr(VendorProcess, "sample", sample)
    monkeypatch.setattr(VendorProcess, "sampled", sampled)
    return made


async def test_a_sample_has_what_both_methods_say(sink: Recorder, in_process: bool) -> None:
    async with serving(sink, "Used", in_process=in_process) as process:
        await sink.until(lambda: sink.lists)

        assert await process.sample() == VendorSample(USAGES, PROCESSES)
        assert await process.sample() == VendorSample(USAGES, PROCESSES)


@pytest.mark.parametrize("fault", ["raise", "unavailable", "bytes", "nonsense"])
async def test_what_one_method_fails_with_loses_nothing_of_the_other(fault: str, sink: Recorder) -> None:
    async with serving(sink, "Used", does={"usage": fault}) as process:
        await sink.until(lambda: sink.lists)

        sample = await process.sample()

        assert sample.usages is None
        assert sample.processes == PROCESSES
        assert sample.complaints.keys() == {"usage"}
        assert sink.losses == []


async def test_the_complaint_has_the_librarys_own_words(sink: Recorder) -> None:
    async with serving(sink, "Used", does={"processes": "raise"}) as process:
        await sink.until(lambda: sink.lists)

        sample = await process.sample()

        assert sample == VendorSample(USAGES, None, {"processes": "RuntimeError: the card is on fire"})


async def test_a_long_list_is_kept_in_part_and_an_endless_one_costs_only_itself(sink: Recorder) -> None:
    async with serving(sink, "Used", does={"processes": "many_processes"}) as process:
        await sink.until(lambda: sink.lists)
        sample = await process.sample()

        assert len(sample.processes or ()) == 8192
        assert sample.complaints == {"processes": "1808 processes beyond the first 8192 are left out"}

    sink.lists.clear()
    async with serving(sink, "Used", does={"processes": "endless"}) as process:
        await sink.until(lambda: sink.lists)
        sample = await process.sample()

        assert sample.usages == USAGES
        assert sample.processes is None
        assert "bytes, at most 4194304 work" in sample.complaints["processes"]
        assert sink.losses == []


async def test_a_figure_that_json_lacks_costs_only_the_figure(sink: Recorder) -> None:
    async with serving(sink, "Used", does={"processes": "absurd"}) as process:
        await sink.until(lambda: sink.lists)

        sample = await process.sample()

        assert sample.processes == (ProcessUsage("dev-a", 5), ProcessUsage("dev-b", 6, 1, 0.25))
        assert sample.complaints["processes"].startswith("2 figures or entries cannot be used, the first: ")


@pytest.mark.parametrize("backend", ["Used", "UsedByOne"])
async def test_a_sample_that_takes_long_to_decode_is_decoded_beside_the_event_loop(
    backend: str, sink: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    decode = sample_answers.sample

    def recording(raw: bytes) -> VendorSample:
        threads.append(threading.current_thread())
        return decode(raw)

    monkeypatch.setattr(sample_answers, "sample", recording)
    for does in ({}, {"processes": "absurd"}, {"processes": "many_processes"}):
        sink.lists.clear()
        async with serving(sink, backend, does=does, count=str(tmp_path / "count")) as process:
            await sink.until(lambda: sink.lists)
            assert (await process.sample()).processes

    assert len(threads) == 2
    assert threading.current_thread() not in threads


async def test_a_sample_is_made_while_another_call_runs(sink: Recorder, flag: Flag, in_process: bool) -> None:
    does = {"prepare": "hang_while_flagged"}
    async with serving(sink, "Used", in_process=in_process, does=does, flag=str(flag)) as process:
        await sink.until(lambda: sink.lists)
        await process.sample()
        call = asyncio.create_task(process.call("prepare", Request("a", "r", ("i",)), ("dev-a",)))

        for _ in range(3):
            assert await process.sample() == VendorSample(USAGES, PROCESSES)

        assert not call.done()
        flag.lower()
        assert await call


class PromptProcess:
    """Stands for a process that answers a sample at once."""

    async def sampled(self, seconds: float) -> None:
        """No sample is unanswered."""

    async def sample(self, seconds: float) -> bytes:
        return b"{}"


async def test_the_call_that_runs_at_the_first_sample_does_not_make_the_sample_late() -> None:
    over = asyncio.Event()
    asked: list[str] = []

    async def ask(call: str) -> None:
        asked.append(call)
        await over.wait()

    opened = OpenedBackend(frozenset({"usage"}))
    sampling = Sampling(
        "acme", cast("VendorProcess", PromptProcess()), opened, HASTY.sample, ask, SampleLosses("acme")
    )
    first = asyncio.create_task(sampling.sample())
    await asyncio.wait({first}, timeout=4 * HASTY.sample)
    over.set()

    assert await first == VendorSample()
    assert await sampling.sample() == VendorSample()
    assert asked == ["start_sampling"]


async def test_a_sample_that_hangs_costs_nothing_but_sampling(sink: Recorder, in_process: bool) -> None:
    does = {"processes": "hang"}
    async with serving(sink, "Used", deadlines=HASTY, in_process=in_process, does=does) as process:
        await sink.until(lambda: sink.lists)
        first = process.pid

        with capture_logs() as logs:
            for _ in range(3):
                with pytest.raises(VendorTimeout, match=r"acme: sample did not return within 0\.05 s"):
                    await process.sample()
            with pytest.raises(SamplingEnded, match="3 samples in a row did not return within"):
                await process.sample()

        assert [it["event"] for it in logs if it["log_level"] == "warning"] == ["sampling ended"]
        listed, heard = len(sink.lists), len(sink.events)
        await sink.until(lambda: len(sink.lists) > listed + 2 and len(sink.events) > heard + 2)
        assert await process.call("prepare", Request("a", "r", ("i",)), ("dev-a",))
        assert (process.pid, process.restarts, sink.losses) == (first, 0, [])


async def test_a_process_that_replaces_the_hung_one_samples_again(
    sink: Recorder, flag: Flag, lane: Lane
) -> None:
    does = {"processes": "hang", "partitions": "segfault"}
    async with serving(sink, "Used", deadlines=HASTY, does=does, flag=str(flag)) as process:
        await sink.until(lambda: sink.lists)
        for _ in range(3):
            with pytest.raises(VendorTimeout):
                await process.sample()
        with pytest.raises(VendorCrashed):
            await process.call("partitions")
        await sink.until(lambda: sink.losses)
        flag.lower()
        listed = len(sink.lists)
        await sink.until(lambda: len(sink.lists) > listed)

        lane.seconds = PATIENT
        assert (await process.sample()).processes == PROCESSES


async def test_a_late_answer_is_dropped_and_sampling_goes_on(sink: Recorder, flag: Flag, lane: Lane) -> None:
    does = {"usage": "hang_while_flagged"}
    async with serving(sink, "Used", deadlines=HASTY, does=does, flag=str(flag)) as process:
        await sink.until(lambda: sink.lists)
        with pytest.raises(VendorTimeout):
            await process.sample()
        with pytest.raises(VendorTimeout):  # the last one is still unanswered
            await process.sample()
        flag.lower()
        await lane.idle()

        lane.seconds = PATIENT
        assert await process.sample() == VendorSample(USAGES, PROCESSES)
        assert await process.call("partitions") == ()
        assert sink.losses == []


async def test_a_sample_waits_for_the_last_one_before_it_counts_as_late(
    sink: Recorder, flag: Flag, lane: Lane
) -> None:
    does = {"usage": "hang_while_flagged"}
    async with serving(sink, "Used", deadlines=HASTY, does=does, flag=str(flag)) as process:
        await sink.until(lambda: sink.lists)
        for _ in range(2):
            with pytest.raises(VendorTimeout):
                await process.sample()
        lane.seconds = PATIENT
        last = asyncio.create_task(process.sample())
        await anyio.wait_all_tasks_blocked()
        assert not last.done()
        flag.lower()

        assert await last == VendorSample(USAGES, PROCESSES)


async def test_a_crash_fails_a_sample_that_waits_for_the_last_one(
    sink: Recorder, flag: Flag, lane: Lane
) -> None:
    does = {"usage": "hang", "partitions": "segfault"}
    async with serving(sink, "Used", deadlines=HASTY, does=does, flag=str(flag)) as process:
        await sink.until(lambda: sink.lists)
        with pytest.raises(VendorTimeout):
            await process.sample()
        lane.seconds = PATIENT
        waiting = asyncio.create_task(process.sample())
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(VendorCrashed):
            await process.call("partitions")

        with pytest.raises(VendorCrashed):
            await waiting


async def test_a_sample_in_time_forgives_those_that_were_late(
    sink: Recorder, monkeypatch: pytest.MonkeyPatch, flag: Flag, lane: Lane
) -> None:
    monkeypatch.setattr(vendor_sampling, "MISSES", 2)
    does = {"usage": "hang_while_flagged"}
    async with serving(sink, "Used", deadlines=HASTY, does=does, flag=str(flag)) as process:
        await sink.until(lambda: sink.lists)
        for _ in range(3):
            lane.seconds = HASTY.sample
            with pytest.raises(VendorTimeout):
                await process.sample()
            flag.lower()
            await lane.idle()
            lane.seconds = PATIENT
            assert await process.sample()
            flag.raise_()


async def test_a_crash_fails_a_sample_at_once(sink: Recorder) -> None:
    async with serving(sink, "Used", does={"usage": "kill_its_group"}) as process:
        await sink.until(lambda: sink.lists)

        with pytest.raises(VendorCrashed, match="killed by SIGKILL"):
            await process.sample()


async def listed_again(sink: Recorder) -> None:
    """Wait for a list of devices from the process of now."""
    before = len(sink.lists)
    await sink.until(lambda: len(sink.lists) > before)


async def lose(sink: Recorder, call: Callable[[], Awaitable[object]]) -> None:
    """Make a call, or a sample, with an open process, which is lost over it."""
    await listed_again(sink)
    losses = len(sink.losses)
    with pytest.raises((VendorCrashed, VendorTimeout)):
        await call()
    await sink.until(lambda: len(sink.losses) > losses)


COSTLY = [("Used", "kill_its_group"), ("UsedByOne", "segfault"), ("UsedByOne", "hang")]


@pytest.mark.parametrize(("backend", "fault"), COSTLY)
async def test_a_vendor_that_loses_three_processes_over_samples_is_sampled_no_more(
    backend: str, fault: str, sink: Recorder, flag: Flag, tmp_path: Path
) -> None:
    settings: Any = {"does": {"usage": fault}, "flag": str(flag), "count": str(tmp_path / "count")}
    short = replace(QUICK, sample=0.2, close=0.01) if fault == "hang" else QUICK
    async with serving(sink, backend, deadlines=short, **settings) as process:
        with capture_logs() as logs:
            for _ in range(3):
                await lose(sink, process.sample)
            await listed_again(sink)
            last = process.pid
            for _ in range(3):
                with pytest.raises(SamplingEnded, match="until the vendor's settings change or the agent"):
                    await process.sample()

        assert [it["lost"] for it in logs if it["event"] == "sampling ended"] == [3]
        assert (process.pid, process.restarts) == (last, 3)
        flag.lower()
        process.configure(required=False, sought=True, settings="new")
        assert await process.sample() == VendorSample(USAGES, PROCESSES)


async def test_a_good_sample_forgives_the_processes_that_were_lost(sink: Recorder, flag: Flag) -> None:
    async with serving(sink, "Used", does={"usage": "kill_its_group"}, flag=str(flag)) as process:
        for _ in range(2):
            await lose(sink, process.sample)
            await lose(sink, process.sample)
            await listed_again(sink)
            flag.lower()
            assert await process.sample()
            flag.raise_()


async def test_a_process_that_is_lost_while_no_sample_is_made_costs_no_samples(
    sink: Recorder, flag: Flag
) -> None:
    async with serving(sink, "Used", does={"partitions": "segfault"}, flag=str(flag)) as process:
        for _ in range(3):
            await lose(sink, lambda: process.call("partitions"))
        await listed_again(sink)
        assert await process.sample()


async def test_an_asker_that_leaves_does_not_disturb_the_next(sink: Recorder, flag: Flag, lane: Lane) -> None:
    does = {"usage": "hang_while_flagged"}
    async with serving(sink, "Used", does=does, flag=str(flag)) as process:
        await sink.until(lambda: sink.lists)
        lane.seconds = PATIENT
        gone = asyncio.create_task(process.sample())
        await eventually(lambda: lane.busy)
        gone.cancel()
        flag.lower()
        await lane.idle()

        assert await process.sample() == VendorSample(USAGES, PROCESSES)
        assert sink.losses == []


async def test_an_answer_that_is_no_sample_costs_the_sample(
    sink: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(sink, "Used") as process:
        await sink.until(lambda: sink.lists)

        async def wrong(process: VendorProcess, seconds: float) -> bytes:
            return b'{"usage": []}'

        monkeypatch.setattr(VendorProcess, "sample", wrong)
        with pytest.raises(VendorError, match="acme: sample answered wrongly: Expected "):
            await process.sample()

        assert sink.losses == []


async def test_sampling_needs_an_open_vendor_that_tells_something(sink: Recorder) -> None:
    with pytest.raises(VendorError, match="acme: sample: the vendor is not open: not started yet"):
        await VendorSupervisor(vendor(), sink).sample()

    async with serving(sink) as process:
        await sink.until(lambda: sink.lists)
        with pytest.raises(VendorError, match="acme: sample: the backend has neither usage nor processes"):
            await process.sample()


async def test_a_library_with_one_caller_is_sampled_by_the_thread_of_its_calls(
    sink: Recorder, tmp_path: Path
) -> None:
    count = tmp_path / "count"
    async with serving(sink, "UsedByOne", count=str(count)) as process:
        await sink.until(lambda: sink.lists)

        assert await process.sample() == VendorSample(USAGES, PROCESSES)

    assert {"usage True", "processes True"} <= set(count.read_text().splitlines())


async def test_a_library_with_one_caller_is_sampled_when_no_other_call_waits(
    sink: Recorder, tmp_path: Path, flag: Flag
) -> None:
    count = tmp_path / "count"
    does = {"prepare": "hang_while_flagged"}
    settings: Any = {"count": str(count), "does": does, "flag": str(flag)}
    async with serving(sink, "UsedByOne", every=100, **settings) as process:
        await sink.until(lambda: sink.lists)
        calls = [asyncio.create_task(process.call("prepare", Request("a", "r", ("i",)), ("dev-a",)))]
        await anyio.wait_all_tasks_blocked()
        sample = asyncio.create_task(process.sample())
        await anyio.wait_all_tasks_blocked()
        calls += [asyncio.create_task(process.call("partitions")) for _ in range(3)]
        await anyio.wait_all_tasks_blocked()
        flag.lower()
        await asyncio.gather(*calls, sample)

    order = [line.split()[0] for line in count.read_text().splitlines()]
    assert order[order.index("prepare") :] == ["prepare", *["partitions"] * 3, "usage", "processes"]


async def test_a_sample_that_hangs_in_a_library_with_one_caller_is_a_hung_library(
    sink: Recorder, tmp_path: Path
) -> None:
    settings: Any = {"count": str(tmp_path / "count"), "does": {"usage": "hang"}}
    short = replace(QUICK, sample=0.2, close=0.01)
    async with serving(sink, "UsedByOne", deadlines=short, **settings) as process:
        await sink.until(lambda: sink.lists)
        first = process.pid

        with pytest.raises(VendorTimeout):
            await process.sample()

        await sink.until(lambda: sink.losses)
        listed = len(sink.lists)
        await sink.until(lambda: len(sink.lists) > listed)
        assert sink.losses[0][1] == "sample did not return within 0.2 s"
        assert process.pid != first


async def test_the_library_closes_after_the_sample_that_is_being_made(sink: Recorder, tmp_path: Path) -> None:
    began, closed = tmp_path / "began", tmp_path / "closed"
    settings: Any = {"does": {"usage": "take_a_moment"}, "began": str(began), "closed": str(closed)}
    async with serving(sink, "Used", **settings) as process:
        await sink.until(lambda: sink.lists)
        sample = asyncio.create_task(process.sample())
        await eventually(began.exists)

    with pytest.raises(VendorCrashed):
        await sample
    assert closed.read_text() == "at rest"


async def test_the_end_of_the_process_waits_for_no_hung_sample(sink: Recorder, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    settings: Any = {"does": {"usage": "hang"}, "closed": str(closed)}
    async with serving(sink, "Used", deadlines=replace(QUICK, close=30, sample=0.05), **settings) as process:
        await sink.until(lambda: sink.lists)
        with pytest.raises(VendorTimeout):
            await process.sample()

    assert closed.exists()


def threads(pid: int | None) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


async def test_a_process_that_is_not_sampled_has_no_thread_for_it(sink: Recorder, tmp_path: Path) -> None:
    async with serving(sink, "Used") as process:
        await sink.until(lambda: sink.faults)
        before = threads(process.pid)
        await process.sample()
        await process.sample()

        assert threads(process.pid) == before + 2

    sink.events.clear()
    async with serving(sink, "UsedByOne", count=str(tmp_path / "count")) as process:
        await sink.until(lambda: sink.faults)
        await process.sample()

        assert threads(process.pid) == before
