"""Rules of the process that isolates a vendor's library."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
import structlog
import structlog.testing

from agent.core.errors import VendorCrashed, VendorError, VendorTimeout
from agent.core.model import VendorState
from agent.core.vendor import (
    ContainerEdits,
    Device,
    HealthEvent,
    Link,
    Partition,
    Proof,
    Request,
    State,
    Usage,
    Vendor,
)
from agent.isolation import answers, child, contact, output
from agent.isolation.supervisor import Backoff, Deadlines, VendorProcess

HERE = str(Path(__file__).parent)
QUICK = Deadlines(open=10, discover=10, call=10, prepare=10, events=0.05, close=2, kill=5)


class Recorder:
    """A sink that remembers, and wakes who waits."""

    def __init__(self) -> None:
        self.lists: list[tuple[Device, ...]] = []
        self.events: list[HealthEvent] = []
        self.losses: list[tuple[VendorState, str]] = []
        #: CDI specs, and after how many lists they came.
        self.specs: list[tuple[Mapping[str, str], int]] = []
        self.unmade: list[str] = []
        self._changed = asyncio.Event()

    def discovered(self, vendor: str, devices: Sequence[Device]) -> None:
        self.lists.append(tuple(devices))
        self._wake()

    def observed(self, vendor: str, events: Sequence[HealthEvent]) -> None:
        self.events.extend(events)
        self._wake()

    def specified(self, vendor: str, specs: Mapping[str, str]) -> None:
        self.specs.append((specs, len(self.lists)))

    def unspecified(self, vendor: str, reason: str) -> None:
        self.unmade.append(reason)

    def lost(self, vendor: str, state: VendorState, reason: str) -> None:
        self.losses.append((state, reason))
        self._wake()

    @property
    def faults(self) -> list[HealthEvent]:
        return [event for event in self.events if event.fault is not None]

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def until(self, condition: Callable[[], object]) -> None:
        with anyio.fail_after(30):
            while not condition():
                await self._changed.wait()


def vendor(backend: str = "Good", **settings: Any) -> Vendor:
    return Vendor(
        "acme",
        f"faulty_backends:{backend}",
        lambda devices, request: ContainerEdits(),
        "acme.com/xpu",
        settings,
    )


@asynccontextmanager
async def serving(
    sink: Recorder,
    backend: str = "Good",
    *,
    deadlines: Deadlines = QUICK,
    every: float = 0.02,
    in_process: bool = False,
    **settings: Any,
) -> AsyncIterator[VendorProcess]:
    process = VendorProcess(
        vendor(backend, **settings),
        sink,
        deadlines=deadlines,
        discover_every=every,
        backoff=(0.001, 0.01),
        in_process=in_process,
        python_path=(HERE,),
    )
    task = asyncio.create_task(process.run())
    try:
        yield process
        assert not task.done(), task.result()
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@pytest.fixture
def sink() -> Recorder:
    return Recorder()


class Flag:
    """A file; while it exists, backends that know it misbehave."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.raise_()

    def __str__(self) -> str:
        return str(self.path)

    def raise_(self) -> None:
        self.path.touch()

    def lower(self) -> None:
        self.path.unlink()


@pytest.fixture
def flag(tmp_path: Path) -> Flag:
    return Flag(tmp_path / "flag")


