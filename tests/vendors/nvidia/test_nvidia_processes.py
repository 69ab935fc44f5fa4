"""Rules of what uses the cards: which processes are there, what they have, and what no call can tell."""

from __future__ import annotations

import ctypes
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from struct import Struct
from typing import Any

import pynvml
import pytest
from nvml_stub import GPU_IS_LOST, Mig, NvmlStub, Process
from support.card_users import card_user

from agent.vendor_api.agent import BackendUnavailable, ProcessUsage
from agent.vendors.nvidia.child.backend import NvmlBackend
from agent.vendors.nvidia.child.card_processes import CardProcesses
from agent.vendors.nvidia.child.cards import NvidiaCard
from agent.vendors.nvidia.child.struct_array import LIMIT, StructArray

pytest_plugins = ["nvml_fixtures"]

GIB = 1 << 30
NOT_SUPPORTED, NO_PERMISSION, INSUFFICIENT_SIZE = 3, 4, 7
FUNCTION_NOT_FOUND, UNKNOWN_ERROR = 13, 999
PATIENCE = 20.0

LISTS = [f"nvmlDeviceGet{kind}RunningProcesses_v3" for kind in ("Compute", "Graphics", "MPSCompute")]
UTILIZATION = "nvmlDeviceGetProcessUtilization"

RECORDED: Mapping[str, Any] = json.loads((Path(__file__).parent / "recorded_driver.json").read_text())

Figures = tuple[int | None, float | None]


@pytest.fixture
def stub(stub: NvmlStub) -> NvmlStub:
    stub.cards(2)
    return stub


@pytest.fixture
def sampled(backend: NvmlBackend) -> NvmlBackend:
    """A backend that knows its cards."""
    backend.discover()
    return backend


def figures(backend: NvmlBackend, uuid: str) -> dict[int, Figures]:
    """Memory and utilization of the processes on a device, by pid."""
    found = [(it.pid, (it.memory, it.utilization)) for it in backend.processes() if it.uuid == uuid]
    assert len(found) == len(dict(found)), "a process is listed twice"
    return dict(found)


def on_card(backend: NvmlBackend, card: int = 0) -> dict[int, Figures]:
    return figures(backend, NvmlStub.uuid(card))


def test_an_idle_card_has_no_processes(sampled: NvmlBackend) -> None:
    assert sampled.processes() == []


def test_a_process_is_told_with_its_card_its_memory_and_its_utilization(
    sampled: NvmlBackend, stub: NvmlStub
) -> None:
    stub.processes(1, Process(42, 3 * GIB, samples=[41]))

    assert sampled.processes() == [ProcessUsage(stub.uuid(1), 42, 3 * GIB, 0.41)]


def test_a_process_on_two_cards_is_told_for_each(sampled: NvmlBackend, stub: NvmlStub) -> None:
    stub.processes(0, Process(42, GIB))
    stub.processes(1, Process(42, 2 * GIB))

    assert (on_card(sampled, 0), on_card(sampled, 1)) == ({42: (GIB, 0.0)}, {42: (2 * GIB, 0.0)})


def test_memory_of_a_process_with_compute_and_graphics_is_counted_once(
    sampled: NvmlBackend, stub: NvmlStub
) -> None:
    stub.processes(0, Process(42, GIB, lists="c"), Process(42, GIB + 5, lists="g"), Process(7, 8, lists="cg"))

    assert on_card(sampled) == {42: (GIB + 5, 0.0), 7: (8, 0.0)}


def test_a_process_with_graphics_alone_is_there(sampled: NvmlBackend, stub: NvmlStub) -> None:
    stub.processes(0, Process(42, GIB, lists="g"))

    assert on_card(sampled) == {42: (GIB, 0.0)}


def test_clients_of_mps_are_there_and_their_utilization_is_not_known_to_be_none(
    sampled: NvmlBackend, stub: NvmlStub
) -> None:
    """The driver's samples are the server's, so a client without a sample may well be busy."""
    stub.processes(
        0, Process(1, 64, samples=[82]), Process(2, GIB, lists="m"), Process(3, GIB, lists="cm", samples=[5])
    )

    assert on_card(sampled) == {1: (64, 0.82), 2: (GIB, None), 3: (GIB, 0.05)}


