"""A host with MetaX's cards and a backend on it, one pair for each test; the stub is of mxsml_fixtures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from metax_host import Host
from mxsml_stub import MxsmlStub

from agent.vendors.metax.child.backend import MetaxBackend


@pytest.fixture
def host(stub: MxsmlStub, tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path, stub)
    yield host
    host.close()


@pytest.fixture
def native(host: Host) -> MetaxBackend:
    return _opened(host.backend())


@pytest.fixture
def sgpu(host: Host) -> MetaxBackend:
    """In mode sgpu, with the cards read once."""
    return _opened(host.backend(mode="sgpu"))


def _opened(backend: MetaxBackend) -> MetaxBackend:
    backend.open()
    backend.discover()
    return backend