@pytest.fixture(params=[False, True], ids=["process", "thread"])
def in_process(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


async def test_devices_are_listed_again_and_again(sink: Recorder, in_process: bool) -> None:
    async with serving(sink, in_process=in_process) as process:
        await sink.until(lambda: len(sink.lists) >= 3)

        assert {device.uuid for device in sink.lists[0]} == {"dev-a", "dev-b"}
        assert process.restarts == 0
        assert sink.losses == []
        assert (process.pid == os.getpid()) is in_process


async def test_calls_are_answered_in_the_contracts_own_values(sink: Recorder, in_process: bool) -> None:
    async with serving(sink, in_process=in_process) as process:
        await sink.until(lambda: sink.lists)

        made = await process.call("prepare", Request("a1", "acme.com/xpu", ("id-1",)), ("dev-a",))

        assert made == (Partition("a1-id-1", "dev-a"),)
        assert await process.call("usage") == (Usage("dev-a", 1 << 30, 0.5),)
        assert await process.call("release", "a1") is None


async def test_an_early_start_works_ahead_and_is_taken_over(sink: Recorder) -> None:
    process = VendorProcess(vendor(), sink, deadlines=QUICK, python_path=(HERE,))
    process.start_early()
    early = process.pid
    task = asyncio.create_task(process.run())

    await sink.until(lambda: sink.lists)

    assert process.pid == early is not None
    task.cancel()
    await asyncio.wait([task])


FATAL = {
    "segfault": "killed by SIGSEGV",
    "exit": "exited with status 7",
    "garbage": "said what is no message: \\x00\\xff not json",
    "a_strange_answer": "answered call 99, which was not asked",
    "huge_line": "sent a line of more than 16777216 bytes",
    "raise": "discover failed: RuntimeError: the card is on fire",
    "bytes": "discover failed: TypeError: a bytes can not be sent: b'GPU-1'",
    "nonsense": "discover answered wrongly: Expected `object`, got `str` - at `$[0]`",
}


@pytest.mark.parametrize("fault", FATAL)
async def test_a_process_that_fails_is_told_lost_and_replaced(fault: str, sink: Recorder, flag: Flag) -> None:
    async with serving(sink, does={"discover": fault}, flag=str(flag)) as process:
        await sink.until(lambda: sink.losses)
        flag.lower()
        await sink.until(lambda: sink.lists)

        state, reason = sink.losses[0]
        assert state is VendorState.FAILED
        assert reason.replace("\\\\", "\\").startswith(FATAL[fault])
        assert process.restarts >= 1


@pytest.mark.parametrize("fault", ["exit", "raise", "bytes", "nonsense"])
async def test_a_thread_that_fails_is_replaced_too(fault: str, sink: Recorder, flag: Flag) -> None:
    async with serving(sink, in_process=True, does={"discover": fault}, flag=str(flag)):
        await sink.until(lambda: sink.losses)
        flag.lower()
        await sink.until(lambda: sink.lists)

        assert sink.losses[0] == (VendorState.FAILED, FATAL[fault])


@pytest.mark.parametrize("call", ["open", "discover"])
async def test_a_hang_is_told_and_replaced(call: str, sink: Recorder, flag: Flag, in_process: bool) -> None:
    short = Deadlines(open=0.5, discover=0.5, call=10, prepare=10, events=0.05, close=0.01)
    does = {call: "hang_while_flagged"}
    async with serving(sink, deadlines=short, does=does, flag=str(flag), in_process=in_process):
        await sink.until(lambda: sink.losses)
        flag.lower()
        await sink.until(lambda: sink.lists)

        assert sink.losses[0] == (VendorState.FAILED, f"{call} did not return within 0.5 s")


async def test_a_hung_call_costs_its_caller_only_the_deadline(sink: Recorder) -> None:
    short = Deadlines(call=0.2, close=0.01)
    async with serving(sink, deadlines=short, does={"usage": "hang"}) as process:
        await sink.until(lambda: sink.lists)
        first = process.pid

        with pytest.raises(VendorTimeout, match=r"acme: usage did not return within 0\.2 s"):
            await process.call("usage")

        await sink.until(lambda: sink.losses)
        listed = len(sink.lists)
        await sink.until(lambda: len(sink.lists) > listed)
        assert process.pid != first


async def test_a_crash_fails_every_waiting_call(sink: Recorder) -> None:
    async with serving(sink, does={"usage": "segfault"}) as process:
        await sink.until(lambda: sink.lists)

        results = await asyncio.gather(
            process.call("usage"), process.call("partitions"), return_exceptions=True
        )

        assert [type(result) for result in results] == [VendorCrashed, VendorCrashed]
        assert "killed by SIGSEGV" in str(results[0])


async def test_an_exception_of_a_call_reaches_its_caller_and_costs_nothing(sink: Recorder) -> None:
    async with serving(sink, does={"prepare": "raise"}) as process:
        await sink.until(lambda: sink.lists)
        first = process.pid

        with pytest.raises(VendorError, match="acme: prepare: RuntimeError: the card is on fire"):
            await process.call("prepare", Request("a", "r", ("i",)), ("dev-a",))

        assert await process.call("partitions") == ()
        assert process.pid == first


async def test_a_wrong_answer_that_decides_nothing_costs_only_the_answer(sink: Recorder) -> None:
    async with serving(sink, does={"usage": "nonsense"}) as process:
        await sink.until(lambda: sink.lists)

        with pytest.raises(VendorError, match="usage answered wrongly"):
            await process.call("usage")

        assert await process.call("partitions") == ()
        assert sink.losses == []


async def test_a_wrong_answer_of_prepare_costs_the_process(sink: Recorder) -> None:
    async with serving(sink, does={"prepare": "nonsense"}) as process:
        await sink.until(lambda: sink.lists)

        with pytest.raises(VendorError, match="prepare answered wrongly"):
            await process.call("prepare", Request("a", "r", ("i",)), ("dev-a",))

        await sink.until(lambda: sink.losses)


async def test_a_caller_who_leaves_does_not_disturb_the_next(sink: Recorder, flag: Flag) -> None:
    does = {"usage": "hang_while_flagged"}
    async with serving(sink, does=does, flag=str(flag), every=100) as process:
        await sink.until(lambda: sink.lists)
        gone = asyncio.create_task(process.call("usage"))
        await asyncio.sleep(0)
        next_one = asyncio.create_task(process.call("partitions"))
        await asyncio.sleep(0)
        gone.cancel()
        flag.lower()

        with anyio.fail_after(30):
            assert await next_one == ()
        assert sink.losses == []


async def test_calls_need_an_open_vendor(sink: Recorder) -> None:
    process = VendorProcess(vendor(), sink)

    with pytest.raises(VendorError, match="acme: usage: the vendor is not open: not started yet"):
        await process.call("usage")
    with pytest.raises(ValueError, match="'discover' is not to be called"):
        await process.call("discover")


@pytest.mark.parametrize("call", ["open", "discover"])
async def test_a_missing_driver_is_awaited(call: str, sink: Recorder, flag: Flag, in_process: bool) -> None:
    async with serving(sink, does={call: "unavailable"}, flag=str(flag), in_process=in_process) as process:
        await sink.until(lambda: len(sink.losses) >= 2)
        flag.lower()
        await sink.until(lambda: sink.lists)

        assert set(sink.losses) == {(VendorState.UNAVAILABLE, "driver-not-loaded: no /dev/xpu")}
        assert process.restarts == 0


async def test_an_unloaded_driver_is_told_and_the_process_replaced(sink: Recorder, flag: Flag) -> None:
    flag.lower()
    async with serving(sink, does={"discover": "unavailable"}, flag=str(flag)) as process:
        await sink.until(lambda: sink.lists)
        first = process.pid
        flag.raise_()
        await sink.until(lambda: sink.losses)
        flag.lower()
        listed = len(sink.lists)
        await sink.until(lambda: len(sink.lists) > listed)

        assert sink.losses[0][0] is VendorState.UNAVAILABLE
        assert process.pid != first


async def test_a_library_that_lists_nothing_any_more_is_broken(sink: Recorder, flag: Flag) -> None:
    flag.lower()
    async with serving(sink, does={"discover": "empty"}, flag=str(flag)):
        await sink.until(lambda: sink.lists)
        flag.raise_()
        await sink.until(lambda: sink.losses)

        assert sink.losses[0] == (VendorState.FAILED, "the library lists no devices, it had 2")


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


HOSTILE = {
    "": "device 1 (): uuid: is empty",
    "a b": "device 1 (a b): uuid: contains ' ', which parts device IDs",
    "a,b": "device 1 (a,b): uuid: contains ',', which parts device IDs",
    "a::0": "device 1 (a::0): uuid: contains '::', which parts device IDs",
    "a\x07": "device 1 (a\\x07): uuid: has characters that are not printable ASCII",
    "gerät": "device 1 (ger\\xe4t): uuid: has characters that are not printable ASCII",
    "dev-a": "device 1 (dev-a): uuid: device 0 has the same one",
    "x" * 129: "uuid: has 129 characters, at most 128 work",
}


@pytest.mark.parametrize("uuid", HOSTILE)
async def test_a_hostile_uuid_is_refused_by_name(uuid: str, sink: Recorder) -> None:
    devices = [{"uuid": "dev-a", "index": 0}, {"uuid": uuid, "index": 1}]
    async with serving(sink, does={"discover": "devices"}, devices=devices):
        await sink.until(lambda: sink.losses)

        assert sink.losses[0][1].endswith(HOSTILE[uuid])
        assert sink.lists == []


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        ({"numa": -1}, "numa: -1 is no NUMA node; None says that it is not known"),
        ({"index": -1}, "index: -1 is not between 0 and 2^63"),
        ({"memory": 1 << 80}, f"memory: {1 << 80} is not between 0 and 2^63"),
        ({"minor": "zero"}, "Expected `int | null`, got `str` - at `$[0].minor`"),
        ({"attributes": {"a": 1}}, "Expected `str`, got `int` - at `$[0].attributes[...]`"),
        ({"paths": ["/x"] * 65}, "paths: there are 65, at most 64 work"),
        ({"paths": ["/" * 257]}, "has 257 characters, at most 256 work"),
        ({"attributes": {str(n): "" for n in range(65)}}, "attributes: there are 65, at most 64 work"),
        ({"attributes": {"a": "b" * 257}}, "attribute a: has 257 characters, at most 256 work"),
        ({"pci": "0" * 257}, "pci: has 257 characters, at most 256 work"),
        ({"links": [{"peer": "a b"}]}, "link: uuid: contains ' ', which parts device IDs"),
        ({"parent": "b"}, "parent and slice go together: 'b', None"),
        ({"slice": 1}, "parent and slice go together: None, 1"),
        ({"parent": "a", "slice": 0}, "parent: it can not be its own slice"),
        ({"parent": "b c", "slice": 0}, "parent: uuid: contains ' ', which parts device IDs"),
        ({"parent": "b", "slice": -1}, "slice: -1 is not between 0 and 2^63"),
        ({"index": 1.5}, "Expected `int`, got `float` - at `$[0].index`"),
    ],
)
async def test_a_wrong_field_is_refused_by_name(part: dict[str, Any], reason: str, sink: Recorder) -> None:
    async with serving(sink, does={"discover": "devices"}, devices=[{"uuid": "a", "index": 0, **part}]):
        await sink.until(lambda: sink.losses)

        assert sink.losses[0][1].endswith(reason)