@pytest.mark.parametrize("moment", ["load", "mps"])
def test_the_processes_of_a_real_card_are_told_as_its_driver_told_them(
    sampled: NvmlBackend, stub: NvmlStub, moment: str
) -> None:
    recorded = RECORDED[moment]["lists"]
    busy = {it["pid"]: it["sm"] for it in recorded[f"{UTILIZATION[13:]} since 0"]["list"]}
    memory, lists = dict[int, int](), dict[int, str]()
    for kind, letter in {"Compute": "c", "Graphics": "g", "MPSCompute": "m"}.items():
        for it in recorded[f"{kind}_v3"]["list"]:
            memory[it["pid"]] = it["memory"]
            lists[it["pid"]] = lists.get(it["pid"], "") + letter
    samples = {pid: [busy[pid]] if pid in busy else [] for pid in memory}
    stub.processes(0, *(Process(pid, memory[pid], lists[pid], samples[pid]) for pid in memory))

    assert on_card(sampled) == {
        pid: (amount, busy[pid] / 100 if pid in busy else None if "m" in lists[pid] else 0.0)
        for pid, amount in memory.items()
    }


def test_memory_that_is_not_available_is_not_known(sampled: NvmlBackend, stub: NvmlStub) -> None:
    stub.processes(0, Process(42, None), Process(43, None, lists="c"), Process(43, GIB, lists="g"))

    assert on_card(sampled) == {42: (None, 0.0), 43: (GIB, 0.0)}


def test_a_process_without_a_sample_is_idle(sampled: NvmlBackend, stub: NvmlStub) -> None:
    stub.processes(0, Process(42), Process(43, samples=[100]))

    assert on_card(sampled) == {42: (GIB, 0.0), 43: (GIB, 1.0)}


def test_the_newest_sample_since_the_last_look_counts(sampled: NvmlBackend, stub: NvmlStub) -> None:
    now = int(time.time() * 1e6) - 10_000_000
    stub.processes(0, Process(42, samples=[(70, now + 2), (10, now), (30, now + 1)]))
    first = on_card(sampled)
    again = on_card(sampled)
    stub.processes(0, Process(42, samples=[(70, now + 2), (55, now + 3)]))

    assert (first, again) == ({42: (GIB, 0.7)}, {42: (GIB, 0.0)})
    assert on_card(sampled) == {42: (GIB, 0.55)}


def test_each_card_has_a_last_look_of_its_own(sampled: NvmlBackend, stub: NvmlStub) -> None:
    now = int(time.time() * 1e6) - 10_000_000
    stub.processes(0, Process(42, samples=[(70, now + 9)]))
    stub.processes(1, Process(43, samples=[(20, now)]))

    assert (on_card(sampled, 0), on_card(sampled, 1)) == ({42: (GIB, 0.7)}, {43: (GIB, 0.0)})
    assert {it.pid: it.utilization for it in sampled.processes()} == {42: 0.0, 43: 0.0}


def test_a_sample_of_the_future_does_not_make_all_later_ones_old(
    sampled: NvmlBackend, stub: NvmlStub
) -> None:
    now = int(time.time() * 1e6) - 10_000_000
    stub.processes(0, Process(42, samples=[(10, now)]), Process(43, samples=[(20, 1 << 62)]))
    assert on_card(sampled) == {42: (GIB, 0.1), 43: (GIB, 0.2)}

    stub.processes(0, Process(42, samples=[(90, now + 1)]))

    assert on_card(sampled) == {42: (GIB, 0.9)}


def test_a_clock_that_was_set_back_does_not_hide_what_is_busy(sampled: NvmlBackend, stub: NvmlStub) -> None:
    now = 1_000_000.0
    processes = CardProcesses(pynvml, lambda: now)
    card = NvidiaCard(sampled.discover()[0], pynvml.nvmlDeviceGetHandleByIndex(0))
    stub.processes(0, Process(42, samples=[(10, 999_999_000_000)]))
    assert [it.utilization for it in processes.read([card])] == [0.1]

    now = 1_000.0
    stub.processes(0, Process(42, samples=[(90, 999_000_000)]))

    assert [it.utilization for it in processes.read([card])] == [0.9]


