"""The stubs of library and tool, and what is loaded from them, one of each for every test."""

from __future__ import annotations

from pathlib import Path

import pytest
from efml_stub import EfmlStub

from agent.vendors.enflame.child import library
from agent.vendors.enflame.child.efsmi import Efsmi
from agent.vendors.enflame.child.library import Efml


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EfmlStub:
    stub = EfmlStub(tmp_path)
    for name, value in stub.environment.items():
        monkeypatch.setenv(name, value)
    return stub


@pytest.fixture
def efml(stub: EfmlStub) -> Efml:
    return library.start(stub.settings)


@pytest.fixture
def tool(stub: EfmlStub) -> Efsmi:
    return Efsmi(str(stub.efsmi))
