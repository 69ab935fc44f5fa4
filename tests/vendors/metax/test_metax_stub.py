"""The stub keeps MXSML's binary interface and the rules of MetaX's hardware, and does what tests ask."""

from __future__ import annotations

import ctypes
import errno
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mxsml_stub import (
    EVENTS,
    MAX_SLICES,
    PROCESSES,
    PROCESSES_V2,
    PROCESSES_V3,
    REINIT,
    SGPU,
    USAGE,
    MxsmlStub,
)

from agent.vendors.metax.child import abi
from agent.vendors.metax.child.abi import Code, SchedClass
from agent.vendors.metax.child.library import Mxsml, MxsmlError
from agent.vendors.metax.child.values import MxsmlEvent

pytest_plugins = ["mxsml_fixtures"]

ROOT = Path(__file__).parents[3]
STRUCTS = {
    "DeviceInfo": abi.DeviceInfo,
    "DeviceIds": abi.DeviceIds,
    "MemoryInfo": abi.MemoryInfo,
    "Unavailable": abi.UnavailableReasonInfo,
    "Ecc": abi.EccErrorCount,
    "PciEvent": abi.PciEventInfo,
    "Remote": abi.MetaXLinkRemoteInfo,
    "DieRemote": abi.DieMetaXLinkRemoteInfo,
    "SgpuInfo": abi.SgpuInfo,
    "Quota": abi.SgpuAvailableQuota,
    "EventInfo": abi.Event,
    "SgpuMemory": abi.SgpuMemoryInfo,
    "BoardPower": abi.BoardPower,
    "ProcessGpu": abi.ProcessGpu,
    "ProcessGpuV2": abi.ProcessGpuV2,
    "ProcessGpuV3": abi.ProcessGpuV3,
    "ProcessInfo": abi.ProcessInfo,
    "ProcessInfoV2": abi.ProcessInfoV2,
    "ProcessInfoV3": abi.ProcessInfoV3,
}
#: What a build without them lacks.
LACKING = {
    EVENTS: {"EventSetCreate", "DeviceRegisterEvents", "EventSetWait", "EventSetFree"},
    SGPU: {name for name in abi.ARGUMENTS if "Sgpu" in name or "SchedClass" in name},
    REINIT: {"InitWithFlags"},
    USAGE: {
        "GetDieIpUsage",
        "GetTemperatureInfo",
        "GetDieTemperatureInfo",
        "GetBoardPowerInfo",
        "GetClocks",
        "GetSgpuUsage",
        "GetSgpuMemory",
    },
    PROCESSES: {name for name in abi.ARGUMENTS if "GpuProcess" in name},
    PROCESSES_V2: {"GetSingleGpuProcess_v2"},
    PROCESSES_V3: {"GetSingleGpuProcess_v3"},
}


def answer(call: Callable[[], Any]) -> MxsmlError:
    with pytest.raises(MxsmlError) as caught:
        call()
    return caught.value


def in_a_process(stub: MxsmlStub, calls: str) -> subprocess.CompletedProcess[str]:
    """Let another process make calls on `it`, the library."""
    start = f"from agent.vendors.metax.child import library\nit = library.start({stub.settings!r})"
    return stub.run(f"import sys\n{start}\n{calls}")


# The interface


@pytest.mark.parametrize("name", STRUCTS)
def test_a_struct_is_as_large_as_the_agents(stub: MxsmlStub, name: str) -> None:
    sizeof = ctypes.CDLL(str(stub.library)).mxsml_stub_sizeof
    sizeof.restype = ctypes.c_size_t

    assert sizeof(name.encode()) == ctypes.sizeof(STRUCTS[name])


@pytest.mark.parametrize(
    "without",
    [
        (),
        (EVENTS,),
        (SGPU,),
        (REINIT,),
        (EVENTS, SGPU),
        (USAGE,),
        (PROCESSES,),
        (PROCESSES_V3,),
        (PROCESSES_V2, PROCESSES_V3),
    ],
)
def test_a_build_exports_every_function_but_those_it_is_to_lack(
    tmp_path: Path, without: tuple[str, ...]
) -> None:
    mxsml = Mxsml(ctypes.CDLL(str(MxsmlStub(tmp_path, without=without).library)))
    lacking = {name for part in without for name in LACKING[part]}

    assert {name for name in abi.ARGUMENTS if not mxsml.has(name)} == lacking


