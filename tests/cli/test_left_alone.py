"""A start that does not serve, and a verb that only looks, leave the state of an agent as it is."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import msgspec
import pytest
from machine_guard.traces import traces
from support.short_places import SHORT_PLACE
from support.waiting import eventually

from agent.http.admin_client import CannotAsk, fetch
from agent.state.checkpoint import CHECKPOINT
from agent.state.last_config_file import NAME, last_config
from agent.state.state_directory_lock import StateDirectoryLock
from agent.testing.kubelet import SimKubelet
from cli.test_cli_exits import ELSEWHERE, EXITS

GPU = "example.com/gpu"
GOOD = f"""\
version: v1
vendors:
  nvidia: {{enabled: false}}
  metax: {{enabled: false}}
  enflame: {{enabled: false}}
  simulated: {{settings: {{devices: 2}}, resources: [{{name: {GPU}}}]}}
"""
REFUSED = "version: v9\n"
PATIENCE = 60.0


class Left:
    """A node on which an agent served, and the directories that it was given."""

    def __init__(self, root: Path) -> None:
        self.root, self.state = root, root / "state"
        self.good, self.refused, self.missing = (
            root / "good.yaml",
            root / "refused.yaml",
            root / "missing.yaml",
        )
        self.good.write_text(GOOD)
        self.refused.write_text(REFUSED)
        self.directory = root / "configs"
        self.directory.mkdir()
        (self.directory / "default").write_text(REFUSED)

    @property
    def environ(self) -> dict[str, str]:
        """What leads every verb to these directories, as the machine's own by default."""
        places = {
            "KUBELET_DIR": self.root / "k/device-plugins",
            "POD_RESOURCES_SOCKET": self.root / "k/pods.sock",
            "STATE_DIR": self.state,
            "CDI_DIR": self.root / "cdi",
            "DEVICE_INFOS_DIR": self.root / "infos",
        }
        said = {f"XPU_AGENT_{name}": str(path) for name, path in places.items()}
        return {**os.environ, **said, "XPU_AGENT_HTTP": "off", "NODE_NAME": "n"}

    def seen(self) -> Mapping[str, Any]:
        """Every file with its inode, size, mode, time and content."""
        its = traces((str(self.state),))
        return {
            path: (it, Path(path).read_bytes() if Path(path).is_file() else b"") for path, it in its.items()
        }

    def ran(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "agent", *words]
        return subprocess.run(
            command, env=self.environ, capture_output=True, text=True, timeout=PATIENCE, check=False
        )

    @asynccontextmanager
    async def running(self, *words: str) -> AsyncIterator[asyncio.subprocess.Process]:
        command = (sys.executable, "-m", "agent", "run", *words)
        process = await asyncio.create_subprocess_exec(
            *command, env=self.environ, stderr=asyncio.subprocess.PIPE
        )
        try:
            with anyio.fail_after(PATIENCE):
                yield process
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
            await process.communicate()

    async def shown(self) -> Mapping[str, Any]:
        """What the agent shows, once it answers."""
        while True:
            try:
                return msgspec.json.decode(
                    await asyncio.to_thread(fetch, self.state / "agent.sock"), type=dict
                )
            except CannotAsk:
                await anyio.sleep(0.02)


@pytest.fixture(scope="module")
def served() -> Iterator[Left]:
    """What an agent left that served; the tests have copies."""
    with TemporaryDirectory(prefix="xpu-", dir=SHORT_PLACE) as name:
        it = Left(Path(name))
        asyncio.run(_serve_for_a_while(it))
        assert {CHECKPOINT, NAME, "agent.lock"} <= {file.name for file in it.state.iterdir()}
        yield it


async def _serve_for_a_while(it: Left) -> None:
    async with SimKubelet(it.root / "k") as kubelet, it.running("--config", str(it.good)):
        await kubelet.wait(lambda kubelet: kubelet.counts().get(GPU) is not None)
        files = [it.state / file for file in (CHECKPOINT, NAME, "agent.sock")]
        await eventually(lambda: all(file.exists() for file in files), PATIENCE)


@pytest.fixture
def left(served: Left) -> Iterator[Left]:
    """With the socket of an agent that was killed."""
    with TemporaryDirectory(prefix="xpu-", dir=SHORT_PLACE) as name:
        it = Left(Path(name))
        shutil.copytree(served.state, it.state)
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(it.state / "agent.sock"))
        yield it


def spoil(left: Left) -> None:
    """The remembered config is of no use any more: nothing can be served by it."""
    (left.state / NAME).write_text("torn")


