"""Cards that break, are repaired, or are kept back: what the Node offers, and what pods notice of it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from .api import Object
from .cluster import Cluster
from .kubelet import NODE
from .release import Release
from .space import Space, pod
from .until import until

#: A card is broken or whole as soon as one look at it says so; a look comes every ten seconds.
CONFIG = """
version: v1
agent: {health: {badPolls: 1, goodPolls: 1, goodFor: 0s}}
"""
VALUES = {"config": {"map": {"hasty": CONFIG}, "default": "hasty"}}
#: What the driver asks for after an XID (NVML_FI_DEV_GET_GPU_RECOVERY_ACTION): a reset, and nothing any more.
RESET, NOTHING = 1, 0
#: A GPU has fallen off the bus.
XID = 79
INDEX = 2
#: Author and reason of a cordon.
ROOT_SAID = ("root", "fan, ticket 4711")


@pytest.fixture
async def hasty(cluster: Cluster) -> AsyncIterator[Release]:
    """The agent with four whole cards; they are whole again at the end."""
    agent = cluster.agent
    if not await agent.holds(VALUES):
        await agent.anew(VALUES)
    await cluster.offers(4)
    yield agent
    for index in range(4):
        cluster.cards.restore(index)
        cluster.cards.recovery(index, NOTHING, announce=False)
    for it in await devices(agent):
        if it["cordon"]:
            await agent.run("xpu-agent", "health", "uncordon", it["uuid"])
        if it["clearedBy"]:
            await agent.run("xpu-agent", "health", "clear", it["uuid"])
    await cluster.offers(4)


async def test_a_cordon_by_exec_and_a_fault_keep_cards_back_and_outlive_the_agents_pod(
    cluster: Cluster, hasty: Release
) -> None:
    cordoned, broken = cluster.cards.uuid(0), cluster.cards.uuid(INDEX)

    await hasty.run("xpu-agent", "health", "cordon", cordoned, "--reason", ROOT_SAID[1])
    await cluster.offers(3)
    cluster.cards.xid(INDEX, XID)
    await cluster.offers(2)
    await replace_pod(cluster, hasty)
    await cluster.offers(2)

    known = {it["uuid"]: it for it in await devices(hasty)}
    assert (known[cordoned]["cordon"]["author"], known[cordoned]["cordon"]["reason"]) == ROOT_SAID
    assert known[broken]["health"]["reason"] == f"xid-{XID}", "the next agent has not seen the event itself"
    await hasty.run("xpu-agent", "health", "uncordon", cordoned)
    await cluster.offers(3)
    await hasty.run("xpu-agent", "health", "clear", broken)
    await cluster.offers(4)


async def test_a_pod_lives_on_while_its_card_is_broken_and_new_pods_wait_for_the_repair(
    cluster: Cluster, hasty: Release, space: Space
) -> None:
    await space.apply(pod("holder"))
    await space.running(1)
    [card] = await space.cards("holder")
    index = int(card.rpartition("-")[2])
    lives = container(await only(space, "holder"))
    before = await notices(cluster)

    cluster.cards.recovery(index, RESET, announce=False)
    cluster.cards.xid(index, XID)
    await cluster.offers(3)
    await space.apply(pod("next", cards=3))  # as many as are free; to the scheduler one of three is taken
    await waits(space, "next")
    await told(cluster, before, "DeviceUnhealthy", card, f"xid-{XID}")
    assert container(await only(space, "holder")) == lives

    cluster.cards.recovery(index, NOTHING)
    await cluster.offers(4)
    await space.running(2)
    assert card not in await space.cards("next")
    await told(cluster, before, "DeviceHealthy", card, "healthy again")
    assert container(await only(space, "holder")) == lives


async def test_a_pod_that_waits_for_a_lost_card_runs_on_it_when_it_is_back(
    cluster: Cluster, hasty: Release, space: Space
) -> None:
    before = await notices(cluster)
    card = cluster.cards.uuid(INDEX)

    cluster.cards.lose(INDEX)
    await cluster.offers(3)
    await space.apply(pod("all", cards=4))
    await waits(space, "all")
    await told(cluster, before, "DeviceUnhealthy", card, "lost")

    cluster.cards.restore(INDEX)
    await space.running(1)
    assert card in await space.cards("all")
    await told(cluster, before, "DeviceHealthy", card, "healthy again")


async def replace_pod(cluster: Cluster, agent: Release) -> None:
    """Delete the agent's pod, and wait for the next one to be ready."""
    pod = (await agent.pod())["metadata"]
    await cluster.api.kubectl("delete", "pod", f"--namespace={pod['namespace']}", pod["name"])
    await agent.rolled_out()
    assert (await agent.pod())["metadata"]["uid"] != pod["uid"]


async def devices(agent: Release) -> list[dict[str, Any]]:
    told = json.loads(await agent.run("xpu-agent", "health", "list", "--json"))
    assert isinstance(told, list)
    return told


async def only(space: Space, name: str) -> Object:
    [found] = await space.pods(name)
    return found


def container(pod: Object) -> tuple[str, int, bool]:
    """The pod's one container: its id, how often it was started anew, and whether it is ready."""
    [status] = pod["status"]["containerStatuses"]
    return status["containerID"], status["restartCount"], status["ready"]


async def waits(space: Space, name: str) -> None:
    """Wait until the scheduler has said that no Node has the cards for this pod, which is Pending."""

    async def said() -> list[str]:
        return [it["message"] for it in await space.events(name) if it["reason"] == "FailedScheduling"]

    lacking = "Insufficient nvidia.com/gpu"
    await until(said, lambda it: any(lacking in words for words in it), f"{name} to be Pending: {lacking}")
    assert (await only(space, name))["status"]["phase"] == "Pending"


async def notices(cluster: Cluster) -> dict[str, Object]:
    """The agent's Events on the Node: version, which is another one each time it is told, to the Event."""
    events = await cluster.api.items("/apis/events.k8s.io/v1/events")
    ours = (it for it in events if it.get("reportingController") == "xpu-agent.io/agent")
    return {it["metadata"]["resourceVersion"]: it for it in ours if it["regarding"]["name"] == NODE}


async def told(cluster: Cluster, before: dict[str, Object], reason: str, *words: str) -> None:
    """Wait for an Event on the Node, of this reason and with these words, that was not told before."""

    async def fresh() -> list[str]:
        events = await notices(cluster)
        return [it["note"] for key, it in events.items() if key not in before and it["reason"] == reason]

    await until(
        fresh, lambda notes: any(all(it in note for it in words) for note in notes), f"{reason}: {words}"
    )
