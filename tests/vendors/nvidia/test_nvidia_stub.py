"""The stub keeps NVML's ABI: its layouts are pynvml's, and strict compilers have nothing to say."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nvml_stub
import pynvml
import pytest
from nvml_stub import NVML, Mig, NvmlStub, Process
from support import scripted_libraries

from agent.vendors.nvidia.child.backend import NvmlBackend

pytest_plugins = ["nvml_fixtures"]

RECORDED: Mapping[str, Any] = json.loads((Path(__file__).parent / "recorded_driver.json").read_text())

STRUCTS = (
    "nvmlPciInfo_t",
    "c_nvmlMemory_t",
    "c_nvmlMemory_v2_t",
    "c_nvmlEventData_t",
    "c_nvmlFieldValue_t",
    "c_nvmlUtilization_t",
    "c_nvmlProcessInfo_v3_t",
    "c_nvmlProcessUtilizationSample_t",
    "c_nvmlGpmSupport_t",
    "c_nvmlGpmMetric_t",
    "c_nvmlGpmMetricsGet_t",
    "c_nvmlDeviceAttributes",
    "c_nvmlGpuInstanceInfo_t",
    "c_nvmlComputeInstanceInfo_t",
    "c_nvmlGpuInstanceProfileInfo_t",
    "c_nvmlGpuInstanceProfileInfo_v2_t",
    "c_nvmlComputeInstanceProfileInfo_t",
    "c_nvmlComputeInstanceProfileInfo_v2_t",
    "c_nvmlGpuFabricInfo_t",
    "c_nvmlGpuFabricInfo_v2_t",
    "c_nvmlGpuFabricInfo_v3_t",
)


@pytest.mark.parametrize("name", STRUCTS)
def test_a_struct_is_as_large_as_pynvmls(stub: NvmlStub, name: str) -> None:
    sizeof = ctypes.CDLL(str(stub.library)).nvml_stub_sizeof
    sizeof.restype = ctypes.c_size_t

    assert sizeof(name.encode()) == ctypes.sizeof(getattr(pynvml, name))


def test_a_missing_compiler_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(scripted_libraries.NoCompiler, match="no 'cc' on PATH"):
        NVML.compile(tmp_path / "never.so")


def test_only_nvml_is_exported(stub: NvmlStub) -> None:
    library = ctypes.CDLL(str(stub.library))

    assert not hasattr(library, "refresh")
    assert hasattr(library, "nvmlInit_v2")


def test_an_event_is_given_once_to_each_set_that_was_there(backend: NvmlBackend, stub: NvmlStub) -> None:
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    first, second = pynvml.nvmlEventSetCreate(), pynvml.nvmlEventSetCreate()
    for events in (first, second):
        pynvml.nvmlDeviceRegisterEvents(handle, nvml_stub.XID, events)
    stub.xid(0, 79)
    late = pynvml.nvmlEventSetCreate()
    pynvml.nvmlDeviceRegisterEvents(handle, nvml_stub.XID, late)

    assert [pynvml.nvmlEventSetWait(events, 1000).eventData for events in (first, second)] == [79, 79]
    for events in (first, second, late):
        with pytest.raises(pynvml.NVMLError_Timeout):
            pynvml.nvmlEventSetWait(events, 0)
        pynvml.nvmlEventSetFree(events)


def test_the_mig_devices_are_those_of_the_recordings(backend: NvmlBackend, stub: NvmlStub) -> None:
    uuids = stub.mig(1)
    card = pynvml.nvmlDeviceGetHandleByIndex(1)
    handles = [pynvml.nvmlDeviceGetMigDeviceHandleByIndex(card, number) for number in range(3)]

    assert pynvml.nvmlDeviceGetMaxMigDeviceCount(card) == 7
    assert tuple(pynvml.nvmlDeviceGetUUID(handle) for handle in handles) == uuids
    assert uuids[2] == "MIG-00000000-0000-0000-0002-000000000001"
    assert [pynvml.nvmlDeviceGetGpuInstanceId(handle) for handle in handles] == [7, 8, 9]
    assert [pynvml.nvmlDeviceGetComputeInstanceId(handle) for handle in handles] == [0, 0, 0]
    for handle in handles:
        has = pynvml.nvmlDeviceGetAttributes_v2(handle)
        assert (has.multiprocessorCount, has.sharedCopyEngineCount, has.memorySizeMB) == (16, 1, 9984)
        instance = pynvml.nvmlDeviceGetGpuInstanceById(card, pynvml.nvmlDeviceGetGpuInstanceId(handle))
        assert pynvml.nvmlGpuInstanceGetInfo(instance).profileId == 19


def test_cards_can_do_mig_and_do_not(backend: NvmlBackend) -> None:
    card = pynvml.nvmlDeviceGetHandleByIndex(0)

    assert pynvml.nvmlDeviceGetMigMode(card) == [0, 0]
    assert pynvml.nvmlDeviceGetMaxMigDeviceCount(card) == 0


def test_a_compute_instance_knows_its_profile_its_gpu_instance_and_its_card(
    backend: NvmlBackend, stub: NvmlStub
) -> None:
    [uuid] = stub.mig(0, [Mig("1c.2g.20gb", gi=3, ci=1)])
    mig = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    card = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(mig)
    gpu_instance = pynvml.nvmlDeviceGetGpuInstanceById(card, 3)
    compute_instance = pynvml.nvmlGpuInstanceGetComputeInstanceById(gpu_instance, 1)

    profile = pynvml.nvmlComputeInstanceGetInfo(compute_instance).profileId

    offered = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(gpu_instance, 0, 0)
    assert (offered.id, offered.sliceCount) == (profile, 1)
    assert pynvml.nvmlDeviceGetGpuInstanceProfileInfo(card, 1).id == 14
    assert pynvml.nvmlDeviceGetName(mig) == "NVIDIA H100 80GB HBM3 MIG 1c.2g.20gb"


def test_a_mig_device_can_not_be_registered_for_events(backend: NvmlBackend, stub: NvmlStub) -> None:
    [uuid] = stub.mig(0, [Mig()])
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    events = pynvml.nvmlEventSetCreate()

    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceRegisterEvents(handle, nvml_stub.XID, events)
    pynvml.nvmlEventSetFree(events)


def test_a_mig_device_keeps_its_uuid_until_another_takes_its_place(stub: NvmlStub) -> None:
    first = stub.mig(0, [Mig(gi=7), Mig(gi=8)])
    second = stub.mig(0, [Mig(gi=7), Mig("2g.20gb", gi=5)])

    assert second[0] == first[0]
    assert second[1] != first[1]


def test_links_can_be_set_by_pair_and_to_a_switch(backend: NvmlBackend, stub: NvmlStub) -> None:
    stub.nvlinks(0, 2, 2)
    stub.nvswitch(0, 1)
    card = pynvml.nvmlDeviceGetHandleByIndex(0)

    up = [pynvml.nvmlDeviceGetNvLinkState(card, number) for number in range(4)]
    kinds = [pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(card, number) for number in range(3)]
    far = [pynvml.nvmlDeviceGetNvLinkRemotePciInfo(card, number).busId for number in range(3)]

    assert (up, kinds) == ([1, 1, 1, 0], [0, 0, 2])
    assert far == ["00000000:12:00.0", "00000000:12:00.0", "00000000:F0:00.0"]


# Processes and their use


def pids(card: Any, kind: str) -> list[int]:
    return [it.pid for it in getattr(pynvml, f"nvmlDeviceGet{kind}RunningProcesses_v3")(card)]


def asked(symbol: str, *arguments: Any) -> tuple[int, int]:
    """The code of a call that has no room for its list, and the room that the call wants."""
    number = ctypes.c_uint(0)
    given = [ctypes.byref(number) if it is ... else it for it in arguments]
    return getattr(pynvml.nvmlLib, symbol)(pynvml.nvmlDeviceGetHandleByIndex(0), *given), number.value


def test_processes_are_in_the_lists_that_the_script_names(backend: NvmlBackend, stub: NvmlStub) -> None:
    stub.processes(0, Process(1, 5, "c"), Process(2, None, "g"), Process(3, 7, "cm"))
    card, other = (pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(2))

    assert (pids(card, "Compute"), pids(card, "Graphics"), pids(card, "MPSCompute")) == ([1, 3], [2], [3])
    assert pids(other, "Compute") == []
    told = pynvml.nvmlDeviceGetComputeRunningProcesses_v2(card)
    assert [(it.usedGpuMemory, it.gpuInstanceId, it.computeInstanceId) for it in told] == [
        (5, nvml_stub.NOWHERE, nvml_stub.NOWHERE),
        (7, nvml_stub.NOWHERE, nvml_stub.NOWHERE),
    ]
    assert pynvml.nvmlDeviceGetGraphicsRunningProcesses(card)[0].usedGpuMemory is None


def test_lists_of_processes_are_asked_for_as_a_real_driver_wants_it(
    backend: NvmlBackend, stub: NvmlStub
) -> None:
    symbols = {"Compute_v3": "ComputeRunningProcesses_v3", "Graphics_v3": "GraphicsRunningProcesses_v3"}
    stub.processes(0, *(Process(it["pid"]) for it in RECORDED["load"]["lists"]["Compute_v3"]["list"]))

    for name, symbol in symbols.items():
        recorded = RECORDED["load"]["lists"][name]
        code, needed = asked(f"nvmlDeviceGet{symbol}", ..., None)
        assert (code, needed) == (recorded["first"], recorded["needed"])
    recorded = RECORDED["load"]["lists"]["ProcessUtilization since 0"]
    code, needed = asked("nvmlDeviceGetProcessUtilization", None, ..., ctypes.c_ulonglong(0))
    assert (code, needed) == (recorded["first"], recorded["needed"])


def test_samples_are_those_newer_than_the_caller_has_seen(backend: NvmlBackend, stub: NvmlStub) -> None:
    stub.processes(0, Process(1, samples=[(10, 1000), (20, 2000)]), Process(2, samples=[30]))
    card = pynvml.nvmlDeviceGetHandleByIndex(0)
    now = int(time.time() * 1e6)

    def told(since: int) -> list[tuple[int, int]]:
        return [(it.pid, it.smUtil) for it in pynvml.nvmlDeviceGetProcessUtilization(card, since)]

    assert (told(0), told(1000)) == ([(1, 10), (1, 20), (2, 30)], [(1, 20), (2, 30)])
    assert pynvml.nvmlDeviceGetProcessUtilization(card, 2000)[0].timeStamp >= now
    with pytest.raises(pynvml.NVMLError_NotFound):
        told(now * 2)


def test_processes_on_a_mig_device_name_their_instances_and_have_no_samples(
    backend: NvmlBackend, stub: NvmlStub
) -> None:
    [uuid] = stub.mig(0, [Mig("1c.2g.20gb", gi=3, ci=1)])
    stub.processes(0, Process(1), number=0)
    card, mig = pynvml.nvmlDeviceGetHandleByIndex(0), pynvml.nvmlDeviceGetHandleByUUID(uuid)

    told = pynvml.nvmlDeviceGetComputeRunningProcesses(mig)
    assert [(it.pid, it.gpuInstanceId, it.computeInstanceId) for it in told] == [(1, 3, 1)]
    for handle in (card, mig):
        with pytest.raises(pynvml.NVMLError_NotSupported):
            pynvml.nvmlDeviceGetUtilizationRates(handle)
        with pytest.raises(pynvml.NVMLError_NotSupported):
            pynvml.nvmlDeviceGetProcessUtilization(handle, 0)


def test_a_process_that_registers_itself_uses_the_card_while_it_lives(
    backend: NvmlBackend, stub: NvmlStub
) -> None:
    [uuid] = stub.mig(1, [Mig()])
    card, mig = pynvml.nvmlDeviceGetHandleByIndex(0), pynvml.nvmlDeviceGetHandleByUUID(uuid)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        stub.register(process.pid, (stub.uuid(0), 5, 30), (uuid, 7, None))
        stub.register(os.getpid(), (stub.uuid(0), None, 80))

        assert {*pids(card, "Compute")} == {process.pid, os.getpid()}
        assert pids(mig, "Compute") == [process.pid]
        used = [pynvml.nvmlDeviceGetMemoryInfo(handle).used for handle in (card, mig)]
        samples = pynvml.nvmlDeviceGetProcessUtilization(card, 0)
        assert (used, {it.pid: it.smUtil for it in samples}) == ([5, 7], {process.pid: 30, os.getpid(): 80})
        assert pynvml.nvmlDeviceGetUtilizationRates(card).gpu == 100
        process.communicate(b"\n")

    assert (pids(card, "Compute"), pids(mig, "Compute")) == ([os.getpid()], [])


def test_gpm_compares_two_samples_of_one_device_in_their_order(backend: NvmlBackend, stub: NvmlStub) -> None:
    stub.gpm(0, 59, 12)
    stub.gpm(1, 1, 1)
    card, other = (pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(2))
    question = pynvml.c_nvmlGpmMetricsGet_t(version=1, numMetrics=3)
    for place, metric in enumerate((2, 5, 400)):
        question.metrics[place].metricId = metric
    first, second, elsewhere, empty = (pynvml.nvmlGpmSampleAlloc() for _ in range(4))
    for handle, sample in ((card, first), (card, second), (other, elsewhere)):
        pynvml.nvmlGpmSampleGet(handle, sample)

    question.sample1, question.sample2 = first, second
    told = pynvml.nvmlGpmMetricsGet(question).metrics[:3]
    assert [(it.nvmlReturn, it.value) for it in told[:2]] == [(0, 59.0), (0, 12.0)]
    assert told[2].nvmlReturn == pynvml.NVML_ERROR_NOT_SUPPORTED
    for pair in ((second, first), (first, first), (first, elsewhere), (empty, first)):
        question.sample1, question.sample2 = pair
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            pynvml.nvmlGpmMetricsGet(question)
    for sample in (first, second, elsewhere, empty):
        pynvml.nvmlGpmSampleFree(sample)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlGpmSampleFree(first)


def test_gpm_is_known_to_the_cards_of_which_the_script_has_figures(
    backend: NvmlBackend, stub: NvmlStub
) -> None:
    stub.gpm(0, 1, 1)
    cards = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(2)]

    assert [pynvml.nvmlGpmQueryDeviceSupport(card).isSupportedDevice for card in cards] == [1, 0]
