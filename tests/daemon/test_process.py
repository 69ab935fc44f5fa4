"""The real process: `xpu-agent run` with its signals, its views and its environment."""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs
from support.config_watching import following, state, write
from support.short_places import SHORT_PLACE
from support.vendor_inputs import source_of
from support.waiting import eventually

from agent.cli.inspect_tables import as_text
from agent.cluster.credentials import ApiAccess
from agent.config import AgentSettings, Config, ConfigState, ConfigWatch
from agent.core.cell import Cell
from agent.daemon.agent_timing import AgentTiming
from agent.daemon.composition import Composition
from agent.daemon.node_agent import NodeAgent
from agent.daemon.process import _cluster, _collect_garbage, _follow, _keep_serving, _until_signalled
from agent.http.admin_client import fetch
from agent.http.inspect_document import from_builtins
from agent.testing.kubelet import SimKubelet
from agent.testing.node_kubelet import Capacity, Container, Pod
from agent.vendor_api.agent import Proof
from agent.vendors.simulated.child.scenario import Scenario

GPU = "example.com/gpu"
CONFIG = """\
version: v1
vendors:
  nvidia: {{enabled: false}}
  simulated:
    settings: {{devices: 2}}
    resources: [{{name: {resource}}}]
"""
WITH_ANOTHER = f"{CONFIG}  another: {{{{enabled: true}}}}\n"


class Running:
    """`xpu-agent run` as a process, with the kubelet it talks to."""

    def __init__(self, root: Path, kubelet: SimKubelet, process: asyncio.subprocess.Process) -> None:
        self.root = root
        self.kubelet = kubelet
        self.process = process
        self.config = root / "config.yaml"

    async def registered(self, resource: str = GPU) -> None:
        await self.kubelet.wait(lambda it: it.counts().get(resource) == Capacity(2, 2))

    async def inspected(self, condition: Callable[[dict[str, object]], bool]) -> dict[str, object]:
        while True:
            try:
                document: dict[str, object] = json.loads(
                    await asyncio.to_thread(fetch, self.root / "state" / "agent.sock")
                )
            except Exception:
                document = {}
            if document and condition(document):
                return document
            await anyio.sleep(0.01)

    async def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return await self.process.wait()


@asynccontextmanager
async def running(*flags: str, config: str = CONFIG, **environ: str) -> AsyncIterator[Running]:
    with TemporaryDirectory(prefix="xpu-", dir=SHORT_PLACE) as name:
        root = Path(name)
        (root / "config.yaml").write_text(config.format(resource=GPU))
        async with SimKubelet(root / "k") as kubelet:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "agent", "run", "--config", str(root / "config.yaml")),
                *("--kubelet-dir", str(kubelet.plugin_dir)),
                *("--pod-resources-socket", str(kubelet.pod_resources_socket)),
                *("--state-dir", str(root / "state"), "--cdi-dir", str(root / "cdi")),
                *("--device-infos-dir", str(root / "infos"), "--node-name", "a-node", *flags),
                stderr=asyncio.subprocess.PIPE,
                env={"PATH": "/usr/bin:/bin", "XPU_AGENT_HTTP": "127.0.0.1:0", **environ},
            )
            try:
                with anyio.fail_after(30):
                    yield Running(root, kubelet, process)
            finally:
                if process.returncode is None:
                    process.kill()
                await process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_to_end_is_an_exit_of_0_that_leaves_no_socket(number: signal.Signals) -> None:
    async with running() as it:
        await it.registered()

        assert await it.end(number) == 0

        assert list(it.kubelet.plugin_dir.glob("xpu-*")) == []
        assert not (it.root / "state" / "agent.sock").exists()


#: A plugin that sends the agent a signal while it loads, and swallows whatever comes of it.
SIGNALS = """\
import os, signal, weakref

class It: pass

def gone(_):
    os.kill(os.getpid(), signal.{signal})
    for _ in range(1000): pass

it = It()
watched = weakref.ref(it, gone)
try:
    del it
    gone(None)
except BaseException:
    pass
"""


#: A plugin that breaks a part of the agent: what follows the kubelet's checkpoint is done at once.
BREAKS = """\
from agent.daemon.registration.other_device_plugins import OtherPlugins

async def run(self, in_force): pass

OtherPlugins.run = run
"""


def another(folder: Path, code: str) -> str:
    """Install a plugin named `another`, as pip leaves one."""
    (folder / "another.py").write_text(code)
    (info := folder / "another-1.dist-info").mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: another\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[xpu_agent.backends]\nanother = another\n")
    return str(folder)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