#: Starts that end at once, and what they end with: `{words}` are files of `Left`.
REFUSALS = {
    "a value that is none": ("run --config {good} --http nonsense", 2),
    "a kubeconfig that is missing": ("run --config {good} --kubeconfig {missing}", 2),
    "a state directory in the kubelet's": ("run --config {good} --kubelet-dir {state}", 2),
    "a word that is none": ("run --config {good} now", 2),
}


@pytest.mark.parametrize(("given", "code"), REFUSALS.values(), ids=REFUSALS)
def test_a_start_that_is_refused_changes_nothing(given: str, code: int, left: Left) -> None:
    before = left.seen()

    ended = left.ran(*given.format(**vars(left)).split())

    assert (ended.returncode, left.seen()) == (code, before), ended.stderr


@pytest.mark.parametrize("config", ["refused", "missing"])
def test_a_start_without_a_config_that_can_be_used_changes_nothing(config: str, left: Left) -> None:
    spoil(left)
    before = left.seen()

    ended = left.ran("run", "--config", str(getattr(left, config)))

    assert (ended.returncode, left.seen()) == (2, before), ended.stderr


@pytest.mark.parametrize("config", ["refused", "missing"])
def test_a_first_start_without_a_config_that_can_be_used_makes_no_directory(
    config: str, tmp_path: Path
) -> None:
    first = Left(tmp_path)
    there = {*tmp_path.rglob("*")}

    ended = first.ran("run", "--config", str(getattr(first, config)))

    assert (ended.returncode, {*tmp_path.rglob("*")}) == (2, there), ended.stderr


async def test_a_start_with_a_missing_config_serves_by_the_one_that_is_remembered(left: Left) -> None:
    remembered = last_config(left.state).read()
    async with SimKubelet(left.root / "k") as kubelet, left.running("--config", str(left.missing)):
        await kubelet.wait(lambda it: it.counts().get(GPU) is not None)

        assert "the last good configuration" in str((await left.shown())["config"])
    assert last_config(left.state).read() == remembered


async def test_an_agent_that_stands_by_changes_nothing(left: Left) -> None:
    (left.state / "agent.sock").unlink()
    with StateDirectoryLock(left.state / "agent.lock") as lock:
        assert lock.take() == ""
        before = left.seen()
        async with left.running("--config", str(left.missing)) as process:
            assert process.stderr is not None
            while b"standing by" not in await process.stderr.readline():
                assert process.returncode is None

        assert left.seen() == before


async def test_an_agent_that_waits_for_its_first_good_config_leaves_the_checkpoint_as_it_is(
    left: Left,
) -> None:
    spoil(left)
    before = left.seen()
    async with left.running("--config", str(left.directory)) as process:
        assert "nothing is served until there is a good one" in str((await left.shown())["config"])
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0

    kept = [f"{left.state}/{it}" for it in (CHECKPOINT, NAME)]
    assert {path: left.seen()[path] for path in kept} == {path: before[path] for path in kept}


#: Verbs that look, beside an agent's state.
LOOKS = {
    "config check --config {good}": 0,
    "config check --config {refused}": 1,
    "labels --config {good}": 0,
    "conformance simulated --config {good}": 0,
    "doctor --config {refused}": 1,
    "inspect": 1,
    "health list": 1,
}


@pytest.mark.parametrize(("given", "code"), LOOKS.items(), ids=LOOKS)
def test_a_verb_that_looks_changes_nothing(given: str, code: int, left: Left) -> None:
    before = left.seen()

    ended = left.ran(*given.format(**vars(left)).split())

    assert (ended.returncode, left.seen()) == (code, before), ended.stderr


@pytest.mark.parametrize(
    ("given", "code"),
    [it for it in EXITS if it[0].startswith(("run ", "config check", "inspect", "labels --config {ref"))],
)
def test_where_an_agent_ran_before_verbs_end_as_they_do_elsewhere_and_leave_its_state_alone(
    given: str, code: int, left: Left, tmp_path: Path
) -> None:
    places = {name: tmp_path / name for name in ("missing", "empty", "served", "good", "none", "refused")}
    places["empty"].mkdir()
    for name, text in {"good": GOOD, "none": "version: v1\n", "refused": REFUSED}.items():
        places[name].write_text(text)
    before = left.seen()

    ended = left.ran(*given.format(**places, elsewhere=ELSEWHERE.format(**places)).split())

    assert (ended.returncode, left.seen()) == (code, before), ended.stderr
