"""The stub library and a backend on it, one pair for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from nvml_stub import NvmlStub

from agent.vendors.nvidia.backend import NvmlBackend


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NvmlStub:
    stub = NvmlStub(tmp_path)
    for name, value in stub.environment.items():
        monkeypatch.setenv(name, value)
    return stub


@pytest.fixture
def backend(stub: NvmlStub, tmp_path: Path) -> Iterator[NvmlBackend]:
    backend = NvmlBackend({**stub.settings, "sysfs": str(tmp_path / "sys")})
    backend.open()
    yield backend
    stub.clear()
    backend.close()