async def test_a_signal_while_a_plugin_loads_that_swallows_all_ends_the_agent_all_the_same(
    number: signal.Signals, status: int, tmp_path: Path
) -> None:
    path = another(tmp_path, SIGNALS.format(signal=number.name))

    async with running(config=WITH_ANOTHER, PYTHONPATH=path) as it:
        assert await it.process.wait() == status


async def test_a_part_of_the_agent_that_ends_by_itself_ends_the_agent_and_is_named(tmp_path: Path) -> None:
    async with running(config=WITH_ANOTHER, PYTHONPATH=another(tmp_path, BREAKS)) as it:
        assert await it.process.wait() == 1
        assert it.process.stderr is not None
        told = (await it.process.stderr.read()).decode().splitlines()

    assert '"level": "critical"' in told[-2]
    assert told[-1].startswith("xpu-agent: another.run returned, but must run as long as the agent")


async def test_an_allocate_that_runs_is_answered_before_the_end() -> None:
    async with running() as it:
        await it.registered()

        verdict, status = await asyncio.gather(it.kubelet.admit(Pod("p", (Container({GPU: 1}),))), it.end())

        assert status == 0
        words = ("shutting down", "Unavailable", "has been stopped")
        assert verdict.admitted or any(it in verdict.message for it in words), verdict


async def test_sighup_reads_the_config_at_once() -> None:
    async with running() as it:
        await it.registered()
        it.config.write_text(CONFIG.format(resource="example.com/other"))

        it.process.send_signal(signal.SIGHUP)

        await it.registered("example.com/other")
        await it.kubelet.wait(lambda kubelet: kubelet.counts()[GPU] == Capacity(0, 0))


async def test_sighup_has_the_config_looked_at_and_another_signal_ends_the_agent(tmp_path: Path) -> None:
    """The process looks every few seconds by itself, so that what follows there does not tell."""
    looks: list[str] = []
    (tmp_path / "config.yaml").write_text("version: v1")
    watch = ConfigWatch(tmp_path / "config.yaml", "a-node")
    watch.reload = lambda: looks.append("now")  # type: ignore[method-assign]

    async def signals() -> AsyncIterator[signal.Signals]:
        for number in (signal.SIGHUP, signal.SIGHUP, signal.SIGTERM, signal.SIGHUP):
            yield number

    await _until_signalled(signals(), watch)

    assert looks == ["now", "now"]


async def test_a_bad_config_keeps_the_last_good_one_and_says_so() -> None:
    async with running() as it:
        await it.registered()
        it.config.write_text("version: v1\nvendors: {simulated: {resorces: []}}\n")

        it.process.send_signal(signal.SIGHUP)

        document = await it.inspected(lambda seen: bool(seen["config"]["error"]))  # type: ignore[index]
        assert "resources" in document["config"]["error"]  # type: ignore[index]
        assert it.kubelet.counts() == {GPU: Capacity(2, 2)}


async def test_a_first_start_with_a_bad_config_fails_at_once_and_names_what_is_wrong() -> None:
    async with running(config="version: v1\nvendors: {{simulated: {{resorces: []}}}}\n") as it:
        assert await it.process.wait() == 2
        assert it.process.stderr is not None
        told = (await it.process.stderr.read()).decode()

    assert told.startswith(f"xpu-agent: {it.config}:2: vendors.simulated.resorces: unknown key")
    assert "last good" not in told


async def test_the_state_is_for_its_owner_only() -> None:
    async with running() as it:
        await it.registered()
        await it.inspected(lambda seen: bool(seen["ready"]))

        state = it.root / "state"
        assert state.stat().st_mode & 0o777 == 0o700
        assert {it.name for it in state.iterdir() if it.is_dir()} == {"vendors"}
        assert {_mode(it) for it in state.rglob("*") if it.is_dir()} == {0o700}
        assert set(filter(None, (_mode(it) for it in state.iterdir() if not it.is_dir()))) == {0o600}


def _mode(path: Path) -> int:
    """Nothing for a file that was about to be renamed, and is."""
    try:
        return path.stat().st_mode & 0o777
    except FileNotFoundError:
        return 0


async def test_the_log_is_json_where_nobody_reads_it() -> None:
    async with running() as it:
        await it.registered()
        await it.end()

        assert it.process.stderr is not None
        lines = (await it.process.stderr.read()).decode().splitlines()
        assert [json.loads(line)["level"] for line in lines]


async def test_a_port_that_is_taken_costs_the_views_and_nothing_else() -> None:
    taken = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = taken.sockets[0].getsockname()[1]
    async with taken, running("--http", f"127.0.0.1:{port}") as it:
        await it.registered()

        document = await it.inspected(lambda seen: bool(seen["ready"]))

        assert document["node"] == "a-node"


