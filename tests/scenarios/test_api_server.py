"""What the API server adds, and what goes on without it: labels, the config they choose, events."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from agent.cluster.pods import PODS
from agent.testing.kubelet import SimKubelet
from agent.testing.simapi import SimApiServer

from .conftest import ONLY_NVIDIA
from .node import PATIENCE, Node, Rule, shared, whole
from .process import AgentProcess

XPU = "example.com/xpu"
GPUS = "nvidia.com/gpu.count"


@pytest.fixture
async def api(node: Node, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SimApiServer]:
    async with SimApiServer() as api:
        api.put_object({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node"}})
        monkeypatch.setenv("XPU_AGENT_KUBECONFIG", str(api.kubeconfig(node.root / "kubeconfig")))
        yield api


def noted(api: SimApiServer) -> dict[str, str]:
    node = api.find("Node", "node")
    assert node is not None
    return {**node["metadata"].get("annotations", {})}


def labels(api: SimApiServer) -> dict[str, str]:
    node = api.find("Node", "node")
    assert node is not None
    return {**node["metadata"].get("labels", {})}


def label(api: SimApiServer, **its: str) -> None:
    """Give the Node these labels, and take away any other."""
    api.put_object({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node", "labels": its}})


def configure(node: Node, otherwise: Rule, **pools: Rule) -> None:
    """Write a config that shares the cards as the Node's label `pool` says."""
    node.configure(otherwise)
    document = json.loads(node.config.read_text())
    document["nodes"] = [
        {"match": {"labels": {"pool": pool}}, "set": {"vendors": {node.cards.vendor: {"resources": [rule]}}}}
        for pool, rule in pools.items()
    ]
    node.write(json.dumps(document, default=list))


async def told(api: SimApiServer, wanted: Any) -> None:
    with anyio.fail_after(PATIENCE):
        await api.wait(lambda it: wanted(labels(it)))


@ONLY_NVIDIA
async def test_the_node_has_the_labels_of_its_cards_and_keeps_them_when_the_agent_ends(
    node: Node, process: AgentProcess, api: SimApiServer
) -> None:
    label(api, pool="train")
    node.configure(whole(XPU))
    await process.start()

    await told(api, lambda it: it.get(GPUS) == "4")
    await process.kill()

    assert labels(api).items() >= {"pool": "train", GPUS: "4"}.items()


@ONLY_NVIDIA
async def test_the_namespace_of_a_node_feature_is_written_down_for_uninstall(
    node: Node, process: AgentProcess, api: SimApiServer
) -> None:
    node.configure(whole(XPU))
    document = json.loads(node.config.read_text())
    report = {**document["report"], "labelsAs": "nodeFeature", "namespace": "gpu"}
    node.write(json.dumps({**document, "report": report}, default=list))
    await process.start()

    with anyio.fail_after(PATIENCE):
        await api.wait(lambda it: it.find("NodeFeature", "xpu-agent-features-for-node", "gpu"))

    assert "namespace:gpu" in (node.state / "agent.remains").read_text().splitlines()


@ONLY_NVIDIA
async def test_labels_follow_once_the_api_server_is_back(
    node: Node, process: AgentProcess, api: SimApiServer
) -> None:
    await api.go_away()
    node.configure(whole(XPU))
    await process.start()
    await node.counts({XPU: (4, 4)})
    assert GPUS not in labels(api)

    await api.come_back()

    await told(api, lambda it: it.get(GPUS) == "4")


async def test_a_label_of_the_node_chooses_its_config_whenever_it_is_set_or_unset(
    node: Node, process: AgentProcess, api: SimApiServer
) -> None:
    label(api, pool="train")
    configure(node, shared(XPU, 2), train=whole(XPU), serve=shared(XPU, 3))
    await process.start()
    await node.counts({XPU: (4, 4)})

    label(api, pool="serve")
    await node.counts({XPU: (12, 12)})
    label(api)
    await node.counts({XPU: (8, 8)})


async def test_a_config_that_asks_for_labels_waits_for_them_rather_than_guess(
    node: Node, process: AgentProcess, api: SimApiServer
) -> None:
    await api.go_away()
    label(api, pool="train")
    configure(node, shared(XPU, 2), train=whole(XPU))
    await process.start()
    await process.until(lambda it: any("pool" in one for one in it["troubles"]))
    assert XPU not in await node.kubelet.capacity()

    await api.come_back()

    await node.counts({XPU: (4, 4)})
    # To wait is no Event: what is told now is the first.
    await node.fail(1)
    with anyio.fail_after(PATIENCE):
        await api.wait(lambda it: [one for one in it.objects if one.get("reason") == "DeviceUnhealthy"])
    assert "ConfigRefused" not in {it.get("reason") for it in api.objects}


