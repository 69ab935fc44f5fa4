"""The built peers that tests run with: every release in turn, and one API server for all."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TypeVar

import pytest
import pytest_asyncio

from .apiserver import RealApiServer, built_cluster
from .real import BUILD, built_peers

T = TypeVar("T")

LOGS = BUILD.parent / "logs"
#: With workers, one of them has all that needs an API server: it is large, and starts once then.
GROUP = "api-server"


@pytest.hookimpl(tryfirst=True)  # before xdist reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for it in items:
        if isinstance(it, pytest.Function) and "cluster_binary" in it.fixturenames:
            it.add_marker(pytest.mark.xdist_group(GROUP))


@pytest.fixture(params=[path.name for path in built_peers()] or ["peer"])
def binary(request: pytest.FixtureRequest) -> Path:
    path = BUILD / str(request.param)
    return required(
        request,
        "--require-peers",
        path if path.exists() else None,
        "no kubelet peer is built: run `make peers`",
    )


@pytest.fixture(scope="session")
def cluster_binary(request: pytest.FixtureRequest) -> Path:
    return required(request, "--require-peers", built_cluster(), "no cluster is built: run `make peers`")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def api_server(request: pytest.FixtureRequest, cluster_binary: Path) -> AsyncIterator[RealApiServer]:
    """One server for all tests, which keep to namespaces of their own and leave it running.

    Besides the admin there are the users `agent` and `nobody`, without any rights.
    """
    with tempfile.TemporaryDirectory(prefix="api-") as directory:
        say(request.config, "starting a kube-apiserver")
        async with RealApiServer(
            cluster_binary, Path(directory), users={"agent": (), "nobody": ()}
        ) as server:
            yield server
        if request.session.testsfailed:
            LOGS.mkdir(parents=True, exist_ok=True)
            say(request.config, f"its log is kept: {shutil.copy(server.log, LOGS)}")


def required(request: pytest.FixtureRequest, option: str, found: T | None, lacking: str) -> T:
    """What is not everywhere: without it the test is skipped, or fails where the option asks for it."""
    if found is None:
        assert not request.config.getoption(option), lacking
        pytest.skip(lacking)
    return found


def say(config: pytest.Config, words: str) -> None:
    """Write a line where the run is followed, past pytest's capture."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    capture = config.pluginmanager.get_plugin("capturemanager")
    if capture is None:
        return
    with capture.global_and_fixture_disabled():
        if reporter is not None:
            reporter.ensure_newline()
            reporter.write_line(words)
        else:  # a worker, whose output is its answers
            print(f"\n{words}", file=sys.stderr, flush=True)  # noqa: T201
