"""Somebody ends and comes back: the agent by rollout or killed, kubelet, API server. Pods live on."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import time
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from agent.kubelet.pod_resources import PodResources

from .api import Object
from .cluster import Cluster
from .containerd import CTR
from .kubelet import DIRECTORY
from .release import Release, Values
from .space import GPU, Space, deployment, pod
from .unit import Unit
from .until import until

#: The kubelet takes 100 questions a second, from the agent too.
LOOK = 0.025
#: A GPU has fallen off the bus; what ends such a fault is no look at the card.
XID = 79
#: Why the kubelet fails a pod for which it gets no devices.
REFUSED = "UnexpectedAdmissionError"
#: A label that the agent tells.
COUNT = "nvidia.com/gpu.count"


@dataclass
class Gap:
    """Seconds for which the kubelet had no device of ours to give, each time."""

    seconds: list[float] = field(default_factory=list)

    async def ended(self) -> list[float]:
        return self.seconds


@asynccontextmanager
async def watched() -> AsyncIterator[Gap]:
    """Ask the kubelet all the time whether it has healthy devices of ours: without any it refuses pods."""
    kubelet, gap = PodResources(DIRECTORY / "pod-resources/kubelet.sock", min_interval=LOOK), Gap()

    async def look() -> None:
        since: float | None = None
        while True:
            there = await kubelet.allocatable([GPU])
            now = time.monotonic()
            if not there:
                since = since or now
            elif since is not None:
                gap.seconds.append(now - since)
                since = None

    looking = asyncio.create_task(look())
    try:
        yield gap
    finally:
        looking.cancel()
        await asyncio.wait([looking])
    assert looking.cancelled(), looking.exception()


async def holders(space: Space, *names: str) -> dict[str, list[str]]:
    """Pods that run, and the cards of each."""
    await space.apply(*(pod(name) for name in names))
    await space.running(len(names))
    return {name: await space.cards(name) for name in names}


async def lives(space: Space, names: Iterable[str]) -> dict[str, str]:
    """The pods' containers, that run since their first start."""
    found = {it["metadata"]["name"]: it for it in await space.pods()}
    containers = {}
    for name in names:
        [status] = found[name]["status"]["containerStatuses"]
        assert "running" in status["state"], name
        assert status["restartCount"] == 0, name
        containers[name] = status["containerID"]
    return containers


async def owners(agent: Release) -> dict[str, list[str]]:
    """Pod to devices, by `xpu-agent inspect --json` in the agent's pod."""
    view = json.loads(await agent.run("xpu-agent", "inspect", "--json"))
    return {it["owner"]["pod"]: it["devices"] for it in view["allocations"] if it["owner"]}


async def confirmed(agent: Release, held: dict[str, list[str]]) -> None:
    await until(lambda: owners(agent), lambda it: it == held, "the agent to know whose the cards are")


async def next_one_is_free(space: Space, taken: Mapping[str, Sequence[str]]) -> None:
    """One more pod gets a card that is not taken."""
    await space.apply(pod("next"))
    await space.running(1, "next")
    [card] = await space.cards("next")
    assert card not in {it for cards in taken.values() for it in cards}


async def test_a_rollout_loses_no_pod_and_allocate_is_without_an_answer_for_a_moment(
    cluster: Cluster, agent: Release, space: Space, capsys: pytest.CaptureFixture[str]
) -> None:
    held = await holders(space, "one", "two")
    await confirmed(agent, held)
    containers, before = await lives(space, held), (await agent.pod())["metadata"]["uid"]

    async with watched() as gap:
        rollout = asyncio.create_task(agent.hold(another_template()))
        await until(agent.pods, lambda it: len(it) == 2, "the next agent beside the last one")
        await space.apply(deployment("during", 1))
        during = await space.running(1, "during")
        await rollout
        await until(gap.ended, bool, "the kubelet to have devices again")
    await space.apply(pod("after"))
    await space.running(4)

    tell(cluster, capsys, gap)
    assert (await agent.pod())["metadata"]["uid"] != before
    assert "standing by, another agent serves this node" in await agent.log(), "it began before the end"
    assert len(gap.seconds) == 1, f"the resource went and came {gap.seconds}"
    assert await lives(space, held) == containers
    new = {name: await space.cards(name) for name in (*during, "after")}
    assert sorted(card for cards in (held | new).values() for card in cards) == [
        cluster.cards.uuid(index) for index in range(4)
    ]
    await confirmed(agent, held | new)
    refused = [it for name in new for it in await space.events(name) if it["reason"] == REFUSED]
    assert refused == []
    await cluster.offers(4)


