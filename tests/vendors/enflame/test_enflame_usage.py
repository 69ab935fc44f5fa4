"""How much of Enflame's cards is in use, and by which processes: what is unknown is None."""

from __future__ import annotations

import threading
from dataclasses import fields
from typing import Any

import pytest
from efml_stub import HANDLES, INDICES, NEWER, PROCESSES, RUNNING, EfmlStub
from enflame_host import Host, uuid

from agent.vendor_api.agent import BackendUnavailable, ProcessUsage, Usage
from agent.vendors.enflame.child.abi import Code, HandleCode
from agent.vendors.enflame.child.backend import EnflameBackend
from agent.vendors.enflame.child.library_errors import EfmlError

pytest_plugins = ["efml_fixtures", "enflame_fixtures"]

MIB, GIB = 1 << 20, 1 << 30
CARD = uuid(0)
#: Card 0 as `busy` scripts it.
FIGURES = Usage(
    CARD,
    memory_used=20 * GIB,
    memory_total=42976 * MIB,
    utilization=0.25,
    memory_utilization=0.3,
    power=123.5,
    temperature=61.5,
    memory_temperature=70.0,
    clock=1.4e9,
    memory_clock=1.7e9,
    ecc_errors={"corrected": 3, "uncorrected": 4},
)


def built(host: Host, *without: str) -> tuple[EfmlStub, EnflameBackend]:
    """A backend with a library that lacks these parts."""
    stub = EfmlStub(host.stub.control.parent, without=without)
    return stub, host.opened(**stub.settings)


@pytest.fixture
def busy(stub: EfmlStub) -> EfmlStub:
    stub.memory(0, 42976, used=20480)
    stub.utilization(0, 25.0)
    stub.memory_utilization(0, 30)
    stub.power(0, 123.5)
    stub.temperature(0, 61.5, 70)
    stub.clocks(0, 1400, 1700)
    stub.ecc(0, single=3, double=4)
    return stub


# Cards


def test_the_use_of_a_card_is_what_the_library_measures(busy: EfmlStub, backend: EnflameBackend) -> None:
    usages = backend.usage()

    assert usages[0] == FIGURES
    assert [it.uuid for it in usages] == [uuid(slot) for slot in range(8)]


#: A function to the figures that fail with the function.
FIGURES_OF: dict[str, dict[str, Any]] = {
    "EfmlGetDevMem": {"memory_used": None, "memory_total": None},
    "EfmlGetDevDtuUsageAsync": {"utilization": None},
    "EfmlGetDevPwr": {"power": None},
    "EfmlGetDevTempV2": {"temperature": None, "memory_temperature": None},
    "EfmlGetMemClk": {"memory_clock": None},
    "EfmlGetDevEccStatus": {"ecc_errors": {"uncorrected": 0}},  # RMA counts them, too
    "efmlDeviceGetUtilizationRates": {"memory_utilization": None},
    "efmlDeviceGetClockInfo": {"clock": None},
}


@pytest.mark.parametrize("function", FIGURES_OF)
def test_a_figure_that_fails_loses_that_figure_alone(
    busy: EfmlStub, backend: EnflameBackend, function: str
) -> None:
    busy.fail(function, Code.FAIL, slot=0)

    found = backend.usage()[0]

    assert {name: getattr(found, name) for name in FIGURES_OF[function]} == FIGURES_OF[function]
    others = {it.name for it in fields(Usage)} - set(FIGURES_OF[function])
    assert {name: getattr(found, name) for name in others} == {
        name: getattr(FIGURES, name) for name in others
    }


def test_a_build_of_2019_tells_what_it_measures(host: Host, busy: EfmlStub) -> None:
    stub, backend = built(host, NEWER)
    stub.utilization(0, 25.0)

    found = backend.usage()[0]

    assert (found.memory_used, found.utilization, found.power) == (1129 * MIB, 0.25, 105.0)
    assert found.ecc_errors == {"corrected": 0, "uncorrected": 0}
    assert (found.memory_utilization, found.clock, found.memory_clock) == (None, None, None)


