"""Koordinator's whole way: our Device, the Node that its manager makes of it, the choice, containers.

Manager and scheduler are those of tests/koordinator: they know of the cards what the Device says, no more.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from koordinator.manager import Manager
from koordinator.scheduler import ALLOCATED, Asking, Bound, Scheduler, booked
from koordinator.wishes import CORE, RATIO, SHARED, Unschedulable

from agent.testing.node import Container, Pod
from agent.testing.simapi import SimApiServer

from .cards import Nvidia
from .conftest import ANY_KUBELET, EVERY_VENDOR, ONLY_NVIDIA
from .node import PATIENCE, Node, shared, whole
from .process import AgentProcess

pytestmark = ANY_KUBELET

GPU, TOKEN = "nvidia.com/gpu", "nvidia.com/gpu.shared"
WELL = (True, True, True, True)


@dataclass
class Koordinator:
    """Its programs beside one node."""

    api: SimApiServer
    node: Node
    process: AgentProcess
    scheduler: Scheduler = field(default_factory=Scheduler)
    manager: Manager = field(default_factory=Manager)
    pods: dict[str, Bound] = field(default_factory=dict)
    #: The scheduler binds one pod after the other.
    clock: itertools.count[int] = field(default_factory=lambda: itertools.count(1_795_210_468))

    async def starts(self, rule: Mapping[str, Any], offered: int) -> None:
        self.node.configure(rule)
        document = json.loads(self.node.config.read_text())
        document["report"] = {"mode": "device", "deviceInfosDir": str(self.node.root / "infos")}
        self.node.write(json.dumps(document, default=list))
        await self.process.start()
        await self.hears()
        await self.node.counts({rule["name"]: (offered, offered)})
        await self.sees(*WELL)

    async def hears(self) -> None:
        await self.process.until(lambda it: it["apiServer"] and it["apiServer"]["synced"])

    async def sees(self, *health: bool) -> None:
        """Wait until the Device says so of the cards, and let the Node have what follows."""

        def says(api: SimApiServer) -> bool:
            device = api.find("Device", "node")
            return device is not None and tuple(it["health"] for it in device["spec"]["devices"]) == health

        with anyio.fail_after(PATIENCE):
            await self.api.wait(says)
        self.manager.sees(self.api.find("Device", "node"))
        assert self.manager.resources[CORE] == 100 * sum(health)

    async def binds(self, name: str, *containers: Mapping[str, str]) -> Pod:
        """The pod as it comes to the node's kubelet; its containers are called a, b, and so on.

        Raises:
            Unschedulable: It stays where it is.
        """
        asking = Asking(name, containers)
        counted = {it: count.allocatable for it, count in (await self.node.kubelet.capacity()).items()}
        bound = self.scheduler.bind(
            asking,
            self.api.find("Device", "node"),
            list(self.pods.values()),
            allocatable=counted | self.manager.resources,
            now=next(self.clock),
        )
        self.pods[name] = bound
        its = [Asking("", (it,)).total for it in containers]
        pod = Pod(name, tuple(Container(it, "abc"[n]) for n, it in enumerate(its)))
        self.api.put_object(_object(pod, bound))
        return pod

    async def runs(self, name: str, *containers: Mapping[str, str]) -> Pod:
        """The pod with containers that are told of the very cards that were written on it, in their order."""
        pod = await self.binds(name, *containers)
        await self.node.admit_pod(pod)
        promised = iter(self.promised(pod))
        for it in pod.containers:
            told = await self.node.cards_of(pod, it.name)
            assert told == set(itertools.islice(promised, len(told)))
        assert not list(promised)
        return pod

    def promised(self, pod: Pod) -> list[str]:
        return [it["id"] for it in json.loads(self.pods[pod.name].annotations[ALLOCATED])["gpu"]]

    async def ends(self, pod: Pod) -> None:
        await self.node.kubelet.delete(pod.uid)
        self.api.delete_object("Pod", pod.name, pod.namespace)
        del self.pods[pod.name]

    async def is_one_with_the_agent(self) -> None:
        """Wait until the agent's ledger has, pod by pod, the cards that the scheduler has in its book."""
        book = {
            (name, it["id"])
            for name, bound in self.pods.items()
            for it in json.loads(bound.annotations[ALLOCATED])["gpu"]
        }
        assert {it for _, it in book} == {
            self.node.cards.uuids[minor] for minor in booked(self.pods.values()).get("gpu", {})
        }
        await self.process.until(lambda it: _ledger(it) == book)