LISTS: dict[str, tuple[Any, int, dict[str, Any]]] = {
    "discover": (answers.devices, 1024, {"uuid": "a", "index": 0}),
    "health_events": (answers.events, 1024, {"uuid": "a", "fault": None}),
    "links": (answers.links, 256, {"peer": "a"}),
    "partitions": (answers.partitions, 8192, {"id": "a", "uuid": "a"}),
}


@pytest.mark.parametrize("call", LISTS)
def test_a_list_without_measure_is_refused(call: str) -> None:
    decode, limit, entry = LISTS[call]
    entries = [{**entry, "uuid": f"dev-{n}"} if "uuid" in entry else entry for n in range(limit + 1)]

    assert len(decode(json.dumps(entries[:-1]).encode())) == limit
    with pytest.raises(answers.WrongAnswer, match=f"there are {limit + 1} .*, at most {limit} work"):
        decode(json.dumps(entries).encode())


def test_events_for_all_devices_are_few() -> None:
    one = {"uuid": None, "fault": None}

    assert len(answers.events(json.dumps([one] * 16).encode())) == 16
    with pytest.raises(answers.WrongAnswer, match="more than 16 events for all devices at once"):
        answers.events(json.dumps([one] * 17).encode())


def test_an_event_for_no_possible_device_is_refused() -> None:
    with pytest.raises(answers.WrongAnswer, match="event: uuid: has 16777216 characters"):
        answers.events(json.dumps([{"uuid": "x" * (16 << 20), "fault": None}]).encode())