def another_template() -> Values:
    return {"podAnnotations": {"rollout": secrets.token_hex(4)}}


@pytest.mark.long
async def test_an_agent_that_can_not_start_does_not_take_the_place_of_the_one_that_serves(
    cluster: Cluster, agent: Release, space: Space
) -> None:
    good = await agent.pod()
    await agent.upgrade({"extraEnv": [{"name": "XPU_AGENT_HTTP", "value": "banana"}]})

    async def fallen() -> bool:
        """Whether the next one has fallen again after it was started anew."""
        next_ones = [it for it in await agent.pods() if it["metadata"]["uid"] != good["metadata"]["uid"]]
        states = [status for it in next_ones for status in it["status"].get("containerStatuses", ())]
        return any(it["restartCount"] and "running" not in it["state"] for it in states)

    await until(fallen, bool, "the next agent to fall twice")

    [still] = [it for it in await agent.pods() if it["metadata"]["uid"] == good["metadata"]["uid"]]
    assert "deletionTimestamp" not in still["metadata"]
    assert container(still)["containerID"] == container(good)["containerID"]
    assert container(still)["ready"]
    await next_one_is_free(space, await holders(space, "one"))


def tell(cluster: Cluster, capsys: pytest.CaptureFixture[str], gap: Gap) -> None:
    """Say how long it was, here and in the node's logs."""
    words = ", ".join(f"{it * 1000:.0f} ms" for it in gap.seconds)
    with capsys.disabled():
        print(f"\nrollout: the kubelet had no {GPU} to give for {words}")  # noqa: T201
    content = {"what": "rollout", "resource": GPU, "gapsSeconds": gap.seconds, "lookSeconds": LOOK}
    (cluster.place.logs / "rollout.json").write_text(json.dumps(content) + "\n")


async def test_a_killed_agent_comes_back_and_knows_whose_the_cards_are(
    cluster: Cluster, agent: Release, space: Space
) -> None:
    held = await holders(space, "one", "two")
    await confirmed(agent, held)
    containers, before = await lives(space, held), container(await agent.pod())

    os.kill(await process(before["containerID"]), signal.SIGKILL)

    await until(agent.pod, lambda it: came_back(it, before), "the agent's container to be there again")
    await agent.rolled_out()
    await confirmed(agent, held)
    assert await lives(space, held) == containers
    await cluster.offers(4)
    await next_one_is_free(space, held)


def came_back(its_pod: Object, before: Object) -> bool:
    now = container(its_pod)
    return bool(now["ready"]) and now["restartCount"] > before["restartCount"]


def container(of: Object) -> Object:
    [status] = of["status"]["containerStatuses"]
    assert isinstance(status, dict)
    return status