async def test_labels_that_chose_the_config_are_known_at_the_next_start_without_the_api_server(
    node: Node, process: AgentProcess, api: SimApiServer
) -> None:
    label(api, pool="train")
    configure(node, shared(XPU, 2), train=whole(XPU))
    await process.start()
    await node.counts({XPU: (4, 4)})
    await node.saved('"pool":"train"')
    await process.kill()
    await api.go_away()

    await process.start()

    await process.until(lambda it: it["ready"] and it["apiServer"] and it["apiServer"]["error"])
    await node.counts({XPU: (4, 4)})


async def test_who_stood_by_takes_over_with_the_labels_that_the_last_agent_knew(
    node: Node, process: AgentProcess, api: SimApiServer
) -> None:
    label(api, pool="train")
    configure(node, shared(XPU, 2), train=whole(XPU), serve=shared(XPU, 3))
    await process.start()
    await node.counts({XPU: (4, 4)})
    await node.saved('"pool":"train"')
    second = AgentProcess(node)
    try:
        await second.start()
        await second.said("standing by")
        label(api, pool="serve")
        await node.counts({XPU: (12, 12)})
        await node.saved('"pool":"serve"')
        await api.go_away()

        await process.kill()

        await second.until(lambda it: it["ready"] and it["apiServer"] and it["apiServer"]["error"])
        await node.counts({XPU: (12, 12)})
    finally:
        await second.kill()


async def test_a_sick_card_is_an_event_of_the_node(
    node: Node, process: AgentProcess, api: SimApiServer
) -> None:
    node.configure(whole(XPU))
    await process.start()
    await process.until(lambda it: it["ready"] and it["apiServer"] and it["apiServer"]["synced"])
    await node.fail(1)

    with anyio.fail_after(PATIENCE):
        await api.wait(lambda it: [one for one in it.objects if one.get("reason") == "DeviceUnhealthy"])

    (event,) = [one for one in api.objects if one.get("reason") == "DeviceUnhealthy"]
    assert event["regarding"]["name"] == "node"
    assert node.cards.uuids[1] in event["note"]
    assert "xid-79" in event["note"]


async def test_events_are_written_as_soon_as_the_config_wants_them(
    node: Node, process: AgentProcess, api: SimApiServer
) -> None:
    node.configure(whole(XPU))
    document = json.loads(node.config.read_text())
    report = {**document["report"], "events": False}
    node.write(json.dumps({**document, "report": report}, default=list))
    await process.start()
    await process.until(lambda it: it["ready"] and it["apiServer"] and it["apiServer"]["synced"])
    await node.fail(1)
    await node.counts({XPU: (4, 3)})
    # So long that the agent, which looks once a second, has seen it.
    await process.until(lambda it: time.time() - it["devices"][1]["health"]["since"] > 2)
    node.cards.reset(1)
    await node.counts({XPU: (4, 4)})
    assert [it for it in api.objects if it["kind"] == "Event"] == []

    node.configure(shared(XPU, 2))
    await node.counts({XPU: (8, 8)})  # so the config is in force, all of it
    await node.fail(2)
    with anyio.fail_after(PATIENCE):
        await api.wait(lambda it: [one for one in it.objects if one.get("reason") == "DeviceUnhealthy"])
    (event,) = [it for it in api.objects if it.get("reason") == "DeviceUnhealthy"]
    assert node.cards.uuids[2] in event["note"]


async def test_the_api_server_is_asked_before_anything_is_registered_where_schedulers_choose(
    node: Node, process: AgentProcess, api: SimApiServer, sim: SimKubelet
) -> None:
    await sim.stop()
    node.configure(whole(XPU, placement="auto"))
    await process.start()

    with anyio.fail_after(PATIENCE):
        await api.wait(lambda it: any(one.path == PODS for one in it.requests))
    shown = await process.until(lambda it: it["apiServer"] and it["apiServer"]["synced"])
    assert XPU in str(shown)


async def test_pods_are_not_asked_for_where_that_is_switched_off(
    node: Node, process: AgentProcess, api: SimApiServer
) -> None:
    node.configure(whole(XPU))
    document = json.loads(node.config.read_text())
    agent = {**document["agent"], "watchPods": False}
    node.write(json.dumps({**document, "agent": agent}, default=list))
    await process.start()

    shown = await process.until(lambda it: it["apiServer"] and it["apiServer"]["synced"])

    assert shown["apiServer"]["followed"] == {"nodes": {"synced": True, "error": ""}}