@pytest.mark.parametrize("letter", ["x", "\n", "\u202e"])
def test_long_texts_of_a_library_are_cut_and_made_printable(letter: str) -> None:
    text = letter * (1 << 20)
    fault = {"reason": text, "message": text, "cleared_by": ["reset"] * 10_000}
    raw = [{"uuid": "a", "index": 0, "model": text, "fault": fault}]

    (device,) = answers.devices(json.dumps(raw).encode())
    (event,) = answers.events(json.dumps([{"uuid": "a", "fault": fault}]).encode())

    assert device.fault is not None
    assert device.fault == event.fault
    assert [len(it) for it in (device.fault.reason, device.fault.message, device.model)] == [64, 512, 128]
    assert device.fault.reason.isprintable()
    assert device.fault.reason.endswith("…")
    assert device.fault.cleared_by == (Proof.RESET,)


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


def test_usage_beyond_the_whole_is_refused() -> None:
    with pytest.raises(answers.WrongAnswer, match=r"usage of a: utilization: 1\.5 is not between 0 and 1"):
        answers.usage(b'[{"uuid": "a", "memory_used": 0, "utilization": 1.5}]')


async def test_what_a_library_prints_harms_nothing(sink: Recorder) -> None:
    async with serving(sink, does={"open": "print", "discover": "print"}):
        await sink.until(lambda: len(sink.lists) >= 3)

        assert sink.losses == []


