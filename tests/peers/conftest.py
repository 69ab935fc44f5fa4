"""The built peers that tests run with: every release in turn, and one API server for all."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from .apiserver import RealApiServer, built_cluster
from .real import BUILD, built_peers


@pytest.fixture(params=[path.name for path in built_peers()] or ["peer"])
def binary(request: pytest.FixtureRequest) -> Path:
    path = BUILD / str(request.param)
    if not path.exists():
        words = "no kubelet peer is built: run `make peers`"
        assert not request.config.getoption("--require-peers"), words
        pytest.skip(words)
    return path


@pytest.fixture(scope="session")
def cluster_binary(request: pytest.FixtureRequest) -> Path:
    path = built_cluster()
    if path is None:
        words = "no cluster is built: run `make peers`"
        assert not request.config.getoption("--require-peers"), words
        pytest.skip(words)
    return path


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def api_server(cluster_binary: Path) -> AsyncIterator[RealApiServer]:
    """One server for all tests, which keep to namespaces of their own and leave it running.

    Besides the admin there are the users `agent` and `nobody`, without any rights.
    """
    with tempfile.TemporaryDirectory(prefix="api-") as directory:
        users = {"agent": (), "nobody": ()}
        async with RealApiServer(cluster_binary, Path(directory), users=users) as server:
            yield server