async def process(container_id: str) -> int:
    """The first process of a container, as this node numbers it."""
    listing = await asyncio.create_subprocess_exec(
        *CTR, "tasks", "list", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    told, _ = await listing.communicate()
    rows = [line.split() for line in told.decode().splitlines()]
    [pid] = [int(row[1]) for row in rows if row and row[0] == container_id.rpartition("/")[2]]
    return pid


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGKILL], ids=["restarted", "killed"])
async def test_a_kubelet_that_comes_back_is_registered_with_and_told_of_every_remembered_fault(
    cluster: Cluster, agent: Release, space: Space, by: signal.Signals
) -> None:
    held = await holders(space, "one", "two")
    await confirmed(agent, held)
    containers, lived = await lives(space, held), container(await agent.pod())
    broken = free_index(cluster, held)
    cluster.cards.xid(broken, XID)
    try:
        await cluster.offers(3)
        before = await registrations(agent)

        await restart(cluster.kubelet, by)

        await until(lambda: registrations(agent), lambda it: it == before + 1, "one more registration")
        await cluster.ready()
        await cluster.offers(3)
        await next_one_is_free(space, held | {"broken": [cluster.cards.uuid(broken)]})
    finally:
        await agent.run("xpu-agent", "health", "clear", cluster.cards.uuid(broken))
    assert await lives(space, held) == containers
    assert container(await agent.pod())["restartCount"] == lived["restartCount"]


def free_index(cluster: Cluster, held: dict[str, list[str]]) -> int:
    taken = {card for cards in held.values() for card in cards}
    return next(index for index in range(4) if cluster.cards.uuid(index) not in taken)


async def restart(unit: Unit, by: signal.Signals) -> None:
    await unit.end(by)
    unit.start()


async def registrations(agent: Release) -> int:
    """How often the agent that runs has registered the resource."""
    [resource] = (await agent.inspect())["resources"]
    return int(resource["registrations"])


async def test_without_the_api_server_pods_and_agent_go_on_and_what_there_is_to_tell_is_told_after(
    cluster: Cluster, space: Space
) -> None:
    server, agent = cluster.server, cluster.agent
    if server is None:
        pytest.skip("the API server of a joined cluster is not ours to restart: run without --join")
    await agent.anew({"labels": {"output": "node"}})
    held = await holders(space, "one")
    await confirmed(agent, held)
    await until(lambda: label(cluster), lambda it: it == "4", f"the label {COUNT}")
    containers, lived = await lives(space, held), container(await agent.pod())
    index = free_index(cluster, held)
    broken, before = cluster.cards.uuid(index), await notes(cluster)

    await server.stop()
    try:
        await until(agent.inspect, lambda it: it["apiServer"]["error"], "the agent to miss it")
        cluster.cards.xid(index, XID)
        seen = await until(agent.inspect, lambda it: sick(it) == [broken], "the card to be sick")
        assert seen["ready"], "the kubelet is served without an API server"
    finally:
        await server.start()

    try:
        await cluster.ready()
        await cluster.offers(3)
        await until(lambda: notes(cluster), lambda it: _tells_of(broken, it, before), "the Event of it")
        await cluster.label(f"{COUNT}-")
        await until(lambda: label(cluster), lambda it: it == "4", f"the label {COUNT} to be set again")
        await next_one_is_free(space, held | {"broken": [broken]})
    finally:
        await agent.run("xpu-agent", "health", "clear", broken)
    assert await lives(space, held) == containers
    assert container(await agent.pod())["restartCount"] == lived["restartCount"]


async def label(cluster: Cluster) -> str | None:
    labels = (await cluster.node())["metadata"]["labels"]
    assert isinstance(labels, dict)
    return labels.get(COUNT)


def sick(view: Object) -> list[str]:
    return [it["uuid"] for it in view["devices"] if not it["toldHealthy"]]


def _tells_of(uuid: str, notes: Mapping[str, str], before: Collection[str]) -> bool:
    return any(uuid in note for name, note in notes.items() if name not in before)


async def notes(cluster: Cluster) -> dict[str, str]:
    """What Events, by their names, say of cards that the kubelet was told are Unhealthy."""
    events = await cluster.api.items("/apis/events.k8s.io/v1/events")
    return {it["metadata"]["name"]: it.get("note", "") for it in events if it["reason"] == "DeviceUnhealthy"}