def _ledger(document: Mapping[str, Any]) -> set[tuple[str, str]]:
    return {
        ((it["owner"] or it["claim"] or {"pod": ""})["pod"], uuid)
        for it in document["allocations"]
        if it["state"] == "done"
        for uuid in it["devices"]
    }


def _object(pod: Pod, bound: Bound) -> dict[str, Any]:
    containers = [
        {"name": it.name, "resources": {"limits": {name: str(count) for name, count in it.limits.items()}}}
        for it in pod.containers
    ]
    metadata = {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**metadata, "annotations": dict(bound.annotations), "labels": dict(bound.labels)},
        "spec": {"nodeName": "node", "schedulerName": "koord-scheduler", "containers": containers},
        "status": {"phase": "Pending"},
    }


@pytest.fixture
async def koordinator(
    node: Node, process: AgentProcess, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Koordinator]:
    async with SimApiServer() as api:
        api.put_object({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node"}})
        monkeypatch.setenv("XPU_AGENT_KUBECONFIG", str(api.kubeconfig(node.root / "kubeconfig")))
        yield Koordinator(api, node, process)


async def breaks(node: Node, index: int) -> None:
    """Let a card fail, so that an agent to come knows what it takes to be well again."""
    await node.fail(index)
    if isinstance(node.cards, Nvidia):
        node.cards.stub.recovery(index, 1)
        await node.saved('"recovery_due":true')


def share(percent: int, **more: str) -> dict[str, str]:
    return {CORE: str(percent), RATIO: str(percent), SHARED: "1", **more}


@EVERY_VENDOR
async def test_containers_get_the_cards_that_a_scheduler_chose_from_our_device_alone(
    koordinator: Koordinator, node: Node
) -> None:
    await koordinator.starts(whole(GPU, placement="auto"), 4)

    await koordinator.binds("asks-no-plugin", share(50))
    await node.counts({GPU: (4, 3)})
    await koordinator.runs("one", {GPU: "1"})
    await koordinator.runs("both", {GPU: "1"}, {GPU: "1"})
    await koordinator.binds("shares-it-too", share(40))

    with pytest.raises(Unschedulable, match=f"Insufficient {GPU}"):
        await koordinator.binds("one-too-many", {GPU: "1"})
    with pytest.raises(Unschedulable, match="Insufficient GPU Devices"):
        await koordinator.binds("a-share-too-many", share(20))
    await koordinator.is_one_with_the_agent()


@EVERY_VENDOR
async def test_broken_cards_restarts_and_pods_that_end_leave_scheduler_and_agent_of_one_mind(
    koordinator: Koordinator, node: Node, process: AgentProcess
) -> None:
    await koordinator.starts(whole(GPU, placement="auto"), 4)
    first = await koordinator.runs("first", {GPU: "1"})
    pair = await koordinator.runs("pair", {GPU: "2"})
    broken = node.cards.uuids.index(koordinator.promised(first)[0])

    await breaks(node, broken)
    await koordinator.sees(*(it != broken for it in range(4)))
    await koordinator.ends(first)
    await process.kill()
    await process.start()
    await koordinator.hears()
    await node.counts({GPU: (4, 3)})
    await koordinator.runs("next", {GPU: "1"})
    with pytest.raises(Unschedulable):
        await koordinator.binds("nowhere", {GPU: "1"})
    await koordinator.is_one_with_the_agent()

    node.cards.reset(broken)
    await koordinator.sees(*WELL)
    await node.counts({GPU: (4, 4)})
    await node.kubelet.restart()
    await node.counts({GPU: (4, 4)})
    again = await koordinator.runs("again", {GPU: "1"})
    assert koordinator.promised(again) == [node.cards.uuids[broken]]
    await koordinator.ends(pair)
    await koordinator.runs("pair-again", {GPU: "2"})
    await koordinator.is_one_with_the_agent()


@ONLY_NVIDIA
async def test_shares_are_where_the_scheduler_counts_them_and_fill_a_card_to_its_brim(
    koordinator: Koordinator, node: Node
) -> None:
    await koordinator.starts(shared(TOKEN, 100, placement="claim", policy="distributed"), 400)

    for n, percent in enumerate((60, 30, 100, 50, 30)):
        await koordinator.runs(f"share-{n}", share(percent, **{TOKEN: "1"}))
    await koordinator.runs("pair", {CORE: "20", RATIO: "20", SHARED: "2", TOKEN: "2"})

    with pytest.raises(Unschedulable, match="Insufficient GPU Devices"):
        await koordinator.binds("one-too-many", share(95, **{TOKEN: "1"}))
    await koordinator.is_one_with_the_agent()
    assert max(it[RATIO] for it in booked(koordinator.pods.values())["gpu"].values()) == 100
