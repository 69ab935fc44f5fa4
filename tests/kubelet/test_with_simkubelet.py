"""A session with the simulated kubelet, in the ways of every release it knows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace
from support.waiting import eventually

from agent.core.cell import Cell
from agent.core.model import Resource
from agent.kubelet.checkpoint_reader import CheckpointReader
from agent.kubelet.kubelet_directory import KubeletDirectory
from agent.kubelet.pod_resources import PodResources
from agent.kubelet.session import KubeletSession
from agent.testing.kubelet import SimKubelet
from agent.testing.node_kubelet import Capacity, Container, Pod

from .fakes import NAME, QUICK, FakeAnswers, card, resource

RELEASES = ["1.20", "1.25", "1.32", "1.36", "1.37"]


@asynccontextmanager
async def node(path: Path, release: str) -> AsyncIterator[tuple[SimKubelet, KubeletSession, Cell[Resource]]]:
    async with SimKubelet(path, mode=release) as kubelet, anyio.create_task_group() as group:
        directory = KubeletDirectory(kubelet.plugin_dir, inotify_after=0.0)
        cell = Cell(resource(card("a", numa=0, count=2), card("b", numa=1, count=2), card("c")))
        # A kubelet of today ends the new stream with the old one if they follow too soon.
        session = KubeletSession(cell, FakeAnswers(), directory, timing=replace(QUICK, shortest_pause=0.1))
        group.start_soon(directory.run)
        scope, over = anyio.CancelScope(), anyio.Event()

        async def serve() -> None:
            with scope:
                await session.run()
            over.set()

        group.start_soon(serve)
        with anyio.fail_after(30):
            await eventually(lambda: _is_served(kubelet, session))
            yield kubelet, session, cell
        scope.cancel()
        await eventually(lambda: over.is_set())
        group.cancel_scope.cancel()


def _capacity(kubelet: SimKubelet) -> Capacity | None:
    return kubelet.counts().get(NAME)


def _is_served(kubelet: SimKubelet, session: KubeletSession) -> bool:
    """The kubelet counts before the agent has read the answer to Register."""
    return session.status.value.state == "registered" and _capacity(kubelet) == Capacity(5, 5)


@pytest.mark.parametrize("release", RELEASES)
async def test_pods_are_admitted_and_found_again(plugins_dir: Path, release: str) -> None:
    async with node(plugins_dir, release) as (kubelet, _, _):
        pod = Pod("p", (Container({NAME: 2}), Container({NAME: 1}, name="two")))
        assert (await kubelet.admit(pod)).admitted

        held = await kubelet.devices(pod.uid)
        found = await PodResources(kubelet.pod_resources_socket).in_use()
        record = CheckpointReader(kubelet.checkpoint).read()
        assert record is not None
        written = record.entries
        assert found == {("default", "p"): held}
        assert {(one.container, frozenset(one.ids)) for one in written} == {
            (name, resources[NAME]) for name, resources in held.items()
        }
        assert all(one.edits.env["IDS"] for one in written)


@pytest.mark.parametrize("release", RELEASES)
async def test_restarts_are_survived_with_one_registration_each(plugins_dir: Path, release: str) -> None:
    async with node(plugins_dir, release) as (kubelet, session, cell):
        for number in range(3):
            await kubelet.restart()
            await eventually(lambda: _is_served(kubelet, session))
            assert session.status.value.registrations == number + 2
        cell.set(resource(card("a", numa=0, count=2, healthy=False), card("c")))
        await eventually(lambda: _capacity(kubelet) == Capacity(3, 1))


@pytest.mark.parametrize("release", RELEASES)
async def test_a_retired_resource_leaves_nothing_to_allocate(plugins_dir: Path, release: str) -> None:
    async with node(plugins_dir, release) as (kubelet, session, cell):
        cell.set(resource(retired=True))

        await eventually(lambda: session.status.value.state == "ended")
        await eventually(lambda: _capacity(kubelet) in (None, Capacity(0, 0)))


@pytest.mark.parametrize("release", RELEASES)
async def test_a_kubelet_that_starts_as_the_session_tries_to_register_gets_the_name_of_no_removed_socket(
    plugins_dir: Path, release: str
) -> None:
    """A kubelet dials such a socket for 10 s before it refuses the registration."""
    async with node(plugins_dir, release) as (kubelet, session, _):
        registered = _plugin_sockets(kubelet)
        await kubelet.kill()
        while (
            "no process answers" not in session.status.value.reason and _plugin_sockets(kubelet) <= registered
        ):
            await anyio.lowlevel.checkpoint()

        await kubelet.start()  # removes the sockets and listens in one turn of the loop

        await eventually(lambda: _is_served(kubelet, session))
        assert len(kubelet.journal.register_requests) == 2


def _plugin_sockets(kubelet: SimKubelet) -> set[str]:
    return {path.name for path in kubelet.plugin_dir.glob("xpu-*.sock")}
