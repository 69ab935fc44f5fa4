"""The node's Device at the API server: one write for each change, and none against a koordlet."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from kubelet.fakes import eventually

from agent.cluster import node
from agent.cluster.access import find
from agent.cluster.client import open_api
from agent.cluster.devices import DEVICES, VERSION, DeviceWriter
from agent.cluster.koordinator import Koordinator
from agent.cluster.node import OwnNode
from agent.cluster.reflector import Following, Reflector
from agent.core.cell import Cell
from agent.core.koordinator.mode import Exchange, Shown, Telling, choice
from agent.core.koordinator.report import Card, Report
from agent.core.pauses import Pauses
from agent.testing.simapi import SimApiServer
from agent.testing.simapi.resources import WELL_KNOWN

from .koordlets import Koordlet, cards, pod

NODE = "node-1"
DEVICE = next(it for it in WELL_KNOWN if it.kind == "Device")
GIB = 1 << 30
QUICK = Following(shortest=0.01, longest=0.1, refused=0.1)


def reported(count: int = 2, **card: Any) -> Report:
    made = (Card(f"GPU-{it}", it, memory=48 * GIB, pcie="pci0000:3a", numa=0) for it in range(count))
    its = [replace(it, **card) if it.minor == 0 else it for it in made]
    return Report("nvidia", tuple(its), "A40", "570.1")


class Clock:
    """Unix seconds that stand still."""

    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


@dataclass
class Here:
    """A server with the node, and what looks at it and writes its Device."""

    server: SimApiServer
    exchange: Exchange
    koordinator: Koordinator
    returns: Cell[int]
    clock: Clock

    def tell(self, report: Report | None, mode: Any = "device") -> None:
        self.exchange.telling.set(Telling(mode, report))

    @property
    def device(self) -> Any:
        return self.server.find("Device", NODE)

    def health(self) -> list[bool]:
        return [it["health"] for it in self.device["spec"]["devices"]] if self.device else []

    def shown(self, **its: Any) -> Callable[[], bool]:
        def holds() -> bool:
            shown = self.exchange.shown.value
            return shown is not None and all(getattr(shown, key) == it for key, it in its.items())

        return holds

    def written(self) -> list[str]:
        verbs = {"create", "update", "patch", "delete"}
        return [it.verb for it in self.server.requests if it.verb in verbs and it.path.startswith(DEVICES)]


@asynccontextmanager
async def looking(
    tmp_path: Path, *, kind: bool = True, linger: float = 0.2, before: Any = None
) -> AsyncIterator[Here]:
    resources = [it for it in WELL_KNOWN if kind or it.kind != "Device"]
    async with SimApiServer(resources, bookmark_every=0.5) as server:
        server.put_object({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        for it in before or ():
            server.put_object(it)
        access = find(server.kubeconfig(tmp_path / "kubeconfig"), {})
        assert access is not None
        api = await open_api(access)
        own: Cell[OwnNode | None] = Cell(None)
        labels: Cell[Mapping[str, str] | None] = Cell(None)
        exchange, returns, clock = Exchange(), Cell(0), Clock()
        exchange.looks.set(True)
        nodes = Reflector(api, node.NODES, node.query(NODE), node.own_node, QUICK)
        writer = partial(
            DeviceWriter,
            clock=clock,
            pauses=Pauses(0.01, 0.05),
            refused=Pauses(0.01, 0.05),
            between=0.01,
        )
        koordinator = Koordinator(
            api, NODE, exchange, own, QUICK, every=0.05, linger=linger, look=0.02, clock=clock, writer=writer
        )
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(nodes.run)
                group.start_soon(node.follow, nodes.cell, NODE, own, labels)
                group.start_soon(koordinator.run, returns)
                yield Here(server, exchange, koordinator, returns, clock)
                group.cancel_scope.cancel()
        finally:
            await api.close()


async def test_what_is_told_becomes_the_node_s_device_and_each_change_one_write(tmp_path: Path) -> None:
    async with looking(tmp_path) as here:
        here.tell(reported())
        await eventually(lambda: here.health() == [True, True])

        owner = here.device["metadata"]["ownerReferences"][0]
        assert (owner["kind"], owner["name"]) == ("Node", NODE)
        assert here.device["metadata"]["labels"]["node.koordinator.sh/gpu-vendor"] == "nvidia"

        here.tell(reported(healthy=False, status="False", reason="Xid79", message="fell off the bus"))
        await eventually(lambda: here.health() == [False, True])
        here.tell(reported())
        await eventually(lambda: here.health() == [True, True])

        assert here.written() == ["create", "update", "update"]
        assert here.koordinator.writes == 3


async def test_while_nothing_changes_nothing_is_written(tmp_path: Path) -> None:
    async with looking(tmp_path) as here:
        here.tell(reported())
        await eventually(lambda: here.health() == [True, True])
        await eventually(here.shown(kind=True, koordlet=""))

        for _ in range(3):
            here.server.end_watches()
            asked = len(here.server.requests)
            await here.server.wait(lambda it, asked=asked: len(it.requests) > asked + 1)  # type: ignore[misc]
            here.exchange.telling.touch()

        assert here.written() == ["create"]


async def test_what_others_have_in_it_stays(tmp_path: Path) -> None:
    nic = {"type": "rdma", "id": "0000:01:00.0", "minor": 0, "health": True}
    labels = {"theirs": "1"}
    metadata = {"name": NODE, "labels": labels, "annotations": labels, "uid": "u"}
    there = {"apiVersion": VERSION.removeprefix("/apis/"), "kind": "Device", "metadata": metadata}
    async with looking(tmp_path, before=[{**there, "spec": {"devices": [nic]}}]) as here:
        here.tell(reported())
        await eventually(lambda: len(here.health()) == 3)

        assert nic in here.device["spec"]["devices"]
        assert here.device["metadata"]["labels"].items() >= labels.items()
        assert here.device["metadata"]["annotations"].items() >= labels.items()


async def test_while_it_is_not_told_by_a_device_or_not_known_at_all_none_is_written(tmp_path: Path) -> None:
    async with looking(tmp_path) as here:
        await eventually(here.shown(kind=True, told=None))
        for telling in (Telling("feed", reported()), Telling("none"), Telling("device", None)):
            here.exchange.telling.set(telling)
            asked = len(here.server.requests)
            here.server.end_watches()
            await here.server.wait(lambda it, asked=asked: len(it.requests) > asked + 1)  # type: ignore[misc]

        assert here.device is None
        assert here.written() == []


async def test_an_outage_loses_nothing_and_is_caught_up_with_in_one_write(tmp_path: Path) -> None:
    async with looking(tmp_path) as here:
        here.tell(reported())
        await eventually(lambda: here.health() == [True, True])

        await here.server.go_away()
        here.tell(reported(healthy=False, status="False", reason="Xid79"))
        await eventually(lambda: here.koordinator.waits)
        assert not here.koordinator.error
        here.tell(reported(3, healthy=False, status="False", reason="Xid48"))
        await here.server.come_back()
        here.returns.set(1)

        await eventually(lambda: here.health() == [False, True, True])
        assert here.written() == ["create", "update"]
        await eventually(lambda: not here.koordinator.waits)


async def test_a_write_of_another_between_is_kept_and_ours_comes_after_it(tmp_path: Path) -> None:
    async with looking(tmp_path) as here:
        here.tell(reported())
        await eventually(lambda: here.health() == [True, True])
        theirs = here.device
        theirs["metadata"]["labels"]["theirs"] = "1"
        here.server.put_object(theirs)
        here.tell(reported(3))

        await eventually(lambda: here.health() == [True, True, True])
        assert here.device["metadata"]["labels"]["theirs"] == "1"


@pytest.mark.parametrize("fault", ["busy", "broken", "forbidden"])
async def test_a_server_that_does_not_take_it_is_tried_again(tmp_path: Path, fault: str) -> None:
    async with looking(tmp_path) as here:
        await eventually(here.shown(kind=True))
        here.server.forbid("create", DEVICES)
        here.tell(reported())
        await eventually(lambda: "403" in here.koordinator.error)
        if fault == "busy":
            here.server.be_busy(2, retry_after=0)
        if fault == "broken":
            here.server.be_broken(2)
        here.server.permit("create", DEVICES)

        await eventually(lambda: here.health() == [True, True])
        await eventually(lambda: not here.koordinator.error)


async def test_a_device_that_somebody_deletes_is_made_again(tmp_path: Path) -> None:
    async with looking(tmp_path) as here:
        here.tell(reported())
        await eventually(lambda: here.health() == [True, True])

        here.server.delete_object("Device", NODE)

        await eventually(lambda: here.health() == [True, True])


async def test_a_node_that_is_made_anew_owns_it_and_none_is_made_without_a_node(tmp_path: Path) -> None:
    async with looking(tmp_path) as here:
        here.tell(reported())
        await eventually(lambda: here.health() == [True, True])
        here.server.delete_object("Node", NODE)
        # As the garbage collector does it.
        here.server.delete_object("Device", NODE)
        here.server.put_object({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        new: Any = here.server.find("Node", NODE)

        def owned() -> bool:
            owners = here.device["metadata"]["ownerReferences"] if here.device else []
            return [it["uid"] for it in owners] == [new["metadata"]["uid"]]

        await eventually(owned)


async def test_where_there_are_no_devices_nothing_is_asked_but_whether_there_are_by_now(
    tmp_path: Path,
) -> None:
    async with looking(tmp_path, kind=False) as here:
        await eventually(here.shown(kind=False))
        assert not [it for it in here.server.requests if it.path == DEVICES]

        here.server.serve(DEVICE)
        here.tell(reported())
        await eventually(here.shown(kind=True))
        await eventually(lambda: here.health() == [True, True])

        here.server.unserve(DEVICE.group, DEVICE.name)
        here.server.end_watches()
        await eventually(here.shown(kind=False))

        here.server.serve(DEVICE)
        await eventually(lambda: here.health() == [True, True])


async def test_nobody_looks_where_nobody_wants_to_know(tmp_path: Path) -> None:
    async with looking(tmp_path) as here:
        await eventually(here.shown(kind=True))
        here.exchange.looks.set(False)
        await eventually(lambda: here.exchange.shown.value is None and here.server.watchers == 1)

        here.exchange.looks.set(True)
        await eventually(here.shown(kind=True))


# Beside a koordlet


async def test_a_koordlet_s_pod_shows_that_it_reports_and_counts_for_a_while_after_it(tmp_path: Path) -> None:
    async with looking(tmp_path) as here:
        await eventually(here.shown(koordlet=""))
        here.server.put_object(pod(NODE))
        await eventually(
            here.shown(koordlet="koordlet koordinator-system/koordlet-x runs here with Accelerators=true")
        )

        here.server.delete_object("Pod", "koordlet-x", "koordinator-system")
        await eventually(here.shown(koordlet=""))


async def test_a_rollout_of_koordlet_changes_nothing(tmp_path: Path) -> None:
    async with looking(tmp_path, linger=3600, before=[pod(NODE)]) as here:
        await eventually(lambda: "runs here" in (here.exchange.shown.value or Shown()).koordlet)

        here.server.delete_object("Pod", "koordlet-x", "koordinator-system")

        for _ in range(5):
            asked = len(here.server.requests)
            here.server.end_watches()
            await here.server.wait(lambda it, asked=asked: len(it.requests) > asked + 2)  # type: ignore[misc]
            assert "runs here" in (here.exchange.shown.value or Shown()).koordlet


async def test_another_node_s_koordlet_and_one_without_the_gate_do_not_count(tmp_path: Path) -> None:
    before = [
        pod("node-2"),
        {**pod(NODE, "Accelerators=false"), "metadata": {**pod(NODE)["metadata"], "name": "other"}},
    ]
    async with looking(tmp_path, before=before) as here:
        await eventually(here.shown(kind=True, koordlet=""))


async def test_a_koordlet_that_wrote_a_moment_ago_reports_and_one_that_wrote_long_ago_does_not(
    tmp_path: Path,
) -> None:
    async with looking(tmp_path) as here:
        Koordlet(here.server, NODE).report(cards())
        await eventually(here.shown(koordlet="a koordlet has just written this node's Device"))

        here.clock.now += 61

        await eventually(here.shown(koordlet=""))


async def test_a_koordlet_that_overwrites_is_left_alone_at_once_and_the_agent_never_writes_again(
    tmp_path: Path,
) -> None:
    async with looking(tmp_path) as here:
        here.tell(reported())
        await eventually(lambda: here.health() == [True, True])
        koordlet = Koordlet(here.server, NODE)

        koordlet.report(cards(1))
        await eventually(here.shown(overwritten=True))
        here.clock.now += 3600

        for _ in range(20):  # a minute of its loop
            asked = len(here.server.requests)
            here.server.end_watches()
            await here.server.wait(lambda it, asked=asked: len(it.requests) > asked)  # type: ignore[misc]
            koordlet.report(cards(1))
        assert koordlet.writes == 1
        assert here.written() == ["create"]
        assert here.shown(koordlet="a koordlet overwrote this node's Device")()


async def test_once_the_koordlet_that_overwrote_is_gone_the_device_is_ours_again(tmp_path: Path) -> None:
    async with looking(tmp_path) as here:
        here.tell(reported())
        await eventually(lambda: here.health() == [True, True])
        Koordlet(here.server, NODE).report(cards(1))
        await eventually(here.shown(overwritten=True))
        here.server.put_object(pod(NODE))
        await eventually(lambda: "runs here" in (here.exchange.shown.value or Shown()).koordlet)
        here.clock.now += 3600

        here.server.delete_object("Pod", "koordlet-x", "koordinator-system")

        await eventually(here.shown(koordlet="", overwritten=False))
        await eventually(lambda: here.health() == [True, True])


async def test_who_may_not_list_pods_knows_a_koordlet_by_its_hand(tmp_path: Path) -> None:
    async with looking(tmp_path) as here:
        here.exchange.looks.set(False)
        await eventually(lambda: here.exchange.shown.value is None)
        here.server.forbid("list", "/api/v1/pods")
        here.exchange.looks.set(True)
        await eventually(here.shown(kind=True, koordlet="", refused=""))

        Koordlet(here.server, NODE).report(cards())

        await eventually(here.shown(koordlet="a koordlet has just written this node's Device"))


async def test_who_may_not_see_devices_is_told_which_right_is_missing(tmp_path: Path) -> None:
    async with looking(tmp_path) as here:
        here.exchange.looks.set(False)
        await eventually(lambda: here.exchange.shown.value is None)
        here.server.forbid("list", DEVICES)
        here.exchange.looks.set(True)

        await eventually(lambda: "403" in (here.exchange.shown.value or Shown()).refused)

        chosen = choice("device", here.exchange.shown.value, api=True)
        assert chosen is not None
        assert chosen.trouble
        assert "allow get, list, watch, create and update" in chosen.why
