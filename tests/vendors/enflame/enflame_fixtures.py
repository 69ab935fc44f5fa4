"""A host with Enflame's cards and a backend on it, one pair for each test; the stub is of efml_fixtures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from efml_stub import EfmlStub
from enflame_host import Host

from agent.vendors.enflame.child.backend import EnflameBackend


@pytest.fixture
def host(stub: EfmlStub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """With time for the tool on a machine that is busy; tests of deadlines set their own."""
    for name in ("MAKING", "LISTING", "DISCOVERING"):
        monkeypatch.setattr(f"agent.vendors.enflame.child.backend.{name}", 60.0)
    host = Host(tmp_path, stub)
    yield host
    host.close()


@pytest.fixture
def backend(host: Host) -> EnflameBackend:
    """With the cards read once."""
    return host.opened()
