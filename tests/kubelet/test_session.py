"""The rules of a session, each by its name; numbers are those of the list of common plugin mistakes.

Mistakes 5 (rolling updates) and 17 (mounting the directory) are the chart's; 9 and 16 are decided elsewhere,
here is what this side adds to them.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import subprocess
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from grpclib.const import Status
from h2.events import DataReceived
from msgspec import structs
from structlog.testing import capture_logs
from support.waiting import eventually

from agent.core.cell import Cell
from agent.core.endless_tasks import LoopEnded
from agent.core.model import SessionStatus
from agent.host.peer_credentials import Connected
from agent.kubelet import rpc
from agent.kubelet.kubelet_directory import KubeletDirectory, identify_socket
from agent.kubelet.pb.deviceplugin.v1beta1 import DevicePluginOptions, RegisterRequest
from agent.kubelet.peer_process import PeerProcess, peer_of
from agent.kubelet.plugin_sockets import socket_name, sweep
from agent.kubelet.session import KubeletSession
from agent.kubelet.session_timing import SessionTiming

from .fakes import (
    NAME,
    PLUGIN,
    QUICK,
    Bench,
    FakeAnswers,
    FakeKubelet,
    bench,
    card,
    nobody,
    refused,
    resource,
)
from .wire import Wire


async def restarted(node: Bench) -> None:
    """Restart the kubelet and wait until the resource is there again."""
    before = node.status.registrations
    await node.kubelet.restart()
    await node.registered(times=before + 1)


async def test_a_resource_registers_and_its_list_arrives(plugins_dir: Path) -> None:
    async with bench(plugins_dir, card("b", healthy=False), card("a", numa=0)) as node:
        plugin = await node.registered()

        assert plugin.healths() == {"a": "Healthy", "b": "Unhealthy"}
        assert node.sockets() == [node.kubelet.requests[0].endpoint]
        assert node.kubelet.requests[0].version == "v1beta1"
        assert node.kubelet.requests[0].resource_name == NAME


async def test_the_socket_is_for_its_owner_only(plugins_dir: Path) -> None:
    async with bench(plugins_dir) as node:
        plugin = await node.registered()

        assert os.stat(plugin.path).st_mode & 0o777 == 0o600


@pytest.mark.parametrize("pre_start_required", [True, False])
async def test_register_and_the_options_call_say_the_same(
    plugins_dir: Path, pre_start_required: bool
) -> None:
    # mistake 14
    async with bench(plugins_dir, pre_start_required=pre_start_required) as node:
        await node.registered()

        assert node.kubelet.requests[0].options == node.kubelet.options[0]
        assert node.kubelet.options[0] == DevicePluginOptions(
            pre_start_required=pre_start_required, get_preferred_allocation_available=True
        )


async def test_a_kubelet_that_comes_later_is_waited_for(plugins_dir: Path) -> None:
    async with bench(plugins_dir, started=False) as node:
        await eventually(lambda: node.status.reason)
        assert node.status.state == "waiting"
        assert "no kubelet at" in node.status.reason

        await node.kubelet.start()

        await node.registered()


async def test_a_kubelet_that_stays_away_is_told_again_and_again_with_its_socket_and_a_remedy(
    plugins_dir: Path,
) -> None:
    with capture_logs() as logs:
        async with bench(plugins_dir, started=False, timing=structs.replace(QUICK, remind=0.01)):
            told = await eventually(lambda: [it for it in logs if it["event"] == "still no kubelet"][1:])

    assert told[0]["log_level"] == "info"
    assert told[0]["socket"] == str(plugins_dir / "kubelet.sock")
    assert "--kubelet-dir" in told[0]["remedy"]


@pytest.mark.parametrize(("remind", "always"), [(0.0, True), (3600.0, False)])
async def test_a_kubelet_that_refuses_for_the_same_reason_is_told_again_now_and_then(
    plugins_dir: Path, remind: float, always: bool
) -> None:
    kubelet = FakeKubelet(plugins_dir)
    kubelet.refusal = "not today"
    with capture_logs() as logs:
        async with bench(plugins_dir, timing=structs.replace(QUICK, remind=remind), kubelet=kubelet) as node:
            await eventually(lambda: node.session.stats.registrations_failed >= 3)

    said = [it for it in logs if it["event"] == "not registered, trying again"]
    assert len(said) == (node.session.stats.registrations_failed if always else 1)


async def test_a_kubelet_restart_gets_a_new_socket_and_a_new_registration(plugins_dir: Path) -> None:
    # mistake 1
    async with bench(plugins_dir) as node:
        await node.registered()
        await restarted(node)
        await restarted(node)

        endpoints = [request.endpoint for request in node.kubelet.requests]
        assert len(set(endpoints)) == 3
        assert node.sockets() == [endpoints[-1]]


async def test_a_restart_that_only_replaces_kubelet_sock_is_seen(plugins_dir: Path) -> None:
    # mistake 1: another file at the same path, while streams and our socket stay as they are
    async with bench(plugins_dir) as node:
        first = await node.registered()
        node.kubelet.socket.rename(plugins_dir / "old.sock")
        other = FakeKubelet(plugins_dir)
        async with other.running_beside():
            await eventually(lambda: other.plugins and other.plugin.lists)

            assert first.ended.is_set()


async def test_the_same_kubelet_sock_announced_again_changes_nothing(plugins_dir: Path) -> None:
    # Bottlerocket #4250: a late inotify CREATE for the kubelet that answered Register
    async with bench(plugins_dir) as node:
        plugin = await node.registered()
        for _ in range(5):
            node.directory.refresh()
            await anyio.lowlevel.checkpoint()
        node.change(card("a", healthy=False))
        await eventually(lambda: plugin.healths() == {"a": "Unhealthy"})

        assert node.status.registrations == 1
        assert not plugin.ended.is_set()


async def test_a_kubelet_sock_that_vanishes_under_a_living_stream_changes_nothing(plugins_dir: Path) -> None:
    async with bench(plugins_dir) as node:
        plugin = await node.registered()
        node.kubelet.socket.unlink()
        await eventually(lambda: node.directory.kubelet.value is None)
        node.change(card("still here"))

        await eventually(lambda: plugin.healths() == {"still here": "Healthy"})
        assert not plugin.ended.is_set()


async def test_a_lost_socket_is_made_anew(plugins_dir: Path) -> None:
    # mistake 1
    async with bench(plugins_dir) as node:
        plugin = await node.registered()
        plugin.path.unlink()

        again = await node.registered(times=2)

        assert again.path != plugin.path


async def test_a_kubelet_that_never_asks_for_the_list_is_not_believed(plugins_dir: Path) -> None:
    # mistake 2
    kubelet = FakeKubelet(plugins_dir)
    kubelet.asks_for_list = False
    async with bench(plugins_dir, kubelet=kubelet, timing=structs.replace(QUICK, stream=0.3)) as node:
        await eventually(lambda: "no ListAndWatch within 0.3 s" in node.status.reason)
        assert node.status.state == "waiting"

        kubelet.asks_for_list = True
        await node.registered(times=2)
        assert len(node.sockets()) == 1


async def test_a_stream_that_the_kubelet_ends_leads_to_a_new_registration(plugins_dir: Path) -> None:
    # mistake 4
    async with bench(plugins_dir) as node:
        plugin = await node.registered()
        plugin.close()

        await node.registered(times=2)


async def test_no_registration_happens_while_a_stream_is_open(plugins_dir: Path) -> None:
    # mistake 5: up to 1.36 the end of the older stream disconnects the newer one
    async with bench(plugins_dir) as node:
        for number in range(4):
            plugin = await node.registered(times=number + 1)
            plugin.path.unlink()
        await node.registered(times=5)

        assert node.kubelet.open_at_register == [0] * len(node.kubelet.requests)
        assert node.kubelet.most_registering == 1


async def test_every_registration_has_a_socket_of_its_own(plugins_dir: Path) -> None:
    # mistake 5: 1.37 ignores a path that it has seen
    async with bench(plugins_dir) as node:
        for number in range(3):
            (await node.registered(times=number + 1)).close()
        await node.registered(times=4)

        endpoints = [request.endpoint for request in node.kubelet.requests]
        assert len(set(endpoints)) == len(endpoints)


async def test_a_refusal_is_shown_in_the_kubelets_words_and_tried_again(plugins_dir: Path) -> None:
    kubelet = FakeKubelet(plugins_dir)
    kubelet.refusal = f'the ResourceName "{NAME}" is invalid'
    async with bench(plugins_dir, kubelet=kubelet) as node:
        await eventually(lambda: len(kubelet.requests) >= 3 and node.status.state == "refused")
        assert f'the ResourceName "{NAME}" is invalid' in node.status.reason
        assert node.status.registrations == 0

        kubelet.refusal = None
        await node.registered()
        assert node.status.reason == ""


async def test_a_kubelet_that_does_not_answer_register_is_given_up(plugins_dir: Path) -> None:
    kubelet = FakeKubelet(plugins_dir)
    kubelet.answers = False
    async with bench(plugins_dir, kubelet=kubelet, timing=structs.replace(QUICK, register=0.2)) as node:
        await eventually(lambda: "no answer" in node.status.reason)

        kubelet.answers = True
        await node.registered()


async def test_a_dead_kubelet_sock_is_knocked_at_until_somebody_answers(plugins_dir: Path) -> None:
    async with bench(plugins_dir) as node:
        await node.registered()
        await node.kubelet.stop()
        await eventually(lambda: "no process answers" in node.status.reason)

        await node.kubelet.start()
        await node.registered(times=2)


async def test_a_new_kubelet_ends_the_pause_at_once(plugins_dir: Path) -> None:
    patient = structs.replace(QUICK, shortest_pause=3600.0, longest_pause=3600.0)
    async with bench(plugins_dir, timing=patient) as node:
        await node.registered()
        await restarted(node)


async def test_a_shutdown_ends_the_stream_and_removes_the_socket(plugins_dir: Path) -> None:
    # mistake 5: the stream ends before the process does
    async with bench(plugins_dir) as node:
        plugin = await node.registered()
        node.stop()

        await eventually(lambda: node.over and plugin.ended.is_set())
        assert node.sockets() == []


async def test_a_shutdown_lets_a_running_allocation_finish_and_answer(plugins_dir: Path) -> None:
    async with bench(plugins_dir) as node:
        plugin = await node.registered()
        node.answers.gate = asyncio.Event()
        outcome = node.background(plugin.allocate(["a"]))
        await eventually(lambda: node.answers.asked)
        node.stop()
        while not node.answers.refusing:
            await node.try_pre_start()
        assert "shutting down" in node.answers.refusing

        node.answers.gate.set()

        reply = await outcome
        assert reply.container_responses[0].envs == {"IDS": "a"}
        assert node.answers.finished == 1


async def test_a_shutdown_does_not_wait_for_an_allocation_that_hangs(plugins_dir: Path) -> None:
    async with bench(plugins_dir, timing=structs.replace(QUICK, drain=0.05)) as node:
        plugin = await node.registered()
        node.answers.gate = asyncio.Event()
        outcome = node.background(plugin.allocate(["a"]))
        await eventually(lambda: node.answers.asked)
        node.stop()

        with refused(Status.DEADLINE_EXCEEDED):
            await outcome
        assert node.answers.cancelled == 1


async def test_a_retired_resource_sends_its_empty_list_and_ends(plugins_dir: Path) -> None:
    async with bench(plugins_dir) as node:
        plugin = await node.registered()
        node.change(card("a"), retired=True)
        await eventually(lambda: plugin.healths() == {"a": "Healthy"})
        assert not plugin.ended.is_set()  # something is in use still

        node.change(retired=True)

        await eventually(plugin.ended.is_set)
        assert plugin.healths() == {}
        await eventually(lambda: node.status.state == "ended")
        assert node.sockets() == []


async def test_a_resource_retired_without_a_kubelet_ends(plugins_dir: Path) -> None:
    async with bench(plugins_dir, started=False) as node:
        node.change(retired=True)

        await eventually(lambda: node.status.state == "ended")


async def test_a_resource_retired_during_a_pause_ends(plugins_dir: Path) -> None:
    kubelet = FakeKubelet(plugins_dir)
    kubelet.refusal = "no"
    patient = structs.replace(QUICK, shortest_pause=3600.0, longest_pause=3600.0)
    async with bench(plugins_dir, kubelet=kubelet, timing=patient) as node:
        await eventually(lambda: node.status.state == "refused")
        node.change(retired=True)

        await eventually(lambda: node.status.state == "ended")


async def test_a_retired_resource_whose_kubelet_does_not_read_ends_too(plugins_dir: Path) -> None:
    async with bench(plugins_dir, timing=structs.replace(QUICK, retire=0.05)) as node:
        plugin = await node.registered()
        plugin.read.clear()
        node.change(card("x" * 50, count=100_000), retired=True)
        await anyio.lowlevel.checkpoint()
        node.change(retired=True)

        await eventually(lambda: node.status.state == "ended")


async def test_a_list_that_is_too_long_is_not_registered_until_it_fits(plugins_dir: Path) -> None:
    # mistake 7
    async with bench(plugins_dir, card("u" * 40, count=200_000)) as node:
        await eventually(lambda: node.status.state == "refused")
        assert "IDs per device fit" in node.status.reason
        assert "the kubelet takes 4194304" in node.status.reason
        assert node.kubelet.requests == []

        node.change(card("u" * 40, count=100))

        plugin = await node.registered()
        assert len(plugin.healths()) == 100


async def test_a_list_that_grows_too_long_keeps_the_ids_that_fitted(plugins_dir: Path) -> None:
    # mistake 7: and says so, survives a restart, and follows the health of its devices
    async with bench(plugins_dir, card("u" * 40, count=3)) as node:
        plugin = await node.registered()
        node.change(card("u" * 40, count=200_000, healthy=False))

        await eventually(lambda: set(plugin.healths().values()) == {"Unhealthy"})
        assert len(plugin.healths()) == 3
        assert node.session.stats.lists_too_long >= 1

        await restarted(node)
        assert len(node.kubelet.plugin.healths()) == 3


def deep_directory(plugins_dir: Path) -> Path:
    """A directory with room for the path of kubelet.sock and not for the path of a plugin's socket."""
    deep = plugins_dir / ("d" * (87 - len(str(plugins_dir))))
    deep.mkdir()
    return deep


