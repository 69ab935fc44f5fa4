"""The processes of the demo's containers are what an agent finds on a real node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.waiting import eventually

from agent.core.usage.cgroup_paths import Kind
from agent.demo.container_processes import ContainerProcesses
from agent.host.node_processes import ProcessReader, sees_node_pids
from agent.testing.node_kubelet import Container, Pod
from agent.vendors.simulated.child.scenario import Scenario

GIB = 1 << 30
TRAINER, NOTEBOOK = (Pod(name, (Container({}),)) for name in ("trainer", "notebook"))


class Node:
    def __init__(self, root: Path) -> None:
        self.proc = root / "proc"
        self.scenario = Scenario(root / "scenario.json", devices=1)
        self.processes = ContainerProcesses(self.proc, self.scenario)

    @property
    def running(self) -> list[dict[str, Any]]:
        running: list[dict[str, Any]] = self.scenario.read()["processes"]
        return running


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_the_agent_finds_the_pod_and_the_container_of_a_process(node: Node) -> None:
    node.processes.use(TRAINER, "A", GIB, 0.5)
    node.processes.use(NOTEBOOK, "B", GIB, 0.5)

    pids = [it["pid"] for it in node.running]
    read = ProcessReader(node.proc).read(pids)

    owners = [read.processes[pid].owner for pid in pids]
    assert read.trouble == ""
    assert [(it.kind, it.uid) for it in owners] == [(Kind.POD, TRAINER.uid), (Kind.POD, NOTEBOOK.uid)]
    assert len({it.container for it in owners}) == 2
    assert all(len(it.container) == 64 for it in owners)
    assert {it.name for it in read.processes.values()} == {"python3"}
    assert sees_node_pids(node.proc)


def test_a_pod_that_uses_more_has_the_same_process(node: Node) -> None:
    node.processes.use(TRAINER, "A", GIB, 0.5)
    (before,) = node.running
    node.processes.use(TRAINER, "A", 2 * GIB, 0.7)
    assert node.running == [{**before, "memory": 2 * GIB, "utilization": 0.7}]


def test_a_process_ends_with_its_pod(node: Node) -> None:
    node.processes.use(TRAINER, "A", GIB, 0.5)
    node.processes.use(NOTEBOOK, "B", GIB, 0.5)
    ended, stays = (it["pid"] for it in node.running)

    node.processes.end(TRAINER)
    node.processes.end(TRAINER)

    assert [it["pid"] for it in node.running] == [stays]
    assert ProcessReader(node.proc).read({ended, stays}).processes.keys() == {stays}


async def test_the_use_moves_until_the_end(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.demo.container_processes.SECONDS", 0.001)
    node.processes.use(TRAINER, "A", GIB, 0.5)
    node.processes.sway()
    try:
        await eventually(lambda: node.running[0]["utilization"] == 0.3)
        await eventually(lambda: node.running[0]["utilization"] == 0.5)
        assert node.running[0]["memory"] == GIB
    finally:
        node.processes.stop()
