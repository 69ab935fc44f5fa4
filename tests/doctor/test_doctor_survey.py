"""What the doctor gathers from strangers: bounded, however they answer or fall silent."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from agent.config import AgentSettings, ConfigWatch
from agent.daemon.vendors_in_service import check
from agent.doctor import socket_listeners, survey
from agent.doctor.socket_listeners import SocketListener, beside
from agent.doctor.surroundings import Surroundings
from agent.doctor.survey import DoctorArguments
from agent.doctor.vendor_libraries import libraries

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

        assert [it.name for it in beside(root)] == ["a.sock", "b.sock"]
        monkeypatch.setattr(socket_listeners, "MOST", 1)
        assert len(beside(root)) <= 1


def test_a_directory_that_is_not_there_is_told_with_its_name(tmp_path: Path) -> None:
    found = survey._sockets(AgentSettings(kubelet_dir=tmp_path / "none", state_dir=tmp_path))

    assert found.others.why == f"{tmp_path}/none: No such file or directory"
    assert (found.kubelet.state, found.admin.state) == ("missing", "missing")


def test_a_vendor_that_nobody_brings_is_left_out_here_as_in_the_agent_that_runs(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("vendors: {nvidai: {enabled: true}}")
    running = ConfigWatch(config, "n", check=check).cell.value

    found = survey._configuration(DoctorArguments("n", {"config": str(config)}), survey._Door())

    assert (found.config, found.error) == (running.config, "")
    told = libraries(Surroundings("n", "1", configuration=found))
    (left_out,) = (it.what for it in told if it.ailment == "vendor-left-out")
    assert left_out.startswith("nvidai: no vendor of this name is installed; there are: ")


def test_where_things_are_is_taken_from_a_file_that_can_not_be_used_as_a_whole(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        "agent: {stateDir: /s, kubeletDir: /k}\nvendors: {metax: {enabled: true, configDir: /nowhere}}\n"
    )
    given = {"config": str(config), "kubelet-dir": "/flag"}

    found = survey._configuration(DoctorArguments("n", given), survey._Door())

    assert "/nowhere: cannot be read" in found.error
    assert (found.config.agent.state_dir, found.config.agent.kubelet_dir) == (Path("/s"), Path("/flag"))
    assert found.plugins == ()


@contextmanager
def port(answer: bytes, drip: bytes = b"") -> Iterator[str]:
    """The address of a stranger; with `drip` it goes on with that for ten seconds or until it is left."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def talk() -> None:
            with server.accept()[0] as client, suppress(OSError):
                client.recv(1000)
                client.sendall(answer)
                for _ in range(1000 if drip else 0):
                    client.sendall(drip)
                    threading.Event().wait(0.01)

        thread = threading.Thread(target=talk)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        thread.join(30)


HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


async def test_a_port_that_answers_without_end_is_no_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.http.admin_client.MOST", 1 << 20)

    with port(HEAD + bytes(2 << 20)) as address:
        found = await survey._inspected_on_port(address)

    assert found.why == f"{address}: it answers with more than 1 MiB, as no agent does"


async def test_a_port_that_drips_has_no_more_time_than_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "AGENT_PATIENCE", 0.1)

    with port(HEAD, b"{") as address:
        found = await survey._inspected_on_port(address)

    assert found.why == f"{address}: timed out"