def test_a_build_with_handles_alone_tells_what_these_measure(host: Host) -> None:
    stub, backend = built(host, INDICES)
    stub.power(0, 123.5)

    found = backend.usage()[0]

    assert (found.memory_used, found.power, found.temperature) == (1129 * MIB, 123.5, 36)
    assert (found.clock, found.memory_clock, found.ecc_errors) == (1.45e9, 1.6e9, {})


def test_what_no_sensor_can_show_is_no_figure(stub: EfmlStub, backend: EnflameBackend) -> None:
    stub.temperature(0, float("nan"), -273)
    stub.power(0, float("inf"))
    stub.utilization(0, float("nan"))
    stub.utilization(1, 250)

    first, second = backend.usage()[:2]

    assert (first.temperature, first.memory_temperature) == (None, None)
    assert (first.power, first.utilization) == (None, None)
    assert second.utilization == 1.0


def test_memory_in_use_is_at_most_the_cards(stub: EfmlStub, backend: EnflameBackend) -> None:
    stub.memory(0, 42976, used=50000)

    assert backend.usage()[0].memory_used == 42976 * MIB


def test_a_card_that_became_unreachable_is_left_out_and_hides_no_other(
    stub: EfmlStub, backend: EnflameBackend
) -> None:
    stub.run_process(0, 4711, GIB)
    stub.run_process(1, 4712, GIB)
    stub.lose(0)

    assert [it.uuid for it in backend.usage()] == [uuid(slot) for slot in range(1, 8)]
    assert backend.processes() == [ProcessUsage(uuid(1), 4712, GIB)]


# Processes


def test_a_process_is_listed_with_its_memory_and_its_compute(stub: EfmlStub, backend: EnflameBackend) -> None:
    stub.run_process(0, 4711, GIB, 40)
    stub.run_process(1, 4711, 2 * GIB)

    assert backend.processes() == [
        ProcessUsage(CARD, 4711, GIB, 0.4),
        ProcessUsage(uuid(1), 4711, 2 * GIB),
    ]


def test_a_process_on_a_slice_of_the_hardware_is_listed_for_the_card(
    stub: EfmlStub, backend: EnflameBackend
) -> None:
    stub.make_instance(0)
    stub.run_process(0, 4711, GIB)

    assert backend.processes() == [ProcessUsage(CARD, 4711, GIB)]


def test_compute_that_was_measured_once_is_told_once(stub: EfmlStub, backend: EnflameBackend) -> None:
    stub.run_process(0, 4711, GIB, 40)
    stub.sampled_at(1000)

    assert [it.utilization for it in (*backend.processes(), *backend.processes())] == [0.4, None]
    stub.sampled_at(500)  # the driver was loaded anew
    assert [it.utilization for it in backend.processes()] == [0.4]


def test_more_compute_than_there_is_is_unknown(stub: EfmlStub, backend: EnflameBackend) -> None:
    stub.run_process(0, 4711, GIB, 101)

    assert backend.processes() == [ProcessUsage(CARD, 4711, GIB)]


def test_compute_that_cannot_be_read_hides_no_memory(stub: EfmlStub, backend: EnflameBackend) -> None:
    stub.run_process(0, 4711, GIB, 40)
    stub.fail("efmlDeviceGetProcessUtilization", HandleCode.UNKNOWN)

    assert backend.processes() == [ProcessUsage(CARD, 4711, GIB)]


def test_more_memory_than_the_card_has_is_unknown(stub: EfmlStub, backend: EnflameBackend) -> None:
    stub.run_process(0, 4711, (1 << 64) - 1)

    assert backend.processes() == [ProcessUsage(CARD, 4711)]


def test_a_process_without_a_number_is_none(stub: EfmlStub, backend: EnflameBackend) -> None:
    stub.run_process(0, 0, GIB)

    assert backend.processes() == []


def test_a_long_list_of_processes_is_listed_whole(stub: EfmlStub, backend: EnflameBackend) -> None:
    stub.run_process(0, 1000, MIB, count=10_000)

    found = backend.processes()

    assert [it.pid for it in found] == list(range(1000, 11_000))
    assert {it.memory for it in found} == {MIB}


# Without the list of the handle family

