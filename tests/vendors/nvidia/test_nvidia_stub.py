"""The stub keeps NVML's ABI: its layouts are pynvml's, and strict compilers have nothing to say."""

from __future__ import annotations

import ctypes
from pathlib import Path

import nvml_stub
import pynvml
import pytest
from nvml_stub import NVML, Mig, NvmlStub
from support import scripted_libraries

from agent.vendors.nvidia.child.backend import NvmlBackend

pytest_plugins = ["nvml_fixtures"]

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
