"""What the doctor gathers from strangers: bounded, however they answer or fall silent."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from agent.config import AgentSettings
from agent.doctor import socket_listeners, survey
from agent.doctor.socket_listeners import SocketListener, plugin_sockets

from .patient import short_directory


def full(path: Path) -> socket.socket:
    """A listener whose queue is full with the one caller that it has room for."""
    it = socket.socket(socket.AF_UNIX)
    it.bind(str(path))
    it.listen(0)
    return it


def caller(path: Path) -> socket.socket:
    it = socket.socket(socket.AF_UNIX)
    it.connect(str(path))
    return it


def looked_at(agent: AgentSettings) -> Mapping[Path, SocketListener]:
    found = survey._sockets(agent).others.value
    assert found is not None
    return found


def test_a_socket_that_takes_no_call_is_a_listener_and_is_not_waited_for() -> None:
    with short_directory() as root, ExitStack() as open:
        for number in range(3):
            open.enter_context(full(root / f"{number}.sock"))
            open.enter_context(caller(root / f"{number}.sock"))

        found = looked_at(AgentSettings(kubelet_dir=root, state_dir=root))

    assert [(path.name, it) for path, it in found.items()] == [
        (f"{number}.sock", SocketListener("listens", is_busy=True)) for number in range(3)
    ]


def test_the_kubelet_s_own_socket_and_what_is_none_are_not_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with short_directory() as root, ExitStack() as open:
        for name in ("kubelet.sock", "b.sock", "a.sock"):
            open.enter_context(full(root / name))
        (root / "kubelet_internal_checkpoint").touch()

        assert [it.name for it in plugin_sockets(root)] == ["a.sock", "b.sock"]
        monkeypatch.setattr(socket_listeners, "MAX_SOCKETS", 1)
        assert len(plugin_sockets(root)) <= 1


def test_a_directory_that_is_not_there_is_told_with_its_name(tmp_path: Path) -> None:
    found = survey._sockets(AgentSettings(kubelet_dir=tmp_path / "none", state_dir=tmp_path))

    assert found.others.why == f"{tmp_path}/none: No such file or directory"
    assert (found.kubelet.state, found.admin.state) == ("missing", "missing")