WITHOUT_BYTES = [[RUNNING], [HANDLES], [NEWER]]


@pytest.mark.parametrize("without", WITHOUT_BYTES)
def test_memory_in_an_unpublished_unit_is_told_once_it_can_only_be_bytes(
    host: Host, without: list[str]
) -> None:
    stub, backend = built(host, *without)
    stub.memory(0, 42976, used=6400)
    stub.memory(1, 42976, used=6400)
    stub.run_process(0, 4711, 50 * MIB)

    before = backend.processes()
    stub.run_process(1, 4712, 100 * MIB)
    backend.processes()

    assert before == [ProcessUsage(CARD, 4711)]
    assert backend.processes() == [
        ProcessUsage(CARD, 4711, 50 * MIB),
        ProcessUsage(uuid(1), 4712, 100 * MIB),
    ]


@pytest.mark.parametrize("unit", [1 << 10, 1 << 20], ids=["KiB", "MiB"])
def test_memory_that_is_not_counted_in_bytes_is_never_told(host: Host, unit: int) -> None:
    stub, backend = built(host, RUNNING)
    stub.process_unit(unit)
    stub.memory(0, 42976, used=42976)
    for number in range(4):  # together they share the card's memory four times
        stub.run_process(0, 4711 + number, 42976 * MIB)

    backend.processes()

    assert backend.processes() == [ProcessUsage(CARD, 4711 + number) for number in range(4)]


def test_garbage_proves_no_unit(host: Host) -> None:
    stub, backend = built(host, RUNNING)
    stub.run_process(0, 4711, (1 << 64) - 1)
    stub.run_process(0, 4712, 100)

    backend.processes()

    assert backend.processes() == [ProcessUsage(CARD, 4711), ProcessUsage(CARD, 4712)]


def test_more_processes_than_the_library_has_room_for_are_as_many_as_it_writes(host: Host) -> None:
    stub, backend = built(host, RUNNING)
    stub.run_process(0, 1000, GIB, count=10_000)

    assert [it.pid for it in backend.processes()] == list(range(1000, 1064))


def test_a_build_without_lists_of_processes_does_not_say_that_there_are_none(host: Host) -> None:
    _, backend = built(host, PROCESSES)

    with pytest.raises(EfmlError, match="function not found"):
        backend.processes()


def test_without_a_library_nobody_says_that_there_are_no_processes(host: Host) -> None:
    backend = host.backend(library="/nowhere/libefml.so")
    backend.open()

    assert backend.usage() == ()
    with pytest.raises(BackendUnavailable):
        backend.processes()


def test_one_card_that_cannot_list_its_processes_hides_no_other(
    stub: EfmlStub, backend: EnflameBackend
) -> None:
    stub.run_process(0, 4711, GIB)
    stub.run_process(1, 4712, GIB)
    stub.fail("efmlDeviceGetComputeRunningProcesses_v3", HandleCode.UNKNOWN, slot=0)

    assert backend.processes() == [ProcessUsage(uuid(1), 4712, GIB)]


def test_a_process_that_registers_is_listed_until_it_leaves(stub: EfmlStub, backend: EnflameBackend) -> None:
    stub.register(4711, uuid(1), GIB, 50)

    found = backend.processes()
    stub.unregister(4711)

    assert found == [ProcessUsage(uuid(1), 4711, GIB, 0.5)]
    assert backend.processes() == []


# The library


def test_the_library_has_one_caller() -> None:
    """ "EFML has had some thread safety bugs" (DeepEP)."""
    assert EnflameBackend.one_caller


def test_a_figure_that_hangs_is_for_the_agent_to_end(backend: EnflameBackend, stub: EfmlStub) -> None:
    """The library has one caller: a call that does not come back costs the process, which is replaced."""
    stub.trace()
    stub.hang("EfmlGetDevPwr")
    thread = threading.Thread(target=backend.usage, daemon=True)
    thread.start()
    stub.await_calls("EfmlGetDevPwr", 1)
    assert thread.is_alive()
    stub.clear()
    thread.join(60)

    assert not thread.is_alive()
    assert len(backend.usage()) == 8
