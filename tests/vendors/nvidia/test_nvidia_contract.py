"""The NVIDIA vendor keeps the contract that all vendors keep, in its own process, on the scripted NVML."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from nvml_stub import NvmlStub, Process

from agent.testing.conformance import check_vendor
from agent.vendors.nvidia.plugin import register_backend

pytest_plugins = ["nvml_fixtures"]

UNKNOWN_ERROR = 999


class NvmlFaults:
    """Breaks the stub for the conformance kit."""

    def __init__(self, stub: NvmlStub) -> None:
        self._stub = stub

    def inject(self, uuid: str) -> None:
        """Not by an XID: one that comes before the card is watched is lost, on hardware too."""
        self._stub.recovery(int(uuid[-12:]), 1)

    def clear(self, uuid: str) -> None:
        self._stub.recovery(int(uuid[-12:]), 0)

    def blind(self) -> None:
        self._stub.wait_error(UNKNOWN_ERROR)

    def sees(self) -> None:
        self._stub.clear("nvmlEventSetWait_v2")

    def absent(self) -> Mapping[str, Any]:
        return {"library": "/nowhere/libnvidia-ml.so.1"}


async def test_the_nvidia_vendor_keeps_the_contract(stub: NvmlStub) -> None:
    stub.used(0, 2 << 30, reserved=1 << 29)
    stub.processes(0, Process(42, 1 << 30, samples=[50]))
    vendor = register_backend(stub.settings)

    findings = [finding async for finding in check_vendor(vendor, NvmlFaults(stub))]

    assert [it for it in findings if it.ok is False] == []
    assert {it.detail for it in findings if it.ok is None} <= {
        "the vendor does not prepare",
        "the backend has no prepare",
        "the backend has no partitions",
        "the backend has no release",
        "the vendor has no annotations and no extended resources",
        "the vendor has no formats",
        "the vendor has no checks of the doctor",
    }
    assert any(it.ok for it in findings)


@pytest.mark.parametrize("strategy", ["none", "single", "mixed"])
async def test_the_contract_is_kept_with_mig_devices_and_cdi_specs(
    stub: NvmlStub, settings: Mapping[str, Any], tmp_path: Path, strategy: str
) -> None:
    stub.cards(2)
    for card in range(2):
        stub.mig(card)
        stub.processes(card, Process(42), number=1)
    stub.write_minors(tmp_path / "proc")
    vendor = register_backend({**settings, "migStrategy": strategy, "deviceListStrategy": "cdi-cri"})

    findings = [finding async for finding in check_vendor(vendor)]

    assert [it for it in findings if it.ok is False] == []
    assert any(it.ok for it in findings)
