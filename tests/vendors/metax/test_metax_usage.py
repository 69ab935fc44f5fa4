"""How much of MetaX's cards and slices is in use, and by which processes: what is unknown is None."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from metax_host import MIB, Host, asked, claim
from mxsml_stub import PROCESSES, PROCESSES_V2, PROCESSES_V3, USAGE, MxsmlStub
from support.card_users import card_user

from agent.vendor_api.agent import BackendUnavailable, ProcessUsage, Usage
from agent.vendors.metax.child.abi import Code
from agent.vendors.metax.child.backend import MetaxBackend
from agent.vendors.metax.child.library import MxsmlError

pytest_plugins = ["mxsml_fixtures", "metax_fixtures"]

GIB = 1 << 30
CARD = MxsmlStub.uuid(0)
#: Card 0 as `busy` scripts it.
FIGURES = Usage(
    CARD,
    memory_used=20 * GIB,
    memory_total=64 * GIB,
    utilization=0.4,
    encoder_utilization=0.1,
    decoder_utilization=0.2,
    power=123.456,
    temperature=61.5,
    memory_temperature=70.0,
    clock=1.6e9,
    memory_clock=1.8e9,
    ecc_errors={"corrected": 3, "uncorrected": 7},
)


def of(uuid: str, usages: object) -> Usage:
    assert isinstance(usages, list)
    (found,) = (it for it in usages if it.uuid == uuid)
    assert isinstance(found, Usage)
    return found


@pytest.fixture
def busy(stub: MxsmlStub) -> MxsmlStub:
    stub.memory(0, 65536, used=20480)
    stub.utilization(0, 40, encoder=10, decoder=20)
    stub.power(0, 123456)
    stub.temperature(0, 61.5, hbm=70)
    stub.clocks(0, 1600, 1800)
    stub.ecc(0, corrected=(1, 2), sram=3, dram=4)
    return stub


# Cards


def test_the_use_of_a_card_is_what_the_library_measures(busy: MxsmlStub, native: MetaxBackend) -> None:
    usages = native.usage()

    assert usages[0] == FIGURES
    assert [it.uuid for it in usages] == [busy.uuid(slot) for slot in range(8)]


#: A function to the figures that fail with the function.
FIGURES_OF: dict[str, dict[str, Any]] = {
    "GetMemoryInfo": {"memory_used": None, "memory_total": None},
    "GetDeviceIpUsage": {"utilization": None, "encoder_utilization": None, "decoder_utilization": None},
    "GetBoardPowerInfo": {"power": None},
    "GetTemperatureInfo": {"temperature": None, "memory_temperature": None},
    "GetClocks": {"clock": None, "memory_clock": None},
    "GetTotalEccErrors": {"ecc_errors": {}},
}


@pytest.mark.parametrize("code", [Code.SYSFS_ERROR, Code.OPERATION_NOT_SUPPORT])
@pytest.mark.parametrize("function", FIGURES_OF)
def test_a_figure_that_fails_loses_that_figure_alone(
    busy: MxsmlStub, native: MetaxBackend, function: str, code: Code
) -> None:
    busy.fail(function, code, slot=0)

    found = native.usage()[0]

    assert {name: getattr(found, name) for name in FIGURES_OF[function]} == FIGURES_OF[function]
    others = {it.name for it in fields(Usage)} - set(FIGURES_OF[function])
    assert {name: getattr(found, name) for name in others} == {
        name: getattr(FIGURES, name) for name in others
    }


def test_a_build_without_these_functions_tells_the_memory_and_the_compute(tmp_path: Path, host: Host) -> None:
    stub = MxsmlStub(host.stub.control.parent, without=[USAGE])
    backend = host.backend(**stub.settings)
    backend.open()
    backend.discover()

    found = backend.usage()[0]

    assert (found.memory_used, found.memory_total, found.utilization) == (858 * MIB, 64 * GIB, 0.0)
    assert (found.power, found.temperature, found.clock) == (None, None, None)


def test_the_figures_of_a_card_with_two_dies_are_those_of_both(host: Host, busy: MxsmlStub) -> None:
    busy.dies(0)
    busy.ecc(0, die=1, dram=5)
    backend = host.backend()
    backend.open()
    backend.discover()

    found = backend.usage()[0]

    assert (found.memory_used, found.memory_total, found.utilization) == (20 * GIB, 64 * GIB, 0.4)
    assert found.temperature == 62.5  # the hotter die
    assert found.ecc_errors == {"corrected": 3, "uncorrected": 12}


def test_a_part_of_the_dies_is_no_figure_of_the_card(host: Host, busy: MxsmlStub) -> None:
    busy.dies(0)
    backend = host.backend()
    backend.open()
    backend.discover()
    busy.fail("GetDieMemoryInfo", Code.INVALID_DIE_ID, slot=0)
    busy.fail("GetDieIpUsage", Code.INVALID_DIE_ID, slot=0)

    found = backend.usage()[0]

    assert (found.memory_used, found.utilization, found.temperature) == (None, None, 62.5)


def test_what_no_sensor_can_show_is_no_figure(stub: MxsmlStub, native: MetaxBackend) -> None:
    stub.temperature(0, -273.15)
    stub.power(0, 0xFFFFFFFF)
    stub.clocks(0, 0xFFFFFFFF, 1800)
    stub.utilization(0, 250)

    found = native.usage()[0]

    assert (found.temperature, found.power, found.clock) == (None, None, None)
    assert (found.utilization, found.memory_clock) == (1.0, 1.8e9)


def test_memory_in_use_is_at_most_the_cards(stub: MxsmlStub, native: MetaxBackend) -> None:
    stub.memory(0, 65536, used=70000)
    stub.memory(1, 65536, used=-5)

    usages = native.usage()

    assert [it.memory_used for it in usages[:2]] == [64 * GIB, 0]


def test_a_card_that_became_unreachable_is_left_out_and_hides_no_other(
    stub: MxsmlStub, native: MetaxBackend
) -> None:
    stub.use(1, 4711, GIB)
    stub.lose(0)

    assert [it.uuid for it in native.usage()] == [stub.uuid(slot) for slot in range(1, 8)]
    assert native.processes() == [ProcessUsage(stub.uuid(1), 4711, GIB)]


# Slices


def test_a_slice_has_figures_of_its_own_by_the_id_of_its_partition(
    stub: MxsmlStub, sgpu: MetaxBackend
) -> None:
    [made] = sgpu.prepare(asked(claim()), [CARD])
    stub.use(0, 4711, 300 * MIB, sgpu=0)
    stub.slice_utilization(0, 0, 12.5)

    found = of(made.id, sgpu.usage())

    assert found == Usage(made.id, memory_used=300 * MIB, memory_total=GIB, utilization=0.125, parent=CARD)


def test_the_use_of_slices_that_cannot_be_read_is_left_out(stub: MxsmlStub, sgpu: MetaxBackend) -> None:
    stub.make_slice(0, 1024, 10)
    stub.fail("GetSgpuInfo", Code.SYSFS_ERROR, slot=0)

    assert [it.uuid for it in sgpu.usage()] == [stub.uuid(slot) for slot in range(8)]


def test_a_process_on_a_slice_is_listed_for_the_slice(stub: MxsmlStub, sgpu: MetaxBackend) -> None:
    first, second = (stub.make_slice(0, 1024, 10) for _ in range(2))
    stub.use(0, 4711, 300 * MIB, sgpu=first.id)
    stub.use(0, 4711, 200 * MIB, sgpu=second.id)
    stub.use(0, 4712, 100 * MIB)

    assert sorted(sgpu.processes(), key=lambda it: it.memory or 0) == [
        ProcessUsage(CARD, 4712, 100 * MIB),
        ProcessUsage(second.uuid, 4711, 200 * MIB),
        ProcessUsage(first.uuid, 4711, 300 * MIB),
    ]
    assert {it.id for it in sgpu.partitions()} == {first.uuid, second.uuid}


def test_a_process_on_a_slice_that_cannot_be_named_is_listed_for_the_card(
    stub: MxsmlStub, sgpu: MetaxBackend
) -> None:
    made = stub.make_slice(0, 1024, 10)
    stub.use(0, 4711, 300 * MIB, sgpu=made.id)
    stub.fail("GetSgpuInfo", Code.SYSFS_ERROR, slot=0)

    assert sgpu.processes() == [ProcessUsage(CARD, 4711, 300 * MIB)]


def test_where_sysfs_is_read_only_everything_is_told_nevertheless(host: Host, stub: MxsmlStub) -> None:
    made = stub.make_slice(0, 1024, 10)
    stub.use(0, 4711, 300 * MIB, sgpu=made.id)
    stub.read_only()
    backend = host.backend(mode="sgpu")
    backend.open()
    backend.discover()
    before = stub.hardware().text()

    assert of(made.uuid, backend.usage()).memory_used == 300 * MIB
    assert backend.processes() == [ProcessUsage(made.uuid, 4711, 300 * MIB)]
    assert stub.hardware().text() == before


# Processes


def test_a_process_on_two_cards_is_listed_for_each_of_them(stub: MxsmlStub, native: MetaxBackend) -> None:
    stub.use(0, 4711, GIB)
    stub.use(1, 4711, 2 * GIB)

    assert native.processes() == [ProcessUsage(CARD, 4711, GIB), ProcessUsage(stub.uuid(1), 4711, 2 * GIB)]


def test_a_process_has_the_memory_of_all_dies(host: Host, stub: MxsmlStub) -> None:
    stub.dies(0)
    stub.use(0, 4711, GIB)
    backend = host.backend()
    backend.open()
    backend.discover()

    assert backend.processes() == [ProcessUsage(CARD, 4711, GIB)]


def test_the_cards_of_a_virtualised_host_are_told_apart_by_their_addresses(
    host: Host, stub: MxsmlStub
) -> None:
    for slot in range(8):
        stub.physical(slot)
    stub.use(3, 4711, GIB)
    backend = host.backend(mode="vgpu")
    backend.open()
    backend.discover()

    assert backend.processes() == [ProcessUsage(stub.uuid(3), 4711, GIB)]


@pytest.mark.parametrize("without", [[PROCESSES_V3], [PROCESSES_V2, PROCESSES_V3]])
def test_an_older_list_of_processes_tells_the_card_and_no_slices(host: Host, without: list[str]) -> None:
    stub = MxsmlStub(host.stub.control.parent, without=without)
    made = stub.make_slice(0, 1024, 10)
    stub.use(0, 4711, 300 * MIB, sgpu=made.id)
    stub.use(1, 4712, GIB)
    backend = host.backend(**stub.settings)
    backend.open()
    backend.discover()

    assert backend.processes() == [
        ProcessUsage(CARD, 4711, 300 * MIB),
        ProcessUsage(stub.uuid(1), 4712, GIB),
    ]


def test_a_card_that_does_not_support_the_newest_list_is_asked_for_an_older_one(
    stub: MxsmlStub, native: MetaxBackend
) -> None:
    stub.use(0, 4711, GIB)
    stub.fail("GetSingleGpuProcess_v3", Code.OPERATION_NOT_SUPPORT)

    assert native.processes() == [ProcessUsage(CARD, 4711, GIB)]


def test_a_build_without_lists_of_processes_does_not_say_that_there_are_none(host: Host) -> None:
    stub = MxsmlStub(host.stub.control.parent, without=[PROCESSES])
    backend = host.backend(**stub.settings)
    backend.open()
    backend.discover()

    with pytest.raises(MxsmlError, match="no such function"):
        backend.processes()


def test_without_a_library_nobody_says_that_there_are_no_processes(host: Host) -> None:
    backend = host.backend(library="/nowhere/libmxsml.so")
    backend.open()

    assert backend.usage() == ()
    with pytest.raises(BackendUnavailable):
        backend.processes()


def test_one_card_that_cannot_list_its_processes_hides_no_other(
    stub: MxsmlStub, native: MetaxBackend
) -> None:
    stub.use(0, 4711, GIB)
    stub.use(1, 4712, GIB)
    stub.fail("GetSingleGpuProcess_v3", Code.SYSFS_ERROR, slot=0)

    assert native.processes() == [ProcessUsage(stub.uuid(1), 4712, GIB)]


def _refuse(stub: MxsmlStub) -> None:
    stub.refuse_long_lists()


@pytest.mark.parametrize("long_lists", [lambda stub: None, _refuse], ids=["cut", "refused"])
@pytest.mark.parametrize("count", [127, 128, 10_000])
def test_a_long_list_of_processes_is_listed_whole(
    stub: MxsmlStub, native: MetaxBackend, count: int, long_lists: Callable[[MxsmlStub], None]
) -> None:
    long_lists(stub)
    stub.use(0, 1000, MIB, count=count)

    found = native.processes()

    assert [it.pid for it in found] == list(range(1000, 1000 + count))
    assert {it.memory for it in found} == {MIB}


def test_more_memory_than_the_card_has_is_unknown(stub: MxsmlStub, native: MetaxBackend) -> None:
    stub.use(0, 4711, (1 << 64) - 1)
    stub.use(0, 4712, 65 * GIB)

    assert native.processes() == [ProcessUsage(CARD, 4711), ProcessUsage(CARD, 4712)]


def test_a_process_without_a_number_is_none(stub: MxsmlStub, native: MetaxBackend) -> None:
    stub.use(0, 0, GIB)

    assert native.processes() == []


def test_a_process_that_registers_is_listed_until_it_leaves(stub: MxsmlStub, sgpu: MetaxBackend) -> None:
    made = stub.make_slice(2, 1024, 10)
    stub.register(4711, stub.uuid(1), GIB, 50)
    stub.register(4712, made.uuid, 200 * MIB)
    stub.register(4713, stub.uuid(3), None)

    found = sgpu.processes()
    for pid in (4711, 4712, 4713):
        stub.unregister(pid)

    assert found == [
        ProcessUsage(stub.uuid(1), 4711, GIB),
        ProcessUsage(made.uuid, 4712, 200 * MIB),
        ProcessUsage(stub.uuid(3), 4713),
    ]
    assert sgpu.processes() == []


# The library


def test_the_library_has_one_caller() -> None:
    """MXSML does not say that its functions may be called by several threads."""
    assert MetaxBackend.one_caller


def test_a_figure_that_hangs_is_for_the_agent_to_end(native: MetaxBackend, stub: MxsmlStub) -> None:
    """The library has one caller: a call that does not come back costs the process, which is replaced."""
    stub.trace()
    stub.hang("GetBoardPowerInfo")
    thread = threading.Thread(target=native.usage, daemon=True)
    thread.start()
    stub.await_calls("GetBoardPowerInfo", 1)
    assert thread.is_alive()
    stub.clear()
    thread.join(60)

    assert not thread.is_alive()
    assert len(native.usage()) == 8


def test_a_process_that_locks_its_claim_is_listed_by_the_pid_that_the_kernel_knows(
    stub: MxsmlStub, native: MetaxBackend
) -> None:
    with card_user(Path(f"{stub.control}.processes"), f"{stub.uuid(1)} {GIB}\n") as pid:
        assert native.processes() == [ProcessUsage(stub.uuid(1), pid, GIB)]

    assert native.processes() == []