async def test_what_a_library_prints_is_an_event_of_the_log(sink: Recorder) -> None:
    with structlog.testing.capture_logs() as logs:
        async with serving(sink, does={"discover": "print"}):
            await sink.until(lambda: sink.lists)
            await _until(lambda: any(it.get("line") == "noise" for it in logs))

    forged = {
        "event": "vendor output",
        "vendor": "acme",
        "line": '{"id": 1, "answer": []}',
        "log_level": "info",
    }
    assert forged in logs


async def test_the_last_words_of_a_process_are_read(sink: Recorder) -> None:
    with structlog.testing.capture_logs() as logs:
        async with serving(sink, does={"discover": "print_and_die"}):
            await sink.until(lambda: sink.losses)

    assert "farewell" in [it.get("line") for it in logs]


async def test_a_library_that_prints_without_end_is_heard_at_a_bounded_rate(sink: Recorder) -> None:
    with structlog.testing.capture_logs() as logs:
        async with serving(sink, does={"discover": "print_a_lot"}):
            await sink.until(lambda: len(sink.lists) >= 2)

    said = [it for it in logs if it["event"] == "vendor output"]
    assert 20 <= len(said) <= 200
    assert sum(it.get("dropped", 0) for it in said) >= 100_000
    assert sink.losses == []


def test_lines_are_bounded_and_printable_and_few() -> None:
    said: list[tuple[str, int]] = []
    speech = output.Speech(lambda line, dropped: said.append((line, dropped)))

    assert speech.take(b"a\x1b[31m\xff\n\n  \n" + b"x" * 100_000 + b"\n", now=100.0)
    assert not speech.take(b"y\n" * 30, now=100.0)
    assert speech.take(b"half", now=101.0)
    speech.end(now=101.0)

    assert said[0] == ("a\\x1b[31m\\xff", 0)
    assert said[1] == (f"{'x' * 399}…", 0)
    assert said[2:] == [("y", 0)] * 18 + [("half", 12)]


def test_a_line_that_never_ends_is_not_kept() -> None:
    said: list[str] = []
    speech = output.Speech(lambda line, dropped: said.append(line))

    for _ in range(100):
        speech.take(b"x" * 65_536, now=1.0)
    speech.end(now=1.0)

    assert said == [f"{'x' * 399}…"]


