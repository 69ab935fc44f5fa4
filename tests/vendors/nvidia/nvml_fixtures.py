"""The stub library and a backend on it, one pair for each test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from nvml_stub import NvmlStub

from agent.vendors.nvidia.child.backend import NvmlBackend


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NvmlStub:
    stub = NvmlStub(tmp_path)
    for name, value in stub.environment.items():
        monkeypatch.setenv(name, value)
    return stub


@pytest.fixture
def settings(stub: NvmlStub, tmp_path: Path) -> Mapping[str, Any]:
    """The stub, and folders of the test's own in place of the machine's: `sys`, `proc` and `driver/dev`."""
    (tmp_path / "driver/dev").mkdir(parents=True)
    folders = {"sysfs": "sys", "procfs": "proc", "containerDriverRoot": "driver"}
    return {**stub.settings, **{name: str(tmp_path / folder) for name, folder in folders.items()}}


@pytest.fixture
def backend(stub: NvmlStub, settings: Mapping[str, Any]) -> Iterator[NvmlBackend]:
    backend = NvmlBackend(settings)
    backend.open()
    yield backend
    stub.clear()
    backend.close()
