"""What an agent answers that does not serve the node."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import anyio
import pytest
import structlog.testing
from support.waiting import eventually

from agent.config import AgentSettings, Config, ConfigState, ReportSettings
from agent.core.cell import Cell
from agent.core.errors import NotServing
from agent.core.model import Command
from agent.daemon import node_agent
from agent.daemon.agent_locks import AgentLocks
from agent.daemon.agent_timing import AgentTiming
from agent.daemon.node_agent import NodeAgent
from agent.kubelet.kubelet_directory_lock import DirectoryRemoved
from agent.state.retried_writes import LedgerStore
from agent.state.state_directory_lock import LockLost, StateDirectoryLock


async def test_a_standby_says_who_serves_and_not_that_there_is_no_device(tmp_path: Path) -> None:
    settings = AgentSettings(state_dir=tmp_path / "state", kubelet_dir=tmp_path, http="")
    with StateDirectoryLock(tmp_path / "state" / "agent.lock") as lock:
        assert lock.take() == ""
        agent = NodeAgent(Cell(ConfigState(Config(settings), "")), "node-1", AgentTiming(standby=0.01))
        task = asyncio.create_task(agent.run())
        await anyio.wait_all_tasks_blocked()

        with pytest.raises(NotServing, match=f"^standing by, pid {os.getpid()} serves this node$"):
            await agent.apply(Command("cordon", "GPU-0", "alice"))

        task.cancel()
        await asyncio.wait([task])


async def test_a_standby_imports_what_serves_the_kubelet_before_it_takes_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported: list[str] = []
    monkeypatch.setattr(node_agent, "import_module", imported.append)
    settings = AgentSettings(state_dir=tmp_path / "state", kubelet_dir=tmp_path, http="")
    with StateDirectoryLock(tmp_path / "state" / "agent.lock") as lock:
        assert lock.take() == ""
        agent = NodeAgent(Cell(ConfigState(Config(settings), "")), "node-1", AgentTiming(standby=0.001))
        task = asyncio.create_task(agent.run())
        await eventually(lambda: imported)
        task.cancel()
        await asyncio.wait([task])

    assert imported == ["agent.daemon.composition"]


async def test_who_stands_by_says_so_once_and_says_when_it_takes_over_and_after_how_long(
    tmp_path: Path,
) -> None:
    settings = AgentSettings(
        state_dir=tmp_path / "state",
        http="",
        kubelet_dir=tmp_path,
        pod_resources_socket=tmp_path / "pods.sock",
        cdi_dir=tmp_path / "cdi",
    )
    config = Config(settings, report=ReportSettings(device_infos_dir=str(tmp_path / "infos")))
    agent = NodeAgent(Cell(ConfigState(config, "")), "node-1", AgentTiming(standby=0.001))
    with structlog.testing.capture_logs() as logs:
        with StateDirectoryLock(tmp_path / "state" / "agent.lock") as lock:
            assert lock.take() == ""
            task = asyncio.create_task(agent.run())
            await eventually(lambda: agent.view().standby.startswith("pid"))
        await eventually(lambda: agent.serving.value)
        task.cancel()
        await asyncio.wait([task])

    stood, took = (it for it in logs if it["event"].startswith(("standing by", "taking over")))
    assert stood["event"] == "standing by, another agent serves this node"
    assert took["event"] == "taking over, the previous agent has ended"
    assert stood["holder"] == took["holder"] == f"pid {os.getpid()}"
    assert took["stood_by_seconds"] >= 0


async def test_who_stood_by_recalls_what_was_known_once_it_has_the_lock_and_before_it_serves(
    tmp_path: Path,
) -> None:
    recalled = asyncio.Event()

    async def recall() -> None:
        recalled.set()
        await anyio.sleep_forever()

    settings = AgentSettings(state_dir=tmp_path / "state", kubelet_dir=tmp_path, http="")
    config = Cell(ConfigState(Config(settings), ""))
    agent = NodeAgent(config, "node-1", AgentTiming(standby=0.01), recall=recall)
    with StateDirectoryLock(tmp_path / "state" / "agent.lock") as lock:
        assert lock.take() == ""
        task = asyncio.create_task(agent.run())
        await eventually(lambda: agent.view().standby.startswith("pid"))
        assert not recalled.is_set()

    with anyio.fail_after(10):
        await recalled.wait()
    assert not agent.serving.value
    task.cancel()
    await asyncio.wait([task])


async def test_who_takes_over_serves_with_the_state_directory_of_which_it_holds_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Line:
        def __init__(self, config: Cell[ConfigState], settings: AgentSettings, *_: Any, **__: Any) -> None:
            self.settings = settings

        async def run(self, early: object) -> None:
            served.append(self.settings.state_dir)
            await anyio.sleep_forever()

    monkeypatch.setattr("agent.daemon.composition.Composition", Line)
    served: list[Path] = []
    config = Cell(ConfigState(Config(AgentSettings(state_dir=tmp_path / "old", kubelet_dir=tmp_path)), ""))
    agent = NodeAgent(config, "node-1", AgentTiming(standby=0.01))
    with StateDirectoryLock(tmp_path / "old" / "agent.lock") as lock:
        assert lock.take() == ""
        task = asyncio.create_task(agent.run())
        await eventually(lambda: agent.view().standby.startswith("pid"))
        config.set(ConfigState(Config(AgentSettings(state_dir=tmp_path / "new")), ""))

    await eventually(lambda: served)
    assert served == [tmp_path / "old"] == [agent.settings.state_dir]
    assert not (tmp_path / "new").exists()
    task.cancel()
    await asyncio.wait([task])


def serving_on(root: Path) -> NodeAgent:
    """An agent of a node of which nothing is anywhere else."""
    settings = AgentSettings(
        state_dir=root / "state",
        kubelet_dir=root / "dp",
        pod_resources_socket=root / "pods.sock",
        cdi_dir=root / "cdi",
        http="",
    )
    config = Config(settings, report=ReportSettings(device_infos_dir=str(root / "infos")))
    return NodeAgent(Cell(ConfigState(config, "")), "node-1", AgentTiming(standby=0.001, directory=0.01))


async def test_an_agent_whose_kubelets_directory_another_one_has_by_now_ends_and_says_so(
    tmp_path: Path,
) -> None:
    (tmp_path / "dp").mkdir()
    agent = serving_on(tmp_path)
    task = asyncio.create_task(agent.run())
    await eventually(lambda: agent.serving.value)

    (tmp_path / "other").mkdir()
    with AgentLocks(tmp_path / "other", StateDirectoryLock(tmp_path / "other-state" / "agent.lock")) as other:
        assert other.take() == ""
        (tmp_path / "dp").rename(tmp_path / "old")
        (tmp_path / "other").rename(tmp_path / "dp")

        with pytest.raises(ExceptionGroup) as ended:
            await task

    assert ended.group_contains(LockLost, match=rf"{tmp_path}/dp: another agent .* has locked", depth=None)


async def test_an_agent_that_sees_a_removed_directory_for_ever_ends_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = serving_on(tmp_path)
    task = asyncio.create_task(agent.run())
    await eventually(lambda: agent.serving.value)
    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1
        if looks not in (6, 7):
            raise DirectoryRemoved(tmp_path / "dp")

    monkeypatch.setattr(agent._lock.directory, "look", look)

    with pytest.raises(ExceptionGroup) as ended:
        await task

    assert ended.group_contains(DirectoryRemoved, match=f"{tmp_path}/dp: the kubelet's", depth=None)
    assert looks > 10  # one that goes is seen so for a moment


async def test_an_agent_goes_on_whose_new_directory_another_one_has_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that stands by takes it, and lets go of it since it does not get the state directory."""
    agent = serving_on(tmp_path)
    task = asyncio.create_task(agent.run())
    await eventually(lambda: agent.serving.value)
    looks = 0

    def hold() -> bool:
        nonlocal looks
        looks += 1
        return looks > 5

    monkeypatch.setattr(agent._lock.directory, "hold", hold)
    await eventually(lambda: looks > 7)

    assert not task.done()
    task.cancel()
    await asyncio.wait([task])