def test_only_mxsml_is_exported(stub: MxsmlStub) -> None:
    assert not hasattr(ctypes.CDLL(str(stub.library)), "refresh")


# Cards


def test_a_removed_card_is_an_index_that_is_none_until_the_library_looks_anew(
    stub: MxsmlStub, mxsml: Mxsml
) -> None:
    stub.remove(2)
    before = answer(lambda: mxsml.identity(2)).code
    count = mxsml.device_count()
    mxsml.init()

    assert (before, count, mxsml.device_count()) == (Code.INVALID_DEVICE_ID, 8, 7)
    assert mxsml.identity(2).uuid == stub.uuid(3)


def test_a_lost_card_is_counted_and_hides_no_other(stub: MxsmlStub, mxsml: Mxsml) -> None:
    stub.lose(2)
    lost = answer(lambda: mxsml.identity(2))
    other = mxsml.identity(3).uuid
    stub.restore(2)

    assert (lost.code, mxsml.device_count(), other) == (Code.NO_DEVICE, 8, stub.uuid(3))
    assert mxsml.identity(2).uuid == stub.uuid(2)


def test_a_die_that_the_card_has_not_is_refused(stub: MxsmlStub, mxsml: Mxsml) -> None:
    stub.dies(0, 2)

    assert mxsml.memory(0, die=1).total == 32768 * 1024
    assert answer(lambda: mxsml.memory(0, die=2)).code == Code.INVALID_DIE_ID
    assert answer(lambda: mxsml.ecc(1, die=1)).code == Code.INVALID_DIE_ID


def test_a_limited_card_is_told_by_the_calls_for_those_alone(stub: MxsmlStub, mxsml: Mxsml) -> None:
    stub.limited(1)

    assert answer(lambda: mxsml.identity(1)).code == Code.OPERATION_NOT_SUPPORT
    assert mxsml.limited_identity(1).uuid == stub.uuid(1)
    assert answer(lambda: mxsml.limited_identity(0)).code == Code.INVALID_DEVICE_ID


def test_virtual_functions_share_a_cards_memory_and_have_names_of_their_own(
    stub: MxsmlStub, mxsml: Mxsml
) -> None:
    stub.physical(0, functions=4)
    mxsml.init()

    assert mxsml.identity(3).uuid == stub.vf_uuid(0, 3)
    assert mxsml.identity(3).bdf == "0000:20:00.4"
    assert mxsml.memory(3).total * 4 == mxsml.memory(100).total
    assert answer(lambda: mxsml.virtual_devices(3)).code == Code.OPERATION_NOT_SUPPORT


# A failed init


def test_after_an_init_that_failed_no_cards_are_counted(stub: MxsmlStub, mxsml: Mxsml) -> None:
    stub.fail("InitWithFlags", Code.LOAD_DLL_FAILURE)

    answer(mxsml.init)

    assert mxsml.devices() == ()
    assert answer(lambda: mxsml.identity(0)).code == Code.INVALID_DEVICE_ID


def test_without_the_driver_neither_init_nor_a_call_works_until_it_is_loaded_anew(
    stub: MxsmlStub, mxsml: Mxsml
) -> None:
    stub.driver_gone()
    gone = answer(lambda: mxsml.state(0)).code
    init = answer(mxsml.init).code
    stub.driver_reload()
    mxsml.init()

    assert (gone, init) == (Code.NO_DEVICE, Code.LOAD_DLL_FAILURE)
    assert mxsml.state(0)


# Rules of slices


def test_a_slice_needs_the_cards_toggle(mxsml: Mxsml) -> None:
    assert answer(lambda: mxsml.create_sgpu(0, 128, 1)).code == Code.OPERATION_NOT_SUPPORT

    mxsml.set_sgpu_enabled(0, True)

    assert mxsml.create_sgpu(0, 128, 1) == 0


def test_a_card_holds_16_slices(stub: MxsmlStub, mxsml: Mxsml) -> None:
    mxsml.set_sgpu_enabled(0, True)

    made = [mxsml.create_sgpu(0, 128, 1) for _ in range(MAX_SLICES)]

    assert made == list(range(MAX_SLICES))
    assert answer(lambda: mxsml.create_sgpu(0, 128, 1)).errno == errno.ENOSPC