def test_a_sample_of_a_process_that_is_in_no_list_is_no_process(sampled: NvmlBackend, stub: NvmlStub) -> None:
    stub.processes(0, Process(42, lists="-", samples=[50]), Process(43))

    assert on_card(sampled) == {43: (GIB, 0.0)}


def test_where_nothing_runs_the_driver_is_not_asked_for_samples(sampled: NvmlBackend, stub: NvmlStub) -> None:
    """The call takes a real driver almost 3 ms."""
    stub.trace()
    stub.processes(1, Process(42))

    sampled.processes()

    assert stub.calls(UTILIZATION) == 1


@pytest.mark.parametrize("code", [NOT_SUPPORTED, FUNCTION_NOT_FOUND, UNKNOWN_ERROR, GPU_IS_LOST])
def test_utilization_that_the_driver_does_not_tell_is_not_known(
    sampled: NvmlBackend, stub: NvmlStub, code: int
) -> None:
    """A guest with a vGPU, an older driver, or a card that is lost after its lists were read."""
    stub.processes(0, Process(42, samples=[50]))
    stub.processes(1, Process(43, samples=[50]))
    stub.fail(UTILIZATION, code, 0)

    assert (on_card(sampled, 0), on_card(sampled, 1)) == ({42: (GIB, None)}, {43: (GIB, 0.5)})


@pytest.mark.parametrize("code", [NOT_SUPPORTED, FUNCTION_NOT_FOUND, NO_PERMISSION])
@pytest.mark.parametrize(("lost", "pid"), [*zip(LISTS, (1, 2, 3), strict=True)])
def test_a_list_that_the_card_does_not_have_costs_that_list_alone(
    sampled: NvmlBackend, stub: NvmlStub, code: int, lost: str, pid: int
) -> None:
    stub.processes(0, Process(1, lists="c"), Process(2, lists="g"), Process(3, lists="m"))
    stub.fail(lost, code)

    assert on_card(sampled).keys() == {1, 2, 3} - {pid}


@pytest.mark.parametrize("code", [GPU_IS_LOST, UNKNOWN_ERROR, INSUFFICIENT_SIZE])
@pytest.mark.parametrize("failing", LISTS)
def test_a_card_that_cannot_be_read_is_left_out_and_hides_no_other(
    sampled: NvmlBackend, stub: NvmlStub, code: int, failing: str
) -> None:
    """Half of the lists would show too little use, and all the rest as the driver's own."""
    stub.processes(0, Process(42))
    stub.processes(1, Process(43))
    stub.fail(failing, code, 0)

    assert [it.pid for it in sampled.processes()] == [43]


def test_a_card_that_is_lost_is_left_out(sampled: NvmlBackend, stub: NvmlStub) -> None:
    stub.processes(0, Process(42))
    stub.processes(1, Process(43))
    stub.lose(0)

    assert [it.pid for it in sampled.processes()] == [43]
    sampled.discover()
    assert [it.pid for it in sampled.processes()] == [43]


def test_a_card_that_has_never_been_read_is_left_out(stub: NvmlStub, backend: NvmlBackend) -> None:
    stub.processes(0, Process(42))
    stub.processes(1, Process(43))
    stub.fail("nvmlDeviceGetHandleByIndex_v2", UNKNOWN_ERROR, 0)
    backend.discover()

    assert [it.pid for it in backend.processes()] == [43]


def test_the_processes_of_a_card_in_mig_mode_are_those_of_its_mig_devices(
    backend: NvmlBackend, stub: NvmlStub
) -> None:
    first, second = stub.mig(0, [Mig(gi=7), Mig(gi=8)])
    stub.processes(0, Process(42, GIB), Process(41, GIB), number=0)
    stub.processes(0, Process(42, GIB, lists="cg"), number=1)
    stub.processes(0, Process(1), Process(42))  # what a privileged caller is told of the card
    stub.processes(1, Process(43))
    backend.discover()

    assert figures(backend, first) == {42: (GIB, None), 41: (GIB, None)}
    assert figures(backend, second) == {42: (GIB, None)}
    assert on_card(backend, 0) == {}
    assert on_card(backend, 1) == {43: (GIB, 0.0)}