async def test_a_socket_path_that_is_too_long_is_said_clearly(plugins_dir: Path) -> None:
    async with bench(deep_directory(plugins_dir)) as node:
        await eventually(lambda: "a socket path can have 107" in node.status.reason)
        assert node.status.state == "waiting"


async def test_no_socket_is_made_before_a_kubelet_is_connected(plugins_dir: Path) -> None:
    """A kubelet that starts in between would remove the socket, and dial its path for 10 s."""
    async with bench(deep_directory(plugins_dir)) as node:
        await node.kubelet.stop()
        tries = node.session.stats.registrations_failed
        await eventually(lambda: node.session.stats.registrations_failed > tries)

        assert "no process answers" in node.status.reason


async def test_files_of_others_are_left_alone(plugins_dir: Path) -> None:
    # mistake 12: nothing but our own sockets is ever made or removed in the kubelet's directory
    (plugins_dir / "plugin-state.json").write_text("{}")
    async with bench(plugins_dir) as node:
        await node.registered()
        await restarted(node)

        assert set(os.listdir(plugins_dir)) == {"plugin-state.json", "kubelet.sock", *node.sockets()}


async def test_a_directory_that_is_made_anew_is_served_again(plugins_dir: Path) -> None:
    # mistake 1: what was watched is gone, another directory lies at the path
    path = plugins_dir / "d"
    path.mkdir()
    async with bench(path) as node:
        await node.registered()
        await node.kubelet.stop()
        path.rename(plugins_dir / "old")
        path.mkdir()
        await node.kubelet.start()

        await node.registered(times=2)
        await restarted(node)