def test_the_process_gets_no_environment_but_what_libraries_need(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_SECRET_ACCESS_KEY", "KUBECONFIG", "PYTHONPATH", "LC_ALL", "CUDA_HOME", "XPU_NVML_STUB"):
        monkeypatch.setenv(name, "x")

    found = contact.environment()

    assert {"PATH", "LC_ALL", "CUDA_HOME", "XPU_NVML_STUB"} <= found.keys()
    assert not {"AWS_SECRET_ACCESS_KEY", "KUBECONFIG", "PYTHONPATH"} & found.keys()


async def test_lost_events_are_told_once_and_so_is_their_return(sink: Recorder, flag: Flag) -> None:
    async with serving(sink, "Watched", events="raise", flag=str(flag), every=100):
        await sink.until(lambda: sink.faults)
        flag.lower()
        await sink.until(lambda: sink.events[-1].fault is None)

        (lost,), found = sink.faults, sink.events[-1]
        assert (lost.uuid, found) == (None, HealthEvent(None, None))
        assert lost.fault is not None
        assert (lost.fault.reason, lost.fault.message) == ("events-lost", "OSError: event source is gone")
        assert lost.fault.state is State.UNKNOWN


async def test_lost_events_do_not_stop_the_lists_and_are_said_again_after_each(sink: Recorder) -> None:
    async with serving(sink, "Watched", events="raise"):
        await sink.until(lambda: sink.faults)
        listed, told = len(sink.lists), len(sink.events)
        await sink.until(lambda: len(sink.lists) >= listed + 5)

        assert told <= len(sink.events) <= told + 6
        assert sink.losses == []


async def test_events_lost_with_one_process_are_found_by_the_next(sink: Recorder, flag: Flag) -> None:
    async with serving(sink, "Watched", events="raise", flag=str(flag)) as process:
        await sink.until(lambda: sink.faults)
        assert process.pid is not None
        flag.lower()
        os.kill(process.pid, signal.SIGKILL)
        await sink.until(lambda: sink.losses)
        told = len(sink.events)
        await sink.until(lambda: len(sink.events) > told)

        assert sink.events[-1] == HealthEvent(None, None)


async def test_what_the_first_events_of_a_process_say_holds(sink: Recorder) -> None:
    async with serving(sink, "Watched", events="unmonitored", every=100):
        await sink.until(lambda: len(sink.events) >= 2)

        assert sink.events[0] == HealthEvent(None, None)
        assert [(it.uuid, it.fault is not None) for it in sink.events[1:]] == [("dev-a", True)]


async def test_a_device_that_the_list_calls_unknown_is_not_acquitted(sink: Recorder) -> None:
    unknown = {"reason": "unread", "state": "unknown"}
    devices = [{"uuid": "a", "index": 0, "fault": unknown}, {"uuid": "b", "index": 1}]
    async with serving(sink, does={"discover": "devices"}, devices=devices, every=100):
        await sink.until(lambda: sink.events)

        assert sink.events == [HealthEvent("b", None)]


async def test_events_that_are_none_cost_no_process(sink: Recorder) -> None:
    async with serving(sink, "Watched", events="nonsense"):
        await sink.until(lambda: sink.losses)

        assert sink.losses[0][1].startswith("health_events answered wrongly: ")


def test_an_event_source_that_fails_for_good_is_asked_ever_more_rarely() -> None:
    def broken(timeout: float) -> Sequence[HealthEvent]:
        raise OSError("gone")

    sent: list[bytes] = []
    watch = child.Watch(broken, sent.append, 5.0)

    pauses = [watch.once() for _ in range(12)]

    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0, 30.0]
    assert len(sent) == 12


def test_an_event_source_that_never_waits_is_slowed_down() -> None:
    watch = child.Watch(lambda timeout: (), lambda message: None, 5.0)

    pauses = [watch.once() for _ in range(child.FREE_QUICK_WAITS + 2)]

    assert pauses[0] == 0.0
    assert pauses[-1] == child.QUICK_PAUSE


SPECS = {"acme.com-xpu.json": '{"cdiVersion": "0.5.0"}'}


async def test_cdi_specs_come_before_the_list_that_needs_them(sink: Recorder, tmp_path: Path) -> None:
    async with serving(sink, "Specified", count=str(tmp_path / "count")):
        await sink.until(lambda: len(sink.lists) >= 3)

        assert sink.specs == [(SPECS, 0)]
        assert (tmp_path / "count").read_text().split() == ["asked"]


async def test_cdi_specs_are_asked_for_again_when_the_devices_change(
    sink: Recorder, tmp_path: Path, flag: Flag
) -> None:
    count = tmp_path / "count"
    async with serving(sink, "Specified", count=str(count), flag=str(flag), grows=True):
        await sink.until(lambda: len(sink.lists) >= 2)
        flag.lower()
        await sink.until(lambda: len(sink.lists[-1]) == 2)

        assert len(sink.specs) == 2
        assert count.read_text().split() == ["asked", "asked"]


@pytest.mark.parametrize("fault", ["raise", "nonsense", "no_json", "escape"])
async def test_cdi_specs_that_can_not_be_had_cost_no_list(fault: str, sink: Recorder, tmp_path: Path) -> None:
    async with serving(sink, "Specified", count=str(tmp_path / "count"), does={"cdi": fault}):
        await sink.until(lambda: len(sink.lists) >= 3)

        assert sink.specs == []
        assert sink.losses == []
        assert len(sink.unmade) >= 3  # asked again each time