@pytest.mark.parametrize(
    ("vram", "compute", "number"),
    [
        (0, 1, errno.EINVAL),
        (127, 1, errno.EINVAL),
        (129, 1, errno.EINVAL),
        (128, 101, errno.EINVAL),
        (65536, 1, errno.ENOSPC),
        (128, 91, errno.ENOSPC),
    ],
)
def test_a_slice_is_refused_that_is_no_step_or_more_than_what_is_free(
    mxsml: Mxsml, vram: int, compute: int, number: int
) -> None:
    mxsml.set_sgpu_enabled(0, True)
    mxsml.create_sgpu(0, 128, 10)

    error = answer(lambda: mxsml.create_sgpu(0, vram, compute))

    assert (error.code, error.errno) == (Code.SYSFS_WRITE_ERROR, number)
    assert mxsml.sgpu_count(0) == 1


def test_a_slice_in_use_is_not_removed(stub: MxsmlStub, mxsml: Mxsml) -> None:
    mxsml.set_sgpu_enabled(0, True)
    number = mxsml.create_sgpu(0, 1024, 10)
    stub.run_process(0, number)
    busy = answer(lambda: mxsml.remove_sgpu(0, number))
    stub.busy_by_errno()
    by_errno = answer(lambda: mxsml.remove_sgpu(0, number))
    stub.end_processes(0)
    mxsml.remove_sgpu(0, number)

    assert (busy.code, by_errno.code) == (Code.BUSY_DEVICE, Code.SYSFS_WRITE_ERROR)
    assert by_errno.errno == errno.EBUSY
    assert stub.slices() == []


@pytest.mark.parametrize(
    "change",
    [lambda it: it.set_sgpu_enabled(0, False), lambda it: it.set_sched_class(0, SchedClass.FIXED_SHARE)],
    ids=["toggle", "class"],
)
def test_a_card_with_slices_keeps_its_toggle_and_its_scheduling_class(
    stub: MxsmlStub, mxsml: Mxsml, change: Callable[[Mxsml], None]
) -> None:
    stub.make_slice(0, 128, 1)
    refused = answer(lambda: change(mxsml))
    stub.vanish(0, 0)
    change(mxsml)

    assert refused.code == Code.BUSY_DEVICE


def test_setting_the_scheduling_class_that_is_there_is_no_change(stub: MxsmlStub, mxsml: Mxsml) -> None:
    stub.make_slice(0, 128, 1)

    mxsml.set_sched_class(0, SchedClass.BEST_EFFORT)


def test_a_scheduling_class_that_is_none_is_refused(mxsml: Mxsml) -> None:
    assert answer(lambda: mxsml.set_sched_class(0, 3)).errno == errno.EINVAL


def test_slices_and_virtual_functions_exclude_each_other(stub: MxsmlStub, mxsml: Mxsml) -> None:
    stub.physical(0)
    mxsml.init()
    mxsml.set_sgpu_enabled(2, True)

    assert answer(lambda: mxsml.set_sgpu_enabled(0, True)).code == Code.OPERATION_NOT_SUPPORT
    assert answer(lambda: mxsml.set_sgpu_enabled(100, True)).code == Code.OPERATION_NOT_SUPPORT
    with pytest.raises(RuntimeError, match="sGPU toggle is on"):
        stub.physical(1)


def test_the_number_of_a_removed_slice_is_given_again_its_uuid_never(stub: MxsmlStub, mxsml: Mxsml) -> None:
    mxsml.set_sgpu_enabled(0, True)
    first = mxsml.sgpu(0, mxsml.create_sgpu(0, 128, 1))
    mxsml.remove_sgpu(0, first.id)
    second = mxsml.sgpu(0, mxsml.create_sgpu(0, 128, 1))

    assert (second.id, second.minor) == (first.id, first.minor)
    assert second.uuid != first.uuid


def test_an_alias_of_more_than_31_bytes_is_refused(stub: MxsmlStub, mxsml: Mxsml) -> None:
    stub.make_slice(0, 128, 1)
    mxsml.set_sgpu_alias(0, 0, "a" * 31)

    assert answer(lambda: mxsml.set_sgpu_alias(0, 0, "b" * 32)).errno == errno.EINVAL
    assert mxsml.sgpu_alias(0, 0) == "a" * 31