def test_a_mig_device_that_cannot_be_read_hides_no_other(backend: NvmlBackend, stub: NvmlStub) -> None:
    uuids = stub.mig(0, [Mig(gi=7), Mig(gi=8), Mig(gi=9)])
    for number in range(3):
        stub.processes(0, Process(40 + number), number=number)
    backend.discover()
    stub.fail(LISTS[0], UNKNOWN_ERROR, 0, 1)
    assert {it.uuid for it in backend.processes()} == {uuids[0], uuids[2]}

    stub.fail("nvmlDeviceGetUUID", UNKNOWN_ERROR, 0, 2)

    assert {it.uuid for it in backend.processes()} == {uuids[0]}


def test_processes_of_a_new_mig_device_are_not_charged_to_the_one_before_it(
    backend: NvmlBackend, stub: NvmlStub
) -> None:
    stub.mig(0, [Mig(gi=7), Mig(gi=8)])
    stub.processes(0, Process(42), number=1)
    backend.discover()
    [_, after] = stub.mig(0, [Mig(gi=7), Mig("2g.20gb", gi=5)])

    assert backend.processes() == []
    backend.discover()
    assert figures(backend, after) == {42: (GIB, None)}


def test_ten_thousand_processes_are_told(sampled: NvmlBackend, stub: NvmlStub) -> None:
    stub.processes(0, *(Process(pid, pid, samples=[pid % 100]) for pid in range(1, 10_001)))

    assert on_card(sampled) == {pid: (pid, pid % 100 / 100) for pid in range(1, 10_001)}


def test_garbage_comes_out_as_it_is(sampled: NvmlBackend, stub: NvmlStub) -> None:
    """What is believed is decided where all vendors' answers are checked."""
    stub.processes(0, Process(0, 1 << 63), Process((1 << 32) - 1, 0, samples=[(1 << 32) - 1]))

    assert on_card(sampled) == {0: (1 << 63, 0.0), (1 << 32) - 1: (0, 42949672.95)}


def test_a_process_that_registers_itself_is_told_while_it_lives(sampled: NvmlBackend, stub: NvmlStub) -> None:
    stub.register(os.getpid(), (stub.uuid(0), GIB, 25), (stub.uuid(1), None, None))

    assert on_card(sampled, 0) == {os.getpid(): (GIB, 0.25)}
    assert on_card(sampled, 1) == {os.getpid(): (None, 0.0)}


def test_a_process_that_locks_its_claim_is_told_by_the_pid_that_the_kernel_knows(
    sampled: NvmlBackend, stub: NvmlStub
) -> None:
    with card_user(Path(f"{stub.control}.processes"), f"{stub.uuid(0)} {GIB} 25\n") as pid:
        assert on_card(sampled, 0) == {pid: (GIB, 0.25)}

    assert on_card(sampled, 0) == {}


class Older:
    """A driver's library without some of its functions."""

    def __init__(self, library: ctypes.CDLL, *missing: str) -> None:
        self._library, self._missing = library, missing

    def __getattr__(self, name: str) -> Any:
        if name in self._missing:
            raise AttributeError(name)
        return getattr(self._library, name)


