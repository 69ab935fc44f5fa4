"""The stub library, and the library loaded from it, one pair for each test."""

from __future__ import annotations

from pathlib import Path

import pytest
from mxsml_stub import MxsmlStub

from agent.vendors.metax.child import library
from agent.vendors.metax.child.library import Mxsml


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MxsmlStub:
    stub = MxsmlStub(tmp_path)
    for name, value in stub.environment.items():
        monkeypatch.setenv(name, value)
    return stub


@pytest.fixture
def mxsml(stub: MxsmlStub) -> Mxsml:
    return library.start(stub.settings)