async def test_a_port_is_tried_at_once_and_often_when_the_agent_takes_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The one before lets go of it as it ends, which may be a moment later."""

    class Pauses:
        pauses = itertools.repeat(3600.0)

        def __init__(self, shortest: float, longest: float) -> None:
            tried.append("begun")

        def next(self) -> float:
            tried.append("tried")
            return next(self.pauses)

        def reset(self) -> None:
            tried.append("reset")
            self.pauses = itertools.repeat(0.01)

    tried: list[str] = []
    monkeypatch.setattr("agent.daemon.process.Pauses", Pauses)
    agent = NodeAgent(Cell(ConfigState(Config(), "")), "a-node")
    taken = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = taken.sockets[0].getsockname()[1]
    serving = asyncio.create_task(_keep_serving(f"127.0.0.1:{port}", agent))
    await eventually(lambda: tried == ["begun", "tried"])

    agent.serving.set(True)
    await eventually(lambda: tried[2:4] == ["reset", "tried"])
    taken.close()
    await taken.wait_closed()

    with anyio.fail_after(30):
        status, _ = await _get_when_up(f"http://127.0.0.1:{port}/healthz")
    assert status == 200
    serving.cancel()
    await asyncio.wait([serving])


async def test_readiness_tells_why_there_is_none() -> None:
    broken = CONFIG.replace("devices: 2", "scenario: /nonexistent/scenario.json")
    with reserved() as port:
        async with running("--http", f"127.0.0.1:{port}", config=broken) as it:
            await it.inspected(lambda seen: "/nonexistent/scenario.json" in str(seen["troubles"]))

            status, text = await _get_when_up(f"http://127.0.0.1:{port}/readyz")

            assert status == 503
            assert "/nonexistent/scenario.json" in text


async def test_the_metrics_of_a_process_have_the_use_of_its_cards() -> None:
    with reserved() as port:
        sampled = f"{CONFIG}usage: {{{{enabled: true, interval: 1}}}}\n"
        async with running("--http", f"127.0.0.1:{port}", config=sampled):
            with anyio.fail_after(30):
                page = ""
                while 'xpu_usage_up{vendor="simulated"}' not in page:
                    _, page = await _get_when_up(f"http://127.0.0.1:{port}/metrics")
                    await anyio.sleep(0.05)


@contextmanager
def reserved() -> Iterator[int]:
    """A port that nobody else is given: bound, but never listening."""
    with socket.socket() as it:
        it.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        it.bind(("127.0.0.1", 0))
        yield int(it.getsockname()[1])


async def _get_when_up(url: str) -> tuple[int, str]:
    while True:
        try:
            return await asyncio.to_thread(_get, url)
        except OSError:
            await anyio.sleep(0.02)


def _get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code, exc.read().decode()


async def test_settings_that_a_vendor_does_not_know_keep_the_last_good_config() -> None:
    async with running() as it:
        await it.registered()
        it.config.write_text(CONFIG.format(resource=GPU).replace("devices: 2", "devicez: 2"))

        it.process.send_signal(signal.SIGHUP)

        document = await it.inspected(lambda seen: bool(seen["config"]["error"]))  # type: ignore[index]
        assert "devicez" in document["config"]["error"]  # type: ignore[index]
        assert it.kubelet.counts() == {GPU: Capacity(2, 2)}


async def test_a_config_that_is_refused_is_in_the_log_and_so_is_the_next_good_one() -> None:
    async with running() as it:
        await it.registered()
        it.config.write_text("version: v9\n")
        it.process.send_signal(signal.SIGHUP)
        await it.inspected(lambda seen: bool(seen["config"]["error"]))  # type: ignore[index]
        it.config.write_text(CONFIG.format(resource="example.com/other"))
        it.process.send_signal(signal.SIGHUP)
        await it.registered("example.com/other")
        await it.end()

        assert it.process.stderr is not None
        events = [json.loads(line)["event"] for line in (await it.process.stderr.read()).splitlines()]
        assert events.index("config refused") < events.index("config taken in")


async def test_a_fault_just_before_the_end_is_remembered() -> None:
    with TemporaryDirectory(prefix="xpu-", dir=SHORT_PLACE) as name:
        scenario = Scenario(Path(name) / "scenario.json", devices=2)
        config = CONFIG.replace("devices: 2", f"scenario: {scenario.path}")
        async with running(config=config) as it:
            await it.registered()
            scenario.fault(scenario.uuids[0], "xid-79", cleared_by=(Proof.RESET,))
            await it.kubelet.wait(lambda kubelet: kubelet.counts()[GPU] == Capacity(2, 1))

            await it.end()

            saved = json.loads((it.root / "state" / "checkpoint.json").read_text())
            assert saved["data"]["health"][scenario.uuids[0]]["fault"]["reason"] == "xid-79"


@pytest.mark.parametrize("state", ["a file", "a loop"])
async def test_a_state_directory_that_can_not_be_is_a_sentence(state: str, tmp_path: Path) -> None:
    place = tmp_path / "state"
    if state == "a file":
        place.write_text("in the way")
    else:
        place.symlink_to(place)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "agent", "run", "--state-dir", str(place), "--http", ""),
        *("--kubelet-dir", str(tmp_path / "kubelet")),
        stderr=asyncio.subprocess.PIPE,
    )
    with anyio.fail_after(30):
        _, told = await process.communicate()

    assert process.returncode == 1
    assert str(place) in told.decode()
    assert "--state-dir" in told.decode()
    assert "Traceback" not in told.decode()


async def test_the_log_level_follows_the_config_and_of_the_rest_it_is_said_that_it_waits() -> None:
    quiet = CONFIG + "agent: {{log: {{level: warning, keep: 7}}}}\n"
    async with running() as it:
        await it.registered()
        it.config.write_text(quiet.format(resource="example.com/other"))
        it.process.send_signal(signal.SIGHUP)
        await it.registered("example.com/other")
        await it.kubelet.restart()
        await it.registered("example.com/other")
        await it.end()

        assert it.process.stderr is not None
        lines = [json.loads(line) for line in (await it.process.stderr.read()).splitlines()]
        told = [line["event"] for line in lines]
        waits = told.index("the change of `agent` takes effect at the next start")
        assert "info" in {line["level"] for line in lines[:waits]}
        assert "info" not in {line["level"] for line in lines[waits:]}


async def test_a_fault_and_its_proof_are_on_disk_though_nobody_says_goodbye() -> None:
    with TemporaryDirectory(prefix="xpu-", dir=SHORT_PLACE) as name:
        scenario = Scenario(Path(name) / "scenario.json", devices=2)
        config = CONFIG.replace("devices: 2", f"scenario: {scenario.path}")
        async with running(config=config) as it:
            await it.registered()

            scenario.fault(scenario.uuids[0], "xid-79", cleared_by=(Proof.RESET,))
            await _saved(it, scenario.uuids[0], ["reset"])
            scenario.heal(scenario.uuids[0], Proof.RESET)

            await _saved(it, scenario.uuids[0], [])


async def _saved(it: Running, uuid: str, cleared_by: list[str]) -> None:
    """Wait until the checkpoint has a fault of the card that these proofs clear."""

    def is_saved() -> bool:
        try:
            health = json.loads((it.root / "state" / "checkpoint.json").read_text())["data"]["health"]
        except FileNotFoundError:
            return False
        return uuid in health and bool(health[uuid]["fault"]["cleared_by"] == cleared_by)

    await eventually(is_saved)


async def test_a_log_directory_that_can_not_be_written_is_told_and_the_agent_serves(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    async with running("--log-format", "json", "--log-dir", str(tmp_path / "file")) as it:
        await it.registered()
        assert (await it.kubelet.admit(Pod("p", (Container({GPU: 1}),)))).admitted
        door = it.root / "state" / "agent.sock"
        await eventually(door.exists)
        told = json.loads(await anyio.to_thread.run_sync(fetch, door))
        assert await it.end() == 0
        assert it.process.stderr is not None
        said = (await it.process.stderr.read()).decode()

    why = f"agent.log.dir: {tmp_path}/file/xpu-agent.log cannot be written: {tmp_path}/file is no directory"
    assert told["log"] == {"error": why}
    assert (told["ready"], told["troubles"]) == (True, [])
    assert f"! log: {why}" in as_text(from_builtins(told), 0.0)
    assert said.count(why) == 1


async def test_the_log_is_on_the_host_with_the_line_of_each_event_and_goes_on_with_the_next_agent(
    tmp_path: Path,
) -> None:
    for _ in range(2):
        async with running("--log-format", "json", XPU_AGENT_LOG_DIR=str(tmp_path / "logs")) as it:
            await it.registered()
            assert await it.end() == 0

    file = tmp_path / "logs" / "xpu-agent.log"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["event"] for line in lines].count("starting") == 2
    for line in lines:
        path, number = line["at"].rsplit(":", 1)
        assert (Path(__file__).parents[2] / path).is_file(), line
        assert int(number) > 0
    starting = next(it for it in lines if it["event"] == "starting")
    path, number = starting["at"].rsplit(":", 1)
    assert "log.info(" in (Path(__file__).parents[2] / path).read_text().splitlines()[int(number) - 1]


async def test_a_kubeconfig_of_kubectl_s_that_is_missing_is_told_and_ends_nothing() -> None:
    async with running("--log-format", "json", KUBECONFIG="/missing") as it:
        await it.registered()
        assert await it.end() == 0
        assert it.process.stderr is not None
        told = (await it.process.stderr.read()).decode()

    assert "KUBECONFIG names /missing: no such file" in told


async def test_a_kubeconfig_that_is_named_to_this_agent_alone_has_to_be_there() -> None:
    async with running(XPU_AGENT_KUBECONFIG="/missing") as it:
        assert await it.process.wait() == 2
        assert it.process.stderr is not None
        told = (await it.process.stderr.read()).decode()

    assert told.startswith("xpu-agent: XPU_AGENT_KUBECONFIG: /missing: No such file or directory")


async def test_labels_that_can_be_told_to_nobody_are_why_the_agent_is_not_ready() -> None:
    async with running(USE_NODE_FEATURE_API="true") as it:
        told = "USE_NODE_FEATURE_API: 'nodeFeature' is published through"
        await it.inspected(lambda document: told in str(document["troubles"]))


async def test_the_warnings_of_each_content_are_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.logs.set_level", lambda level: None)
    path = tmp_path / "config.yaml"
    write(path, "flags: {one: 1}")
    with capture_logs() as told:
        async with following(source_of(path)) as watch, asyncio.timeout(30):
            follower = asyncio.create_task(_follow(watch))
            await warned_of(told, "flags.one")
            write(path, "flags: {two: 2}")
            await warned_of(told, "flags.two")
            write(path, "flags: {}")
            await state(watch, lambda state: not state.config.warnings)
            follower.cancel()

    assert [it.split(": ")[1] for it in warned(told)] == ["flags.one", "flags.two"]


async def warned_of(told: Sequence[Mapping[str, Any]], key: str) -> None:
    await eventually(lambda: any(key in it for it in warned(told)))


def warned(told: Sequence[Mapping[str, Any]]) -> list[str]:
    return [it["warning"] for it in told if it["log_level"] == "warning" and "warning" in it]


async def test_the_collector_rests_until_the_agent_is_registered_and_then_leaves_out_what_is_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The test's own collector is left alone."""
    done: list[str] = []
    monkeypatch.setattr("agent.daemon.process.COLLECT_AFTER", 0.0)
    monkeypatch.setattr("agent.daemon.process.CONNECT_AFTER", 3600.0)
    monkeypatch.setattr("agent.daemon.process.gc", Collector(done))
    agent = NodeAgent(Cell(ConfigState(Config(AgentSettings(state_dir=tmp_path)), "")), "node-1")

    async with anyio.create_task_group() as group:
        group.start_soon(_collect_garbage, agent)
        await anyio.wait_all_tasks_blocked()
        assert done == []
        agent.registered.set(True)

    assert done == ["collect", "freeze", "enable"]


