"""The stub keeps NVML's ABI: its layouts are pynvml's, and strict compilers have nothing to say."""

from __future__ import annotations

import ctypes
import time
from pathlib import Path

import nvml_stub
import pynvml
import pytest
from nvml_stub import NvmlStub

from agent.vendors.nvidia.backend import NvmlBackend

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
    "c_nvmlDeviceAttributes",
)


@pytest.mark.parametrize("name", STRUCTS)
def test_a_struct_is_as_large_as_pynvmls(stub: NvmlStub, name: str) -> None:
    sizeof = ctypes.CDLL(str(stub.library)).nvml_stub_sizeof
    sizeof.restype = ctypes.c_size_t

    assert sizeof(name.encode()) == ctypes.sizeof(getattr(pynvml, name))


def test_the_stub_compiles_without_a_warning(tmp_path: Path) -> None:
    nvml_stub.compile_stub(tmp_path / "strict.so")  # -Wall -Wextra -Werror

    assert (tmp_path / "strict.so").exists()


def test_a_missing_compiler_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(nvml_stub.NoCompiler, match="no 'cc' on PATH"):
        nvml_stub.compile_stub(tmp_path / "never.so")


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


def test_an_idle_wait_costs_no_processor_time(backend: NvmlBackend, stub: NvmlStub) -> None:
    backend.discover()
    backend.health_events(0.01)
    began = time.process_time()

    backend.health_events(0.5)

    assert time.process_time() - began < 0.1


def test_a_symbol_can_be_slowed(backend: NvmlBackend, stub: NvmlStub) -> None:
    stub.latency("nvmlDeviceGetCount_v2", 0.05)
    began = time.monotonic()

    backend.discover()

    assert time.monotonic() - began >= 0.05


def test_restoring_card_1_leaves_card_12_lost(stub: NvmlStub, backend: NvmlBackend) -> None:
    stub.cards(16)
    backend.discover()
    stub.lose(1)
    stub.lose(12)
    stub.restore(1)

    assert [device.index for device in backend.discover() if device.fault] == [12]