async def test_cdi_specs_that_cost_the_process_cost_it_once_and_it_is_said(
    sink: Recorder, tmp_path: Path
) -> None:
    quick = replace(QUICK, discover=0.3)
    async with serving(
        sink, "Specified", deadlines=quick, count=str(tmp_path / "count"), does={"cdi": "hang"}
    ):
        await sink.until(lambda: len(sink.lists) >= 3)

        assert [reason for _, reason in sink.losses] == ["cdi did not return within 0.3 s"]
        assert sink.unmade == ["acme: cdi did not return within 0.3 s"]
        assert (tmp_path / "count").read_text().split() == ["asked"]


async def test_cdi_specs_are_asked_for_again_when_a_device_breaks_and_when_it_is_whole(
    sink: Recorder, tmp_path: Path, flag: Flag
) -> None:
    settings: dict[str, Any] = {"count": str(tmp_path / "count"), "flag": str(flag), "breaks": True}
    async with serving(sink, "Specified", **settings):
        await sink.until(lambda: len(sink.lists) >= 2)
        assert len(sink.specs) == 1

        flag.lower()

        await sink.until(lambda: len(sink.specs) == 2)


def test_cdi_specs_without_measure_are_refused() -> None:
    many = {f"v-{n}.json": "{}" for n in range(17)}
    long = {"v-x.json": '{"a": "' + "b" * (4 << 20) + '"}'}

    for specs in (many, long):
        with pytest.raises(answers.WrongAnswer):
            answers.cdi(json.dumps(specs).encode())


async def test_links_come_after_the_first_list_and_are_read_once(
    sink: Recorder, tmp_path: Path, in_process: bool
) -> None:
    count = tmp_path / "count"
    async with serving(sink, "Linked", count=str(count), in_process=in_process):
        await sink.until(lambda: sum(bool(devices[0].links) for devices in sink.lists) >= 3)

        assert sink.lists[0][0].links == ()
        assert sink.lists[-1][0].links == (Link("dev-b", lanes=4),)
        assert sorted(count.read_text().split()) == ["dev-a", "dev-b"]


async def test_links_that_can_not_be_read_stay_empty(sink: Recorder, tmp_path: Path) -> None:
    count = tmp_path / "count"
    async with serving(sink, "Linked", count=str(count), does={"links": "raise"}):
        await sink.until(lambda: len(sink.lists) >= 5)

        assert all(device.links == () for devices in sink.lists for device in devices)
        assert sink.losses == []
        assert len(count.read_text().split()) == 2


async def test_links_that_could_not_be_read_are_asked_again_after_a_repair(
    sink: Recorder, tmp_path: Path, flag: Flag
) -> None:
    settings: dict[str, Any] = {"count": str(tmp_path / "count"), "flag": str(flag), "sick": True}
    async with serving(sink, "Linked", does={"links": "raise"}, **settings):
        await sink.until(lambda: len(sink.lists) >= 5)
        assert (tmp_path / "count").read_text().split() == ["dev-a"]  # dev-b is sick

        flag.lower()

        await sink.until(lambda: sink.lists[-1][0].links and sink.lists[-1][1].links)


async def test_links_are_asked_again_after_the_driver_was_away(
    sink: Recorder, tmp_path: Path, flag: Flag
) -> None:
    flag.lower()
    settings: dict[str, Any] = {"count": str(tmp_path / "count"), "flag": str(flag)}
    async with serving(sink, "Linked", does={"discover": "unavailable"}, **settings):
        await sink.until(lambda: sink.lists and sink.lists[-1][1].links)
        flag.raise_()
        await sink.until(lambda: sink.losses)
        flag.lower()
        listed = len(sink.lists)
        await sink.until(lambda: len(sink.lists) > listed and sink.lists[-1][1].links)

        assert sorted((tmp_path / "count").read_text().split()) == ["dev-a", "dev-a", "dev-b", "dev-b"]


@pytest.mark.parametrize("fault", ["segfault", "hang"])
async def test_links_that_cost_the_process_are_not_read_again(
    fault: str, sink: Recorder, tmp_path: Path
) -> None:
    count = tmp_path / "count"
    short = Deadlines(call=0.2, close=0.01)
    async with serving(sink, "Linked", deadlines=short, count=str(count), does={"links": fault}) as process:
        await sink.until(lambda: sink.losses)
        listed = len(sink.lists)
        await sink.until(lambda: len(sink.lists) >= listed + 5)

        assert process.restarts == 1
        assert len(count.read_text().split()) == 1


