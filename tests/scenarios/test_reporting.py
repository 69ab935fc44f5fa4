"""What Koordinator is told of the cards, from the hardware to the API server or to koordlet's directory."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

import anyio
import pytest
from cluster.koordlets import Koordlet, from_files, pod
from support.waiting import eventually

from agent.cluster.api_connection import ApiConnection
from agent.cluster.credentials import find
from agent.core.cell import Cell
from agent.daemon import scheduler_plugins
from agent.daemon.guarded_scheduler import guarded
from agent.scheduler_api import Scheduler
from agent.schedulers.koordinator.node_report import NODE_REPORT
from agent.state.uninstall_record import NAME, RecordedObject, UninstallRecord
from agent.testing.simapi import SimApiServer

from .conftest import NVIDIA_OR_SIMULATED, ONLY_NVIDIA
from .node import PATIENCE, Node, shared, whole
from .process import AgentProcess

XPU = "example.com/xpu"
DEVICES = "/apis/scheduling.koordinator.sh/v1alpha1/devices"


@pytest.fixture
async def api(node: Node, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SimApiServer]:
    async with SimApiServer() as api:
        api.put_object({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node"}})
        monkeypatch.setenv("XPU_AGENT_KUBECONFIG", str(api.kubeconfig(node.root / "kubeconfig")))
        yield api


def configure(node: Node, name: str = XPU, *, own: Mapping[str, Any] | None = None, **report: Any) -> None:
    """`own`: what the config says beside of the vendor of the node's cards."""
    node.configure(shared(name, 2))
    directory = node.root / "infos"
    directory.mkdir(exist_ok=True)
    document = json.loads(node.config.read_text())
    document["report"] = {"deviceInfosDir": str(directory), **report}
    document["vendors"][node.cards.vendor] |= own or {}
    node.write(json.dumps(document, default=list))


def told(api: SimApiServer) -> dict[int, bool]:
    """The cards of the Device and their health, by minor."""
    device = api.find("Device", "node") or {"spec": {"devices": []}}
    return {it["minor"]: it["health"] for it in device["spec"].get("devices", ())}


def written(node: Node) -> dict[int, bool] | None:
    """The same of what koordlet makes of the file."""
    devices = from_files(node.root / "infos")
    return None if devices is None else {it["minor"]: it["health"] for it in devices}


def writes(api: SimApiServer) -> int:
    verbs = ("create", "update", "patch", "delete")
    return sum(it.verb in verbs and it.path.startswith(DEVICES) for it in api.requests)


async def until(api: SimApiServer, *health: bool) -> None:
    with anyio.fail_after(PATIENCE):
        await api.wait(lambda it: told(it) == dict(enumerate(health)))


@NVIDIA_OR_SIMULATED
@pytest.mark.parametrize("mode", ["auto", "device"])
async def test_a_sick_card_is_unhealthy_in_the_device_and_a_restart_of_the_agent_writes_nothing(
    node: Node, process: AgentProcess, api: SimApiServer, mode: str
) -> None:
    configure(node, mode=mode)
    await process.start()
    await until(api, True, True, True, True)

    await node.fail(1)
    await until(api, True, False, True, True)
    before = writes(api)
    await process.kill()
    await process.start()

    shown = await process.until(lambda it: it["report"]["cards"])
    assert shown["report"] | {"vendor": "", "why": ""} == {
        "mode": "device",
        "vendor": "",
        "why": "",
        "cards": 4,
        "healthy": 3,
        "leftOut": [],
        "overwritten": False,
        "error": "",
    }
    assert told(api) == {0: True, 1: False, 2: True, 3: True}
    assert writes(api) == before


async def test_an_outage_of_the_api_server_loses_no_word_of_a_card(
    node: Node, process: AgentProcess, api: SimApiServer
) -> None:
    configure(node, mode="device")
    await process.start()
    await until(api, True, True, True, True)
    await api.go_away()

    await node.fail(2)
    await process.until(lambda it: it["report"]["healthy"] == 3)
    await api.come_back()

    await until(api, True, True, False, True)


