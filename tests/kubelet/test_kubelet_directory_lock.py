"""One agent per kubelet, whichever state directories they have, and whatever becomes of the directories."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from agent.daemon.agent_locks import AgentLocks
from agent.kubelet.kubelet_directory_lock import DirectoryRemoved
from agent.kubelet.plugin_sockets import socket_name
from agent.state.state_directory_lock import StateDirectoryLock

ME = f"pid {os.getpid()}"


class Machine:
    """The kubelet's directory, and agents that try to serve it."""

    def __init__(self, root: Path, agents: ExitStack) -> None:
        self.root = root
        self.kubelet = root / "dp"
        self.kubelet.mkdir()
        self._agents = agents

    def state(self, name: str) -> Path:
        return self.root / name / "agent.lock"

    def agent(self, state: str = "state", kubelet: Path | None = None) -> AgentLocks:
        made = AgentLocks(kubelet or self.kubelet, StateDirectoryLock(self.state(state)))
        return self._agents.enter_context(made)

    def make_anew(self) -> None:
        """Another directory at the path; the old one is kept, that its inode is not used again."""
        self.kubelet.rename(self.root / "old")
        self.kubelet.mkdir()

    @contextmanager
    def served(self, name: str) -> Iterator[None]:
        with closing(socket.socket(socket.AF_UNIX)) as listener:
            listener.bind(str(self.kubelet / name))
            listener.listen()
            yield


@pytest.fixture
def machine(short_path: Path) -> Iterator[Machine]:
    with ExitStack() as agents:
        yield Machine(short_path, agents)


def end(agent: AgentLocks) -> None:
    agent.__exit__(None, None, None)


# Who serves


@pytest.mark.parametrize(
    ("other", "named"), [("state", ME), ("another", "another process")], ids=["the same", "another"]
)
def test_one_agent_serves_a_kubelet_whatever_its_state_directory_is(
    machine: Machine, other: str, named: str
) -> None:
    first, second = machine.agent(), machine.agent(other)

    assert first.take() == ""
    assert second.take() == named
    end(first)
    assert second.take() == ""


def test_agents_of_different_kubelets_do_not_meet(machine: Machine) -> None:
    other = machine.root / "other"
    other.mkdir()

    assert machine.agent("one").take() == ""
    assert machine.agent("two", other).take() == ""


def test_an_agent_with_the_same_state_directory_and_another_kubelet_stands_by(machine: Machine) -> None:
    other = machine.root / "other"
    other.mkdir()

    assert machine.agent().take() == ""
    assert machine.agent(kubelet=other).take() == ME
    assert machine.agent("else", other).take() == ""  # the one that was refused keeps none


def test_a_state_directory_that_was_removed_lets_no_second_agent_in(machine: Machine) -> None:
    assert machine.agent().take() == ""
    lock = machine.state("state")
    lock.unlink()
    lock.parent.rmdir()

    assert machine.agent().take() == "another process"
    assert not lock.parent.exists()


def test_an_agent_that_holds_no_lock_of_the_directory_is_respected_while_it_serves_there(
    machine: Machine,
) -> None:
    """An agent of a release that knew the state directory alone, with another one."""
    agent = machine.agent()
    name = socket_name("example.com/xpu", 3)
    with machine.served(name):
        assert agent.take() == f"the agent that serves {machine.kubelet / name}"
        assert not machine.state("state").exists()

    assert (machine.kubelet / name).is_socket()  # as one that was killed leaves it
    assert agent.take() == ""


def test_whoever_has_the_state_directory_is_named_by_it_and_not_by_a_socket(machine: Machine) -> None:
    with (
        StateDirectoryLock(machine.state("state")) as earlier,
        machine.served(socket_name("example.com/xpu", 3)),
    ):
        assert earlier.take() == ""

        assert machine.agent().take() == ME


@pytest.mark.parametrize(
    "name", ["kubelet.sock", "nvidia-gpu.sock", "xpu-monitor.sock", "xpu-0a0b0c0d-1.sock"]
)
def test_who_else_serves_a_socket_there_is_no_agent(machine: Machine, name: str) -> None:
    with machine.served(name):
        assert machine.agent().take() == ""


def test_no_file_is_made_in_the_kubelets_directory(machine: Machine) -> None:
    machine.agent().take()

    assert list(machine.kubelet.iterdir()) == []


def test_without_a_state_directory_the_kubelets_alone_is_held_and_none_is_made(machine: Machine) -> None:
    with AgentLocks(machine.kubelet, None) as lock:
        assert lock.take() == ""
        assert machine.agent().take() == "another process"

    assert not machine.state("state").parent.exists()


# What becomes of the directory


def test_a_directory_that_is_made_anew_is_locked_before_anybody_is_served_there(machine: Machine) -> None:
    agent = machine.agent()
    assert agent.take() == ""
    machine.make_anew()

    assert agent.directory.hold()

    assert machine.agent("another").take() == "another process"


def test_an_agent_does_not_get_a_new_directory_that_another_one_has(machine: Machine) -> None:
    first, second = machine.agent(), machine.agent("another")
    assert first.take() == ""
    machine.make_anew()
    assert second.take() == ""

    assert not first.directory.hold()
    end(second)
    assert first.directory.hold()


def test_a_directory_that_does_not_exist_yet_is_locked_once_it_does(machine: Machine) -> None:
    machine.kubelet.rmdir()
    first, second = machine.agent(), machine.agent("another")
    assert first.take() == second.take() == ""

    machine.kubelet.mkdir()

    assert first.directory.hold()
    assert not second.directory.hold()


def test_a_directory_that_is_gone_for_a_while_is_nobody_elses(machine: Machine) -> None:
    agent = machine.agent()
    assert agent.take() == ""
    machine.kubelet.rename(machine.root / "away")

    assert agent.directory.hold()
    (machine.root / "away").rename(machine.kubelet)
    assert agent.directory.hold()
    assert machine.agent("another").take() == "another process"


def test_a_removed_directory_that_a_mount_still_shows_is_known(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container; the next container has the new one."""
    agent = machine.agent()
    assert agent.take() == ""
    agent.directory.look()
    monkeypatch.setattr(Path, "stat", lambda path: removed(path))

    with pytest.raises(
        DirectoryRemoved, match=r"was removed while it was mounted .* restart the agent's container"
    ):
        agent.directory.look()


def removed(path: Path) -> os.stat_result:
    values = list(os.stat(path))
    values[3] = 0  # st_nlink
    return os.stat_result(values)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EBADF], ids=["not ours to open", "not to be locked"])
def test_where_the_directory_can_not_be_locked_the_state_directory_is_and_that_is_said_once(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """An agent without root, and a file system that locks no directories."""
    flock = fcntl.flock

    def refuse(descriptor: int, how: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}") == str(machine.kubelet):
            raise OSError(number, os.strerror(number))
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", refuse)
    agent = machine.agent()
    with capture_logs() as logs:
        assert agent.take() == ""
        assert agent.directory.hold()

    assert [it["event"] for it in logs] == ["the kubelet's directory is not locked"]
    assert machine.agent().take() == ME


def test_a_directory_that_is_read_only_is_locked_all_the_same(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    opens = os.open

    def read_only(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if Path(path).is_relative_to(machine.kubelet) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        return opens(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", read_only)

    assert machine.agent().take() == ""
    assert machine.agent("another").take() == "another process"
