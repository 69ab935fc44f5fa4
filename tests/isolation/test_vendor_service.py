"""One term of a vendor's process: lists, calls, events, links, and what loses contact."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from grpclib.const import Status
from msgspec.structs import replace

from agent.core.errors import AllocationError, InsufficientRoom, VendorCrashed, VendorError, VendorTimeout
from agent.core.model import VendorState
from agent.isolation import vendor_service
from agent.isolation.cdi_requests import CdiRequests
from agent.isolation.deadlines import Deadlines
from agent.isolation.vendor_event_queue import AT_ONCE
from agent.isolation.vendor_memory_limit import MemoryLimit
from agent.isolation.vendor_process import ProcessListener, VendorProcess, failed
from agent.isolation.vendor_sampling import SampleLosses
from agent.isolation.vendor_service import LinkCache, Service
from agent.isolation.vendor_supervisor import VendorSupervisor
from agent.kubelet.rpc import as_status
from agent.vendor_api.agent import Fault, HealthEvent, Link, Partition, Request, State

from .rig import QUICK, Flag, Recorder, serving, vendor


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
        assert await process.call("release", "a1") is None


FATAL = {
    "segfault": "killed by SIGSEGV",
    "exit": "exited with status 7",
    "garbage": "sent what is no message: \\x00\\xff not json",
    "nest": 'sent what is no message: {"id": 2, "answer": [[[[',
    "a_strange_answer": "answered call 99, which was not asked",
    "huge_line": "sent a line of more than 16777216 bytes",
    "raise": "discover failed: RuntimeError: the card is on fire",
    "bytes": "discover failed: TypeError: a bytes cannot be sent: b'GPU-1'",
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
    # Long enough that the next process opens in time on a slow machine, too.
    short = replace(QUICK, close=0.01, **{call: 2.0})
    does = {call: "hang_while_flagged"}
    async with serving(sink, deadlines=short, does=does, flag=str(flag), in_process=in_process):
        await sink.until(lambda: sink.losses)
        flag.lower()
        await sink.until(lambda: sink.lists)

        assert sink.losses[0] == (VendorState.FAILED, f"{call} did not return within 2 s")


async def test_a_hung_call_costs_its_caller_only_the_deadline(sink: Recorder) -> None:
    short = Deadlines(call=0.2, close=0.01)
    async with serving(sink, deadlines=short, does={"partitions": "hang"}) as process:
        await sink.until(lambda: sink.lists)
        first = process.pid

        with pytest.raises(VendorTimeout, match=r"acme: partitions did not return within 0\.2 s"):
            await process.call("partitions")

        await sink.until(lambda: sink.losses)
        listed = len(sink.lists)
        await sink.until(lambda: len(sink.lists) > listed)
        assert process.pid != first


async def test_a_crash_fails_every_waiting_call(sink: Recorder) -> None:
    async with serving(sink, does={"partitions": "segfault"}) as process:
        await sink.until(lambda: sink.lists)

        results = await asyncio.gather(
            process.call("partitions"), process.call("release", "a"), return_exceptions=True
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


async def test_a_request_that_is_refused_is_so_in_the_backends_own_words_and_costs_nothing(
    sink: Recorder, in_process: bool
) -> None:
    async with serving(sink, in_process=in_process, does={"prepare": "refuse"}) as process:
        await sink.until(lambda: sink.lists)

        with pytest.raises(AllocationError) as refused:
            await process.call("prepare", Request("a", "acme.com/xpu", ("i",)), ("dev-a",))

        assert str(refused.value) == (
            'invalid allocation request for "acme.com/xpu": the vendor refuses the request: half a card was '
            "asked for; a quarter works"
        )
        assert as_status(refused.value).status is Status.FAILED_PRECONDITION
        assert await process.call("partitions") == ()
        assert sink.losses == []


async def test_a_request_without_room_is_told_from_one_that_can_never_be_served(
    sink: Recorder, in_process: bool
) -> None:
    async with serving(sink, in_process=in_process, does={"prepare": "lack_room"}) as process:
        await sink.until(lambda: sink.lists)

        with pytest.raises(InsufficientRoom, match="half a card was asked for; a quarter is free"):
            await process.call("prepare", Request("a", "acme.com/xpu", ("i",)), ("dev-a",))

        assert sink.losses == []


async def test_a_refusal_of_what_is_no_request_is_an_error_like_others(sink: Recorder) -> None:
    async with serving(sink, does={"partitions": "refuse"}) as process:
        await sink.until(lambda: sink.lists)

        with pytest.raises(VendorError, match="acme: partitions: refused: half a card"):
            await process.call("partitions")


async def test_a_backend_has_a_directory_of_its_own_before_it_opens(
    sink: Recorder, tmp_path: Path, in_process: bool
) -> None:
    async with serving(sink, "Keeping", in_process=in_process, directory=tmp_path):
        await sink.until(lambda: sink.lists)

    assert (tmp_path / "opened").read_text().split() == ["opened"]
    assert sink.lists[0][0].model == str(tmp_path)


async def test_a_backend_that_nobody_gave_a_directory_has_none(sink: Recorder) -> None:
    async with serving(sink, "Keeping"):
        await sink.until(lambda: sink.lists)

    assert sink.lists[0][0].model == "None"


async def test_a_wrong_answer_that_decides_nothing_costs_only_the_answer(
    sink: Recorder, tmp_path: Path
) -> None:
    count = str(tmp_path / "count")
    async with serving(sink, "Specified", count=count, does={"cdi": "nonsense"}) as process:
        await sink.until(lambda: sink.lists)

        assert "cdi answered wrongly" in sink.unmade[0]
        assert await process.call("partitions") == ()
        assert sink.losses == []


async def test_a_wrong_answer_of_prepare_costs_the_process(sink: Recorder) -> None:
    async with serving(sink, does={"prepare": "nonsense"}) as process:
        await sink.until(lambda: sink.lists)

        with pytest.raises(VendorError, match="prepare answered wrongly"):
            await process.call("prepare", Request("a", "r", ("i",)), ("dev-a",))

        await sink.until(lambda: sink.losses)


async def test_a_caller_who_leaves_does_not_disturb_the_next(sink: Recorder, flag: Flag) -> None:
    does = {"prepare": "hang_while_flagged"}
    async with serving(sink, does=does, flag=str(flag), every=100) as process:
        await sink.until(lambda: sink.lists)
        gone = asyncio.create_task(
            process.call("prepare", Request("a", "acme.com/xpu", ("id-1",)), ("dev-a",))
        )
        await asyncio.sleep(0)
        next_one = asyncio.create_task(process.call("partitions"))
        await asyncio.sleep(0)
        gone.cancel()
        flag.lower()

        with anyio.fail_after(30):
            assert await next_one == ()
        assert sink.losses == []


async def test_calls_need_an_open_vendor(sink: Recorder) -> None:
    process = VendorSupervisor(vendor(), sink)

    with pytest.raises(VendorError, match="acme: partitions: the vendor is not open: not started yet"):
        await process.call("partitions")
    with pytest.raises(ValueError, match="'discover' is not to be called"):
        await process.call("discover")


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
        ({"parent": "a", "slice": 0}, "parent: it cannot be its own slice"),
        ({"parent": "b c", "slice": 0}, "parent: uuid: contains ' ', which parts device IDs"),
        ({"parent": "b", "slice": -1}, "slice: -1 is not between 0 and 2^63"),
        ({"index": 1.5}, "Expected `int`, got `float` - at `$[0].index`"),
    ],
)
async def test_a_wrong_field_is_refused_by_name(part: dict[str, Any], reason: str, sink: Recorder) -> None:
    async with serving(sink, does={"discover": "devices"}, devices=[{"uuid": "a", "index": 0, **part}]):
        await sink.until(lambda: sink.losses)

        assert sink.losses[0][1].endswith(reason)


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


class Played:
    """Stands for a process with two devices; once listed it says what it is given, and then is lost.

    `rests`: that everybody has done what there was to do before it goes on.
    """

    limit = MemoryLimit()
    is_sampling = False

    def __init__(self, *said: Sequence[HealthEvent], rests: bool = False) -> None:
        self.rests = rests
        self.said = [json.dumps(events, default=_plain).encode() for events in said]
        self.runner = self
        self.pid = 1
        self.listed = asyncio.Event()

    def ended(self) -> None: ...

    def memory(self) -> int:
        return 0

    async def connect(self) -> None: ...

    async def opened(self, seconds: float) -> bytes:
        return b'{"methods": []}'

    def fail_sample(self, error: VendorError) -> None: ...

    async def ask(self, call: str, args: Sequence[Any], seconds: float) -> bytes:
        self.listed.set()
        return b'[{"uuid": "dev-a", "index": 0}, {"uuid": "dev-b", "index": 1}]'

    async def listen(self, listener: ProcessListener) -> None:
        await self.listed.wait()
        await anyio.wait_all_tasks_blocked()
        for raw in self.said:
            listener.events(raw)
            if self.rests:
                await anyio.wait_all_tasks_blocked()
        raise failed("killed by SIGKILL")


def _plain(event: HealthEvent) -> Any:
    return {"uuid": event.uuid, "fault": None if event.fault is None else {"reason": event.fault.reason}}


class Turns(Recorder):
    """Remembers what was told together."""

    def __init__(self) -> None:
        super().__init__()
        self.turns: list[Sequence[HealthEvent]] = []

    def observed(self, vendor: str, events: Sequence[HealthEvent]) -> None:
        super().observed(vendor, events)
        self.turns.append(events)


def service_of(process: Played, sink: Recorder) -> Service:
    played = cast("VendorProcess", process)
    losses = SampleLosses("acme")
    return Service(played, "acme", sink, QUICK, 100.0, LinkCache(), CdiRequests(), losses)


async def test_an_event_is_told_at_once_and_those_after_it_wait_for_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(vendor_service, "TURN_SECONDS", 1000.0)
    faults = [HealthEvent("dev-a", Fault(f"xid-{number}")) for number in range(10)]
    process, sink = Played(*([it] for it in faults), rests=True), Turns()

    await service_of(process, sink).run()

    assert sink.turns == [(HealthEvent(None, None),), (faults[0],), tuple(faults[1:])]


async def test_what_a_process_said_just_before_its_end_is_told_together_and_none_of_it_is_lost() -> None:
    faults = [HealthEvent("dev-a", Fault(f"xid-{number}")) for number in range(100)]
    process, sink = Played(*([it] for it in faults)), Turns()

    lost = await service_of(process, sink).run()

    assert lost.reason == "killed by SIGKILL"
    assert sink.turns == [(HealthEvent(None, None),), tuple(faults)]


class Between(Turns):
    """Remembers after how many turns others had theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.between: set[int] = set()

    def observed(self, vendor: str, events: Sequence[HealthEvent]) -> None:
        super().observed(vendor, events)
        asyncio.get_running_loop().call_soon(lambda: self.between.add(len(self.turns)))


async def test_others_have_their_turns_while_much_that_a_process_said_last_is_passed_on() -> None:
    """An event of all devices counts once for each of them."""
    faults = [HealthEvent(None, Fault(f"hot-{number}")) for number in range(AT_ONCE)]
    sink, half = Between(), AT_ONCE // 2

    await service_of(Played(*([it] for it in faults)), sink).run()

    assert [len(turn) for turn in sink.turns] == [1, half, half]
    assert 2 in sink.between


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
    short = Deadlines(call=2.0, close=0.01)  # the process counts a call before it hangs
    async with serving(sink, "Linked", deadlines=short, count=str(count), does={"links": fault}) as process:
        await sink.until(lambda: sink.losses)
        listed = len(sink.lists)
        await sink.until(lambda: len(sink.lists) >= listed + 5)

        assert process.restarts == 1
        assert len(count.read_text().split()) == 1