@NVIDIA_OR_SIMULATED
async def test_beside_a_koordlet_the_file_is_kept_and_the_device_left_to_it(
    node: Node, process: AgentProcess, api: SimApiServer
) -> None:
    api.put_object(pod("node"))
    koordlet = Koordlet(api, "node")
    koordlet.report([])
    configure(node, mode="auto")
    await process.start()
    await eventually(lambda: written(node) == dict.fromkeys(range(4), True), PATIENCE)

    await node.fail(3)
    await eventually(lambda: written(node) == {0: True, 1: True, 2: True, 3: False}, PATIENCE)
    koordlet.report(from_files(node.root / "infos") or [])
    await process.kill()

    # koordlet reads it while the agent is away, too.
    assert written(node) == told(api) == {0: True, 1: True, 2: True, 3: False}
    assert writes(api) == 0


async def test_a_koordlet_that_comes_and_overwrites_the_device_is_fed_from_then_on(
    node: Node, process: AgentProcess, api: SimApiServer
) -> None:
    configure(node, mode="auto")
    await process.start()
    await until(api, True, True, True, True)
    koordlet = Koordlet(api, "node")

    koordlet.report([])
    await eventually(lambda: written(node) == dict.fromkeys(range(4), True), PATIENCE)
    koordlet.report(from_files(node.root / "infos") or [])
    for card in range(3):  # what the agent has to tell changes, and the Device stays koordlet's
        await node.fail(card)
        await eventually(lambda card=card: (written(node) or {}).get(card) is False, PATIENCE)  # type: ignore[misc]
        koordlet.report(from_files(node.root / "infos") or [])
        assert not koordlet.report(from_files(node.root / "infos") or [])

    assert koordlet.writes == 5
    assert writes(api) == 1
    shown = (await process.until(lambda it: it["report"]["overwritten"]))["report"]
    assert (shown["mode"], shown["why"]) == ("feed", "a koordlet overwrote this node's Device")
    with anyio.fail_after(PATIENCE):
        await api.wait(lambda it: "ReportOverwritten" in {one.get("reason") for one in it.objects})


async def test_an_agent_told_to_keep_the_device_stops_beside_a_koordlet_and_is_not_ready(
    node: Node, process: AgentProcess, api: SimApiServer
) -> None:
    api.put_object(pod("node"))
    configure(node, mode="device")
    await process.start()

    why = "which would overwrite the agent's Device; set report.mode to auto or feed"
    await process.until(lambda it: any(why in one for one in it["troubles"]))
    assert writes(api) == 0
    assert written(node) == {}


async def test_without_koordinator_nothing_is_told_and_the_cards_are_served_as_ever(
    node: Node, process: AgentProcess, api: SimApiServer
) -> None:
    api.unserve("scheduling.koordinator.sh", "devices")
    configure(node, mode="auto")
    await process.start()
    await node.counts({XPU: (8, 8)})

    shown = await process.until(lambda it: it["ready"] and it["report"]["mode"] == "none")

    assert "Koordinator is not installed" in shown["report"]["why"]
    assert not [it for it in api.requests if it.path.startswith(DEVICES)]


async def test_the_way_follows_the_config_while_the_agent_runs(
    node: Node, process: AgentProcess, api: SimApiServer
) -> None:
    configure(node, mode="none")
    await process.start()
    await process.until(lambda it: it["report"]["why"] == "report.mode is 'none'")
    assert writes(api) == 0

    configure(node, mode="feed")
    await eventually(lambda: written(node) == dict.fromkeys(range(4), True), PATIENCE)
    configure(node, mode="none")
    await eventually(lambda: written(node) == {}, PATIENCE)
    configure(node, mode="device")
    await until(api, True, True, True, True)


async def test_cards_that_are_to_be_told_no_more_go_also_where_the_config_changed_while_no_agent_ran(
    node: Node, process: AgentProcess, api: SimApiServer
) -> None:
    remains = UninstallRecord(node.state / NAME)
    configure(node, mode="device")
    await process.start()
    await until(api, True, True, True, True)
    assert remains.objects() == (RecordedObject("node", "devices.scheduling.koordinator.sh"),)

    configure(node, mode="none")
    await eventually(lambda: api.find("Device", "node") is None, PATIENCE)
    await eventually(lambda: remains.objects() == (), PATIENCE)

    configure(node, mode="device")
    await until(api, True, True, True, True)
    await process.kill()
    configure(node, mode="none")
    await process.start()
    await eventually(lambda: api.find("Device", "node") is None, PATIENCE)


