"""The sessions: what they number, and which life of the kubelet they know for how long."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import anyio
import pytest
from kubelet.conftest import plugins_dir as plugins_dir
from kubelet.fakes import NAME, QUICK, FakeAnswers, FakeKubelet, card, resource
from support.waiting import eventually

from agent.core.cell import Cell
from agent.core.model import Plan, Resource
from agent.core.registration.renewal_rules import Registration
from agent.daemon.node_state import NodeState
from agent.daemon.registration.sessions import Sessions
from agent.kubelet.kubelet_directory import FileIdentity, KubeletDirectory, identify_socket

OLD = FileIdentity(1, 2, 3)


@dataclass
class Planned:
    """The part of a node that sessions see, with one resource that comes and goes."""

    plan: Cell[Plan] = field(default_factory=lambda: Cell[Plan]({}))
    resources: dict[str, Cell[Resource]] = field(default_factory=dict)

    def makes(self, resource: Resource) -> bool:
        return False

    def comes(self) -> None:
        self.resources[NAME] = Cell(resource(card("a")))
        self.plan.set({NAME: self.resources[NAME].value})

    def goes(self) -> None:
        self.resources[NAME].set(replace(self.resources[NAME].value, cards=(), retired=True))

    def ended(self, name: str) -> None:
        del self.resources[name]
        self.plan.set({})


@dataclass
class Bench:
    kubelet: FakeKubelet
    node: Planned
    directory: KubeletDirectory
    now: float = 1.0

    def __post_init__(self) -> None:
        self.sessions = Sessions(
            cast("NodeState", self.node), self.directory, QUICK, lambda: self.now, Cell(False)
        )

    @property
    def life(self) -> str:
        return str(identify_socket(self.kubelet.socket))

    async def registered(self) -> Registration:
        found = await eventually(lambda: self.sessions.registrations().get(NAME))
        assert isinstance(found, Registration)
        return found


@asynccontextmanager
async def running(path: Path) -> AsyncIterator[Bench]:
    """One that looks at the directory only when a session does."""
    directory = KubeletDirectory(path)
    bench = Bench(FakeKubelet(path), Planned(), directory)
    async with bench.kubelet.running(), anyio.create_task_group() as group:
        directory.refresh()
        group.start_soon(bench.sessions.run, FakeAnswers())
        with anyio.fail_after(30):
            yield bench
        group.cancel_scope.cancel()


async def test_a_resource_that_comes_back_begins_with_a_number_and_a_socket_of_its_own(
    plugins_dir: Path,
) -> None:
    async with running(plugins_dir) as bench:
        bench.node.comes()
        first = await bench.registered()
        bench.node.goes()
        await eventually(lambda: not bench.sessions.statuses)

        bench.node.comes()

        assert (await bench.registered()).number > first.number
        assert len({it.endpoint for it in bench.kubelet.requests}) == len(bench.kubelet.requests)


async def test_a_life_of_the_kubelet_is_known_since_its_first_registration_and_no_other_one_is(
    plugins_dir: Path,
) -> None:
    async with running(plugins_dir) as bench:
        old = bench.life
        assert bench.sessions.registered_since(old) is None
        bench.node.comes()
        await eventually(lambda: bench.sessions.registered_since(old) == 1.0)
        bench.now = 2.0
        bench.sessions.renew(NAME)
        await eventually(lambda: len(bench.kubelet.requests) == 2)
        await bench.registered()
        assert bench.sessions.registered_since(old) == 1.0

        bench.kubelet.socket.unlink()
        with socket.socket(socket.AF_UNIX) as another:  # of which nobody has told us yet
            another.bind(str(bench.kubelet.socket))

        assert bench.life != old
        assert bench.sessions.registered_since(bench.life) is None


@pytest.mark.parametrize(
    ("life", "later", "served"),
    [(OLD, 120.0, True), (OLD, 119.0, False), (OLD._replace(inode=3), 120.0, False)],
    ids=["for-long", "not-for-long", "another-life"],
)
def test_the_one_life_of_the_kubelet_has_served_that_has_us_registered_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, life: FileIdentity, later: float, served: bool
) -> None:
    bench = Bench(FakeKubelet(tmp_path), Planned(), KubeletDirectory(tmp_path), 1000.0 + later)
    monkeypatch.setattr(Sessions, "registered_since", lambda _, it: 1000.0 if it == str(OLD) else None)

    assert bench.sessions.has_served(str(life), 120.0) is served


async def test_a_kubelet_that_begins_anew_is_known_since_it_has_us_registered(plugins_dir: Path) -> None:
    async with running(plugins_dir) as bench:
        bench.node.comes()
        old = bench.life
        await eventually(lambda: bench.sessions.registered_since(old) == 1.0)
        bench.now = 3.0

        await bench.kubelet.restart()

        await eventually(lambda: bench.sessions.registered_since(bench.life) == 3.0)
        assert bench.sessions.registered_since(old) is None


async def test_the_sockets_of_our_sessions_are_no_neighbours(plugins_dir: Path) -> None:
    async with running(plugins_dir) as bench:
        bench.node.comes()
        await bench.registered()

        bench.directory.refresh()

        assert [*bench.directory.path.glob("xpu-*.sock")]
        assert bench.directory.other_sockets.value == frozenset()