WRITES = {
    "SetSgpuToggle": lambda it: it.set_sgpu_enabled(1, True),
    "CreateSgpu": lambda it: it.create_sgpu(0, 128, 1),
    "RemoveSgpu": lambda it: it.remove_sgpu(0, 0),
    "SetDeviceSchedClass": lambda it: it.set_sched_class(1, SchedClass.FIXED_SHARE),
    "SetSgpuAlias": lambda it: it.set_sgpu_alias(0, 0, "mine"),
}


@pytest.mark.parametrize("call", WRITES.values(), ids=WRITES)
def test_every_write_fails_on_a_read_only_sysfs_and_changes_nothing(
    stub: MxsmlStub, mxsml: Mxsml, call: Callable[[Mxsml], Any]
) -> None:
    stub.make_slice(0, 128, 1)
    before = stub.hardware()
    stub.read_only()
    error = answer(lambda: call(mxsml))
    after = stub.hardware()
    stub.writable()
    call(mxsml)

    assert error.read_only
    assert after == before
    assert stub.hardware() != before


# Slices of others


# What outlives what


def test_slices_toggles_classes_and_aliases_outlive_the_process_that_made_them(
    stub: MxsmlStub, mxsml: Mxsml
) -> None:
    made = in_a_process(
        stub,
        "it.set_sgpu_enabled(0, True); it.set_sched_class(0, 2)\n"
        "it.set_sgpu_alias(0, it.create_sgpu(0, 1024, 10), 'xpu-1')",
    )

    assert (made.returncode, made.stderr) == (0, "")
    assert (mxsml.sgpu_enabled(0), mxsml.sched_class(0), mxsml.sgpu_alias(0, 0)) == (True, 2, "xpu-1")