async def test_a_card_that_no_resource_offers_is_unhealthy_to_a_scheduler(
    node: Node, process: AgentProcess, api: SimApiServer
) -> None:
    node.configure(whole(XPU, [0, 2]))
    await process.start()

    await until(api, True, False, True, False)
    device: Any = api.find("Device", "node")
    why = {it["minor"]: it["conditions"][0] for it in device["spec"]["devices"]}[1]
    assert (why["reason"], why["message"]) == ("NotOffered", "no resource offers it as a whole")


@pytest.mark.parametrize("how", ["shares", "off"])
async def test_cards_that_the_config_takes_from_under_a_scheduler_are_taken_back(
    node: Node, process: AgentProcess, api: SimApiServer, how: str
) -> None:
    configure(node, mode="auto")
    await process.start()
    await until(api, True, True, True, True)

    if how == "shares":
        configure(node, "nvidia.com/gpu", mode="auto")
    else:
        configure(node, own={"enabled": False}, mode="auto")

    await eventually(lambda: api.find("Device", "node") is None, PATIENCE)
    configure(node, mode="auto")
    await until(api, True, True, True, True)


@ONLY_NVIDIA
async def test_cards_without_a_cdi_spec_are_unhealthy_to_a_scheduler_as_to_the_kubelet(
    node: Node, process: AgentProcess, api: SimApiServer
) -> None:
    node.cdi.write_text("in the way")
    configure(node, own={"settings": {"deviceListStrategy": "cdi-cri"}}, mode="device")
    await process.start()
    await until(api, False, False, False, False)

    await process.kill()
    node.cdi.unlink()
    await process.start()
    await until(api, True, True, True, True)


async def test_a_scheduler_s_plugin_that_fails_ends_no_agent_and_costs_no_card(
    node: Node, api: SimApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken: set[str] = set()

    def breakable(group: Any, *names: str) -> Any:
        def guard(name: str) -> Any:
            works = getattr(group, name)

            def call(*arguments: Any) -> Any:
                if name in broken:
                    raise KeyError(name)
                return works(*arguments)

            return call

        return replace(group, **{name: guard(name) for name in names})

    kept = breakable(NODE_REPORT.object, "judge", "wanted", "listed", "is_of_program", "withdrawn")
    report = breakable(replace(NODE_REPORT, object=kept), "report", "choose", "passed_over")
    others = [it for it in scheduler_plugins.registered() if it.report is None]
    acme = guarded(Scheduler("acme", program="acme-scheduler", report=report))
    monkeypatch.setattr("agent.daemon.scheduler_plugins.registered", lambda: (*others, acme))
    configure(node, mode="device")
    await node.start()
    await node.counts({XPU: (8, 8)})
    access = find(node.root / "kubeconfig", {})
    assert access is not None
    publisher = node.agent.parts.publisher
    connection = ApiConnection(access, "node", Cell(None), report=publisher.report_state)
    async with anyio.create_task_group() as group:
        wanted = publisher.labels, publisher.annotations, publisher.receipts, publisher.extended
        group.start_soon(connection.run, *wanted)
        await until(api, True, True, True, True)

        broken.update({"report", "choose", "passed_over", "judge", "wanted", "listed", "is_of_program"})
        await node.fail(1)
        await node.counts({XPU: (8, 6)})
        await node.until(lambda it: "acme: its plugin fails in report." in it.reported.error)
        assert told(api) == dict.fromkeys(range(4), True)

        broken.clear()
        node.cards.reset(1)
        await node.counts({XPU: (8, 8)})
        await node.fail(2)
        await until(api, True, True, False, True)
        await node.until(lambda it: it.reported.error == "")
        group.cancel_scope.cancel()