async def test_two_resources_have_sockets_of_their_own(plugins_dir: Path) -> None:
    assert socket_name("a/x", 0) != socket_name("a/y", 0)
    assert socket_name("a/x", 0) != socket_name("a/x", 1)
    assert len(socket_name("a/" + "x" * 63, 10**6)) <= 107 - len("/var/lib/kubelet/device-plugins/")


def left_behind(path: Path) -> Path:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    return path


def test_sockets_of_a_dead_agent_are_swept(plugins_dir: Path) -> None:
    dead = left_behind(plugins_dir / "xpu-0123abcd-999999999-3.sock")
    own = left_behind(
        plugins_dir / f"xpu-0123abcd-{os.getpid()}-4.sock"
    )  # a container's pid is always the same
    foreign = left_behind(plugins_dir / "nvidia-gpu.sock")
    strange = left_behind(plugins_dir / "xpu-other.sock")
    alive = left_behind(plugins_dir / f"xpu-0123abcd-{os.getppid()}-0.sock")
    (plugins_dir / "xpu-0123abcd-999999999-4.sock").write_text("a file")

    assert set(sweep(plugins_dir)) == {dead, own}
    assert foreign.exists()
    assert strange.exists()
    assert alive.exists()


def test_a_process_that_has_ended_and_is_not_collected_yet_is_dead(plugins_dir: Path) -> None:
    ended = subprocess.Popen(["true"])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)

    left = left_behind(plugins_dir / f"xpu-0123abcd-{ended.pid}-0.sock")

    assert sweep(plugins_dir) == (left,)
    ended.wait()


