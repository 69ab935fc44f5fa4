"""The one cluster of all scenarios, a namespace for each, and what is kept of a scenario that fails."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import AsyncIterator, Generator
from pathlib import Path

import pytest
import pytest_asyncio
from peers.conftest import required, say

from . import cluster as clusters
from .cluster import Cluster, Progress
from .place import TOOLS, Place, this_node
from .release import NAMESPACE, Release
from .space import Space

#: A scenario may roll out the agent, restart the kubelet and wait for pods, on two cores.
TIMEOUT = 240
#: Lines of the agent's log that are shown with a scenario that fails: who runs it elsewhere has no files.
SHOWN = 40


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(TIMEOUT))


@pytest.fixture(scope="session")
def place(request: pytest.FixtureRequest) -> Place:
    lacking = "not on a node of its own: run `make cluster-test`"
    return required(request, "--require-realnode", this_node(), lacking)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def cluster(request: pytest.FixtureRequest, place: Place) -> AsyncIterator[Cluster]:
    """One cluster for all scenarios: the one that is up in this node, or one of their own."""
    if clusters.is_up(place):
        yield clusters.joined(place)
        return
    try:
        async with clusters.up(place, Progress(lambda words: say(request.config, words))) as it:
            yield it
    finally:
        if request.session.testsfailed:
            say(request.config, f"logs of the real node are kept in {place.logs}")


@pytest.fixture
async def agent(cluster: Cluster) -> Release:
    """The agent, just installed with the values of this node and no others; nobody has held a card."""
    if not await cluster.agent.is_fresh():
        await cluster.agent.anew()
    return cluster.agent


@pytest.fixture
async def space(cluster: Cluster) -> AsyncIterator[Space]:
    """A namespace for this scenario's pods."""
    async with Space(cluster.api) as it:
        yield it


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    place = this_node()
    if place is not None and report.when in {"setup", "call"} and report.failed:
        kept = keep(place, item.name)
        report.sections.append(("real node", f"pods, events and logs as they were: {kept}"))
        report.sections.append(("the agent's last words", last_words(kept / "pods")))
    return report


def keep(place: Place, scenario: str) -> Path:
    """Keep what there is of the cluster now: its pods and events, and what pods have printed."""
    kept = place.logs / "failed" / scenario
    kept.mkdir(parents=True, exist_ok=True)
    for kind in ("pods", "events", "nodes"):
        command: list[str | Path] = [
            TOOLS / "kubectl",
            f"--kubeconfig={place.kubeconfig}",
            "get",
            kind,
            "-A",
            "-o",
            "wide",
        ]
        # What is kept is worth less than the answer of the scenarios that are still to come.
        with contextlib.suppress(subprocess.TimeoutExpired):
            told = subprocess.run(command, capture_output=True, text=True, timeout=60)
            (kept / f"{kind}.txt").write_text(told.stdout + told.stderr)
    with contextlib.suppress(OSError):  # no container has printed, or logs go while they are copied
        shutil.copytree(place.pod_logs, kept / "pods", dirs_exist_ok=True)
    return kept


def last_words(pod_logs: Path) -> str:
    """The end of the log of the agent that printed last; `pod_logs` has NAMESPACE_POD_UID/CONTAINER/N.log."""
    logs = sorted(pod_logs.glob(f"{NAMESPACE}_*/agent/*.log"), key=lambda it: it.stat().st_mtime)
    if not logs:
        return "no agent has printed"
    lines = logs[-1].read_text(errors="replace").splitlines()
    return "\n".join([str(logs[-1]), *lines[-SHOWN:]])