def test_processes_that_make_slices_at_once_get_different_ones(stub: MxsmlStub) -> None:
    stub.enable_sgpu(0)
    loop = "for _ in range(8): it.set_sgpu_alias(0, it.create_sgpu(0, 128, 1), 'a')"
    threads = [threading.Thread(target=in_a_process, args=(stub, loop)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(it.id for it in stub.slices(0)) == list(range(16))
    assert {it.alias for it in stub.slices(0)} == {"a"}
    assert len({it.uuid for it in stub.slices()}) == len({it.minor for it in stub.slices()}) == 16


@pytest.mark.parametrize("happens", [MxsmlStub.driver_reload, MxsmlStub.reboot])
def test_after_a_reload_slices_are_gone_counters_at_0_and_minors_others(
    stub: MxsmlStub, mxsml: Mxsml, happens: Callable[[MxsmlStub], None]
) -> None:
    before = stub.make_slice(0, 1024, 10)
    stub.run_process(0, 0)
    stub.ecc(0, dram=7)
    stub.pci_event(0, abi.PciEventType.DBE, 3)
    happens(stub)
    gone = mxsml.sgpus(0)
    again = stub.make_slice(0, 1024, 10)

    assert (gone, mxsml.ecc(0).dram_uncorrected, mxsml.pci_events(0, abi.PciEventType.DBE)) == ((), 0, ())
    mxsml.remove_sgpu(0, 0)  # nothing uses it
    assert again.uuid != before.uuid
    assert again.minor != before.minor


def test_a_reboot_makes_cards_available_and_a_reload_does_not(stub: MxsmlStub, mxsml: Mxsml) -> None:
    stub.state(0, available=False)
    stub.driver_reload()
    reloaded = mxsml.state(0)
    stub.reboot()

    assert (reloaded, mxsml.state(0)) == (False, True)


# Faults of calls


def test_the_count_of_slices_is_0_on_every_error(stub: MxsmlStub, mxsml: Mxsml) -> None:
    stub.make_slice(0, 128, 1)
    stub.fail("GetSgpuCount", Code.SYSFS_ERROR)

    assert mxsml.sgpu_count(0) == 0
    assert mxsml.sgpu_count(99) == 0
    assert answer(lambda: mxsml.sgpu(99, 0)).code == Code.INVALID_DEVICE_ID


@pytest.mark.parametrize(("when", "left"), [("before", 0), ("after", 1)])
def test_one_process_is_killed_around_the_creation_of_a_slice_and_the_next_goes_on(
    stub: MxsmlStub, when: str, left: int
) -> None:
    stub.enable_sgpu(0)
    getattr(stub, f"kill_{when}")("CreateSgpu")

    calls = "it.set_sgpu_alias(0, it.create_sgpu(0, 1024, 10), 'xpu-1')"
    killed = in_a_process(stub, calls).returncode
    found = [it.alias for it in stub.slices(0)]

    assert (killed, found, stub.killed()) == (-signal.SIGKILL, [""] * left, 1)
    assert in_a_process(stub, calls).returncode == 0
    assert [it.alias for it in stub.slices(0)] == [""] * left + ["xpu-1"]


def test_one_process_is_killed_after_the_removal_of_a_slice(stub: MxsmlStub) -> None:
    stub.make_slice(0, 1024, 10)
    stub.kill_after("RemoveSgpu")

    assert in_a_process(stub, "it.remove_sgpu(0, 0)").returncode == -signal.SIGKILL
    assert stub.slices() == []


# Events


def wait_in_a_thread(mxsml: Mxsml, events: int) -> tuple[threading.Thread, list[MxsmlEvent | MxsmlError]]:
    heard: list[MxsmlEvent | MxsmlError] = []

    def wait() -> None:
        try:
            heard.append(mxsml.wait_for_event(events))
        except MxsmlError as error:
            heard.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread, heard


@pytest.fixture
def events(mxsml: Mxsml) -> int:
    """The event set of card 1."""
    made = mxsml.create_event_set()
    mxsml.register_events(1, made)
    return made


def test_a_wait_for_events_has_no_end_but_an_event(stub: MxsmlStub, mxsml: Mxsml, events: int) -> None:
    stub.trace()
    thread, heard = wait_in_a_thread(mxsml, events)
    stub.await_calls("EventSetWait", 1)
    stub.event(0, "another card's")
    waits = thread.is_alive()
    stub.event(1, "eid 42")
    thread.join(30)

    assert waits
    assert heard == [MxsmlEvent(1, abi.EVENT_EID, "eid 42")]


def test_many_sets_hear_at_once(stub: MxsmlStub, mxsml: Mxsml) -> None:
    waits = []
    for card in mxsml.devices():
        made = mxsml.create_event_set()
        mxsml.register_events(card, made)
        waits.append(wait_in_a_thread(mxsml, made))
    for card in mxsml.devices():
        stub.event(card, f"eid {card}")
    for thread, _ in waits:
        thread.join(30)

    assert [heard for _, heard in waits] == [[MxsmlEvent(card, 1, f"eid {card}")] for card in range(8)]


def test_an_event_is_given_once_to_each_set_that_was_there(stub: MxsmlStub, mxsml: Mxsml) -> None:
    sets = [mxsml.create_event_set() for _ in range(2)]
    for made in sets:
        mxsml.register_events(0, made)
    stub.event(0, "first")
    late = mxsml.create_event_set()
    mxsml.register_events(0, late)
    stub.event(0, "second")

    assert [mxsml.wait_for_event(made).data for made in (*sets, *sets, late)] == [
        "first",
        "first",
        "second",
        "second",
        "second",
    ]


def test_an_event_set_takes_one_card(mxsml: Mxsml, events: int) -> None:
    assert answer(lambda: mxsml.register_events(2, events)).code == Code.INVALID_INPUT


def test_a_set_without_a_card_or_freed_is_not_waited_for(mxsml: Mxsml, events: int) -> None:
    mxsml.free_event_set(events)

    assert answer(lambda: mxsml.wait_for_event(events)).code == Code.FAILURE
    assert answer(lambda: mxsml.free_event_set(events)).code == Code.FAILURE
    assert answer(lambda: mxsml.wait_for_event(mxsml.create_event_set())).code == Code.FAILURE


def test_a_wait_can_fail(stub: MxsmlStub, mxsml: Mxsml, events: int) -> None:
    stub.trace()
    thread, heard = wait_in_a_thread(mxsml, events)
    stub.await_calls("EventSetWait", 1)
    stub.fail("EventSetWait", Code.INVALID_DEVICE_ID)
    thread.join(30)

    [error] = heard
    assert isinstance(error, MxsmlError)
    assert error.gone


def test_a_wait_ends_with_its_node(
    stub: MxsmlStub, mxsml: Mxsml, events: int, tmp_path: Path, monkeypatch: Any
) -> None:
    """Threads that a test leaves behind must not live on in the next."""
    thread, heard = wait_in_a_thread(mxsml, events)
    (tmp_path / "other").mkdir()
    monkeypatch.setenv("XPU_MXSML_STUB", str(MxsmlStub(tmp_path / "other").control))
    mxsml.init()
    thread.join(30)

    [error] = heard
    assert isinstance(error, MxsmlError)