def test_a_socket_that_somebody_serves_is_not_swept(plugins_dir: Path) -> None:
    path = plugins_dir / "xpu-0123abcd-999999999-3.sock"  # its pid is of another namespace
    with socket.socket(socket.AF_UNIX) as alive:
        alive.bind(str(path))
        alive.listen()

        assert sweep(plugins_dir) == ()


def test_what_can_not_be_swept_is_said_and_stops_nothing(
    plugins_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = left_behind(plugins_dir / "xpu-0123abcd-999999999-3.sock")

    def refuse(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "unlink", refuse)
    with capture_logs() as told:
        assert sweep(plugins_dir) == ()
    assert told[0]["event"] == "socket of an earlier agent not removed"
    assert (told[0]["path"], told[0]["error"]) == (str(left), "Read-only file system")

    monkeypatch.setattr(Path, "glob", refuse)
    with capture_logs() as told:
        assert sweep(plugins_dir) == ()
    assert told[0]["event"] == "sockets of earlier agents not searched"


async def test_a_directory_in_place_of_our_socket_ends_only_that_registration(plugins_dir: Path) -> None:
    async with bench(plugins_dir) as node:
        plugin = await node.registered()
        with capture_logs() as told:
            plugin.path.unlink()
            plugin.path.mkdir()
            await node.registered(times=2)

        assert [line["path"] for line in told if line["event"] == "own plugin socket not removed"] == [
            str(plugin.path)
        ]


async def test_a_registration_that_fails_again_and_again_is_counted_and_said_once(plugins_dir: Path) -> None:
    kubelet = FakeKubelet(plugins_dir)
    kubelet.refusal = "no"
    with capture_logs() as told:
        async with bench(plugins_dir, kubelet=kubelet) as node:
            await eventually(lambda: node.session.stats.registrations_failed >= 3)
            kubelet.refusal = "never"
            await eventually(lambda: "never" in node.status.reason)
            kubelet.refusal = None
            await node.registered()
            kubelet.refusal = "never"
            node.kubelet.plugin.close()
            await eventually(lambda: "never" in node.status.reason)

    complaints = [line["error"] for line in told if line["event"] == "not registered, trying again"]
    assert complaints == [f"the kubelet refused Register: {words}" for words in ("no", "never", "never")]


async def test_a_registration_that_held_makes_the_next_pause_short(plugins_dir: Path) -> None:
    async with bench(plugins_dir, timing=structs.replace(QUICK, settled=0.0, longest_pause=3600.0)) as node:
        for number in range(12):  # the twelfth pause would last 20 s
            (await node.registered(times=number + 1)).close()
        await node.registered(times=13)


async def test_the_kubelet_is_sent_the_list_again_where_it_is_registered_and_nothing_where_not(
    plugins_dir: Path,
) -> None:
    async with bench(plugins_dir, started=False) as node:
        node.session.repeat()
        await node.kubelet.start()
        plugin = await node.registered()

        node.session.repeat()

        await eventually(lambda: len(plugin.lists) == 2)
        assert plugin.lists[0] == plugin.lists[1]
        assert node.status.registrations == 1


async def test_a_renewal_ends_the_old_stream_before_it_registers_anew(plugins_dir: Path) -> None:
    async with bench(plugins_dir) as node:
        await node.registered()
        assert node.session.offers

        node.session.renew()

        await node.registered(times=2)
        assert node.kubelet.open_at_register == [0, 0]
        assert len(node.sockets()) == 1


async def test_nothing_is_offered_without_a_healthy_device_or_a_kubelet(plugins_dir: Path) -> None:
    async with bench(plugins_dir, started=False) as node:
        assert not node.session.offers
        await node.kubelet.start()
        await node.registered()
        resource = node.cell.value
        node.cell.set(replace(resource, cards=tuple(replace(it, healthy=False) for it in resource.cards)))

        await eventually(lambda: not node.session.offers)


@pytest.mark.parametrize(
    ("wiped", "other", "registrations"),
    [(False, False, 1), (True, False, 2), (False, True, 2)],
    ids=["took-it", "wiped-it", "wiped-before-it-was-made"],
)
async def test_a_kubelet_that_begins_as_we_register_keeps_what_it_took_and_is_told_anew_of_what_it_wiped(
    plugins_dir: Path, monkeypatch: pytest.MonkeyPatch, wiped: bool, other: bool, registrations: int
) -> None:
    """The process that was connected answers. Another one that listens since then knows nothing of it."""
    peers = iter([False, other])

    def peer(connected: Connected) -> PeerProcess:
        return PeerProcess(1) if next(peers, False) else peer_of(connected)

    monkeypatch.setattr(rpc, "peer_of", peer)
    kubelet = FakeKubelet(plugins_dir)
    connect = kubelet.connect

    async def another(request: RegisterRequest) -> None:
        before = identify_socket(kubelet.socket)
        await connect(request)
        while len(kubelet.requests) == 1 and identify_socket(kubelet.socket) == before:
            kubelet.socket.chmod(0o666)  # which makes it another one
        if wiped and len(kubelet.requests) == 1:
            (plugins_dir / request.endpoint).unlink()

    kubelet.connect = another  # type: ignore[method-assign]
    async with bench(plugins_dir, kubelet=kubelet) as node:
        await node.registered(registrations)

        assert len(kubelet.requests) == registrations
        assert node.session.kubelet == node.directory.kubelet.value


async def test_the_kubelet_has_the_list_also_where_a_stranger_asked_for_it_first(plugins_dir: Path) -> None:
    kubelet = FakeKubelet(plugins_dir)
    connect = kubelet.connect
    strangers = AsyncExitStack()

    async def second(request: RegisterRequest) -> None:
        path = plugins_dir / request.endpoint
        stranger = await strangers.enter_async_context(Wire.to(path, by_another_process=True))
        stranger.ask(f"{PLUGIN}/ListAndWatch", bytes(5))
        while not any(isinstance(it, DataReceived) for it in stranger.events):
            stranger.events += stranger.http.receive_data(await stranger.reader.read(65_536))
        await connect(request)

    kubelet.connect = second  # type: ignore[method-assign]
    async with strangers, bench(plugins_dir, kubelet=kubelet) as node:
        plugin = await node.registered()
        node.change(card("new"))

        await eventually(lambda: plugin.healths() == {"new": "Healthy"})
        assert node.status.registrations == 1


async def test_the_status_given_is_the_one_that_is_written(plugins_dir: Path) -> None:
    status: Cell[SessionStatus] = Cell(SessionStatus())
    session = KubeletSession(
        Cell(resource(retired=True)),
        FakeAnswers(),
        KubeletDirectory(plugins_dir),
        status=status,
        timing=SessionTiming(),
    )

    await session.run()

    assert status.value.state == "ended"


async def test_a_session_whose_socket_takes_nobody_in_any_more_ends_loudly(
    plugins_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.kubelet.rpc.accepted", nobody)

    with pytest.raises(ExceptionGroup) as raised:
        async with bench(plugins_dir) as node:
            await eventually(lambda: node.over)

    assert raised.group_contains(LoopEnded)