def _files_of(pid: int | None) -> list[str]:
    folder = f"/proc/{pid}/fd"
    found = []
    for number in os.listdir(folder):
        with suppress(FileNotFoundError):  # the one that lists the folder
            found.append(os.readlink(f"{folder}/{number}"))
    return found


def _children() -> str:
    return Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text()


async def test_twenty_crashes_leak_no_file_and_no_zombie(sink: Recorder) -> None:
    files, children = _files_of(os.getpid()), _children()

    async with serving(sink, does={"discover": "segfault"}) as process:
        await sink.until(lambda: process.restarts >= 20)
    await asyncio.sleep(0)

    assert len(_files_of(os.getpid())) == len(files)
    assert _children() == children


async def test_cancelling_lets_the_backend_close_and_collects_the_process(
    sink: Recorder, tmp_path: Path
) -> None:
    closed = tmp_path / "closed"
    async with serving(sink, closed=str(closed)) as process:
        await sink.until(lambda: sink.lists)
        pid = process.pid

    assert pid is not None
    assert not _exists(pid)
    assert closed.name in os.listdir(tmp_path)


async def test_cancelling_does_not_wait_for_a_hung_call(sink: Recorder) -> None:
    short = Deadlines(close=0.01)
    async with serving(sink, deadlines=short, does={"open": "hang"}) as process:
        await _until(lambda: process.pid)
        pid = process.pid

    assert not _exists(pid)


async def test_cancelling_by_a_scope_collects_the_process(sink: Recorder) -> None:
    process = VendorProcess(vendor(), sink, deadlines=QUICK, python_path=(HERE,))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(process.run)
        await sink.until(lambda: sink.lists)
        pid = process.pid
        tasks.cancel_scope.cancel()

    assert not _exists(pid)


async def test_a_crash_is_noticed_though_a_forked_process_keeps_the_socket(sink: Recorder) -> None:
    short = Deadlines(call=0.3, close=0.01)
    async with serving(sink, deadlines=short, does={"usage": "fork_and_segfault"}, every=100) as process:
        await sink.until(lambda: sink.lists)
        group = process.pid

        with pytest.raises(VendorError):
            await process.call("usage")
        await sink.until(lambda: sink.losses)

        assert sink.losses[0] == (VendorState.FAILED, "killed by SIGSEGV")
        await _until(lambda: not _runs_in_group(group))


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

    await _until(lambda: not _is_running(pid))


def _is_running(pid: str) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def _runs_in_group(group: int | None) -> bool:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            if int(fields[2]) == group and fields[0] != "Z":
                return True
    return False


def _exists(pid: int | None) -> bool:
    return Path(f"/proc/{pid}").exists()


async def _until(condition: Callable[[], object]) -> None:
    """Wait for what nothing announces."""
    with anyio.fail_after(30):
        while not condition():  # noqa: ASYNC110
            await anyio.sleep(0.002)


async def test_the_process_gets_no_file_of_the_agent_but_its_socket(sink: Recorder, tmp_path: Path) -> None:
    with (tmp_path / "secret").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        async with serving(sink) as process:
            await sink.until(lambda: sink.lists)
            opened = _files_of(process.pid)

    assert str(tmp_path / "secret") not in opened
    assert sum(name.startswith("socket:") for name in opened) == 1


async def test_a_process_that_can_not_start_is_told_and_tried_again(
    sink: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = contact.Process
    tries = iter([OSError("no more processes")])

    def start(sock: Any) -> contact.Process:
        for exc in tries:
            sock.close()
            raise exc
        return real(sock)

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


def test_the_process_imports_nothing_but_the_contract() -> None:
    code = (
        "import sys; before = set(sys.modules); import agent.isolation.child; "
        "print(*sorted(m for m in set(sys.modules) - before "
        "if m.partition('.')[0] not in sys.stdlib_module_names))"
    )

    found = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)

    assert found.stdout.split() == [
        "agent",
        "agent.core",
        "agent.core.claims",
        "agent.core.vendor",
        "agent.isolation",
        "agent.isolation.child",
    ]