class Collector:
    """Stands for the module gc, at rest."""

    def __init__(self, done: list[str]) -> None:
        self.collect, self.freeze, self.enable = (partial(done.append, it) for it in MOVES)

    def isenabled(self) -> bool:
        return False


#: What is done with the collector once the agent is registered.
MOVES = ("collect", "freeze", "enable")


async def test_the_door_writes_into_the_list_that_the_line_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two lists of one file, each with a lock of its own, lose each other's entries."""

    class Closed(Exception):
        pass

    given: dict[str, Any] = {}

    def door(*_: Any, **rest: Any) -> Any:
        given.update(rest)
        raise Closed

    monkeypatch.setattr("agent.cluster.api_connection.ApiConnection", door)
    settings = AgentSettings(state_dir=tmp_path)
    state = Cell(ConfigState(Config(agent=settings), ""))
    agent = NodeAgent(state, "node")
    parts = Composition(state, settings, AgentTiming(), agent.registered, agent.pod_state, in_process=True)
    monkeypatch.setattr(NodeAgent, "parts", parts)
    agent.serving.set(True)
    agent.registered.set(True)

    with pytest.raises(Closed):
        await _cluster(agent, ApiAccess("http://127.0.0.1:1"), "node", Cell(None), state)

    record = given["records"].features
    assert record.note == parts.uninstall_record.note_namespace
    assert record.forget == parts.uninstall_record.forget_namespace