async def test_a_state_directory_that_was_removed_is_locked_and_written_again(tmp_path: Path) -> None:
    agent = serving_on(tmp_path)
    task = asyncio.create_task(agent.run())
    await eventually(lambda: agent.serving.value and (tmp_path / "state/agent.last-config.json").exists())
    (tmp_path / "state").rename(tmp_path / "old")

    await eventually(lambda: agent.moves.value)

    there = {it.name for it in (tmp_path / "state").iterdir()}
    assert {"agent.lock", "agent.last-config.json", "checkpoint.json"} <= there
    assert StateDirectoryLock(tmp_path / "state" / "agent.lock").take() == f"pid {os.getpid()}"
    task.cancel()
    await asyncio.wait([task])


async def test_the_last_write_of_an_agent_waits_once_more_for_a_disk_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, asked = LedgerStore.save, list[bool]()

    async def noted(self: LedgerStore, *, durable: bool, last: bool = False) -> None:
        asked.append(last)
        await save(self, durable=durable, last=last)

    monkeypatch.setattr(LedgerStore, "save", noted)
    agent = serving_on(tmp_path)
    task = asyncio.create_task(agent.run())
    await eventually(lambda: agent.serving.value and asked)

    task.cancel()
    await asyncio.wait([task])

    assert [at for at, last in enumerate(asked, 1) if last] == [len(asked)]