def test_an_older_driver_is_asked_by_the_second_version(
    sampled: NvmlBackend, stub: NvmlStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub.processes(0, Process(1, lists="c", samples=[50]), Process(2, lists="g"), Process(3, lists="m"))
    monkeypatch.setattr(pynvml, "nvmlLib", Older(pynvml.nvmlLib, *LISTS))

    assert on_card(sampled) == {1: (GIB, 0.5), 2: (GIB, 0.0), 3: (GIB, None)}


def test_a_driver_without_a_function_lacks_what_that_tells_and_no_more(
    sampled: NvmlBackend, stub: NvmlStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub.processes(0, Process(1, lists="c", samples=[50]), Process(3, lists="m"))
    mps = LISTS[2]
    older = Older(pynvml.nvmlLib, UTILIZATION, mps, mps.replace("_v3", "_v2"))
    monkeypatch.setattr(pynvml, "nvmlLib", older)

    assert on_card(sampled) == {1: (GIB, None)}


# Threads


@pytest.fixture
def hung(sampled: NvmlBackend, stub: NvmlStub) -> Iterator[threading.Thread]:
    """A thread that hangs in `processes` until the stub is cleared."""
    stub.trace()
    stub.hang(LISTS[0])
    sampling = threading.Thread(target=sampled.processes)
    sampling.start()
    stub.await_calls(LISTS[0], 1)
    yield sampling
    stub.clear()
    sampling.join(PATIENCE)


def test_a_hung_sample_does_not_hold_up_the_calls_and_events_of_the_cards(
    sampled: NvmlBackend, stub: NvmlStub, hung: threading.Thread
) -> None:
    assert len(sampled.discover()) == 2
    sampled.health_events(0.01)
    stub.xid(0, 79)

    assert [it.uuid for it in sampled.health_events(PATIENCE)] == [stub.uuid(0)]
    assert hung.is_alive()


def test_the_session_is_not_shut_down_under_a_sample(
    sampled: NvmlBackend, stub: NvmlStub, hung: threading.Thread
) -> None:
    sampled.close()

    assert stub.calls("nvmlShutdown") == 0
    assert hung.is_alive()
    stub.clear()
    hung.join(PATIENCE)
    assert not hung.is_alive()


def test_a_sample_that_ends_soon_lets_the_session_end_well(
    sampled: NvmlBackend, stub: NvmlStub, hung: threading.Thread
) -> None:
    closing = threading.Thread(target=sampled.close)
    closing.start()
    stub.clear()
    closing.join(PATIENCE)

    assert stub.calls("nvmlShutdown") == 1


def test_after_close_nothing_is_told(sampled: NvmlBackend, stub: NvmlStub) -> None:
    sampled.close()

    for call in (sampled.usage, sampled.processes):
        with pytest.raises(BackendUnavailable, match="not-open"):
            call()


def test_before_the_first_discovery_of_a_session_nothing_is_known(
    sampled: NvmlBackend, stub: NvmlStub
) -> None:
    stub.processes(0, Process(42))
    sampled.close()
    sampled.open()

    assert (sampled.usage(), sampled.processes()) == ([], [])
    sampled.discover()
    assert on_card(sampled) == {42: (GIB, 0.0)}


# The buffer of a list

NUMBER = Struct("=I")


def answering(*counts: int, code: int = 0) -> Callable[[Any, Any], int]:
    """A call of NVML that has as many numbers to tell as this, call by call."""
    told = iter(counts)

    def call(out: Any, number: Any) -> int:
        place = ctypes.cast(number, ctypes.POINTER(ctypes.c_uint))[0]
        needed = next(told)
        ctypes.cast(number, ctypes.POINTER(ctypes.c_uint))[0] = needed
        for index in range(min(place, needed)):
            NUMBER.pack_into(out, index * NUMBER.size, index)
        return code or (INSUFFICIENT_SIZE if needed > place else 0)

    return call


def test_a_list_may_grow_between_two_calls() -> None:
    numbers = StructArray(pynvml, NUMBER)

    assert numbers.fill(answering(200, 500, 600)) == [(it,) for it in range(600)]
    assert numbers.fill(answering(3)) == [(0,), (1,), (2,)]


def test_a_list_that_always_grows_is_an_error() -> None:
    with pytest.raises(pynvml.NVMLError_InsufficientSize):
        StructArray(pynvml, NUMBER).fill(answering(*(200 * 4**it for it in range(9))))


def test_no_room_is_made_for_an_absurd_number_of_processes() -> None:
    asked = count()

    def call(out: Any, number: Any) -> int:
        next(asked)
        return answering(LIMIT + 1)(out, number)

    with pytest.raises(pynvml.NVMLError_InsufficientSize):
        StructArray(pynvml, NUMBER).fill(call)
    assert next(asked) == 1


def test_no_more_is_read_than_there_is_room_for() -> None:
    def call(out: Any, number: Any) -> int:
        ctypes.cast(number, ctypes.POINTER(ctypes.c_uint))[0] = 1 << 31
        return 0

    assert len(StructArray(pynvml, NUMBER).fill(call)) < LIMIT