async def test_where_no_pod_may_be_seen_an_agent_whose_cards_a_scheduler_must_choose_is_not_ready(
    node: Node, process: AgentProcess, api: SimApiServer
) -> None:
    api.forbid("*", "/api/v1/pods")
    node.configure(whole(XPU, placement="claim"))
    await process.start()

    await node.counts({XPU: (4, 4)})
    shown = await process.until(
        lambda it: it["troubles"] and all("no pod can be seen" in one for one in it["troubles"])
    )
    verdict = await node.refused("nobodys", {XPU: 1})

    assert not shown["ready"]
    for words in (*shown["troubles"], verdict.message):
        assert "the right to list and watch pods is missing (in the chart pods.enabled)" in words

    api.permit("*", "/api/v1/pods")
    await process.until(lambda it: it["ready"])


async def test_without_an_api_server_it_is_not_ready_either(node: Node, process: AgentProcess) -> None:
    node.configure(whole(XPU, placement="claim"))
    await process.start()

    shown = await process.until(lambda it: any("no pod can be seen" in one for one in it["troubles"]))

    assert "no API server is known here" in shown["troubles"][0]


async def test_without_the_api_server_pods_get_cards_and_faults_are_told(
    node: Node, process: AgentProcess, api: SimApiServer
) -> None:
    node.configure(whole(XPU))
    await process.start()
    await process.until(lambda it: it["apiServer"] and it["apiServer"]["synced"])
    await api.go_away()
    await process.until(lambda it: it["apiServer"]["error"])

    pod = await node.admit("alone", {XPU: 1})
    (mine,) = await node.cards_of(pod)
    other = next(n for n, uuid in enumerate(node.cards.uuids) if uuid != mine)
    await node.fail(other)

    await node.counts({XPU: (4, 3)})


KEY = "example.com/given-out"


def tell(node: Node, **settings: str) -> None:
    """Have the simulated vendor tell the Node this, and nothing else."""
    node.configure(whole(XPU))
    document = json.loads(node.config.read_text())
    document["vendors"]["simulated"]["settings"] |= settings
    node.write(json.dumps(document, default=list))


async def test_a_vendors_annotation_follows_what_is_given_out_and_goes_when_nobody_wants_it(
    node: Node, process: AgentProcess, api: SimApiServer
) -> None:
    tell(node, annotation=KEY)
    await process.start()
    await node.counts({XPU: (4, 4)})

    pod = await node.admit("web", {XPU: 2})

    mark = await node.start_of(pod)
    with anyio.fail_after(PATIENCE):
        await api.wait(lambda it: mark in noted(it).get(KEY, ""))
    assert len(json.loads(noted(api)[KEY])[mark]) == 2
    await node.kubelet.delete(pod.uid)
    with anyio.fail_after(PATIENCE):
        await api.wait(lambda it: noted(it).get(KEY) == "{}")
    tell(node)
    with anyio.fail_after(PATIENCE):
        await api.wait(lambda it: KEY not in noted(it))


COUNT = "example.com/xpu-count"


def counts(api: SimApiServer) -> list[str | None]:
    """Capacity and allocatable, as the Node has them."""
    node = api.find("Node", "node")
    status = node.get("status", {}) if node is not None else {}
    return [status.get(of, {}).get(COUNT) for of in ("capacity", "allocatable")]


async def test_what_a_vendor_counts_stands_in_the_nodes_status_whoever_resets_it_and_goes_with_it(
    node: Node, process: AgentProcess, api: SimApiServer
) -> None:
    tell(node, extendedResource=COUNT)
    await process.start()
    with anyio.fail_after(PATIENCE):
        await api.wait(lambda it: counts(it) == ["4", "4"])

    # As a kubelet does at its start that finds no plugin's file.
    there = api.find("Node", "node")
    assert there is not None
    api.put_object({**there, "status": {"capacity": {COUNT: "0"}, "allocatable": {COUNT: "0"}}})
    with anyio.fail_after(PATIENCE):
        await api.wait(lambda it: counts(it) == ["4", "4"])

    tell(node)
    with anyio.fail_after(PATIENCE):
        await api.wait(lambda it: counts(it) == [None, None])
    assert "xpu-agent.io/extended-resources" not in noted(api)
