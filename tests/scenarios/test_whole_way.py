"""Koordinator's whole way: our Device, the Node that its manager makes of it, the choice, containers.

Manager and scheduler are those of tests/played_koordinator: they know what the Device says, no more.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest
from played_koordinator.scheduler import booked
from played_koordinator.wishes import CORE, RATIO, SHARED, Unschedulable

from agent.testing.node_kubelet import Pod

from .cards import Nvidia
from .conftest import NVIDIA_OR_SIMULATED, ONLY_NVIDIA
from .koordination import Koordinator
from .node import Node, shared, whole
from .process import AgentProcess

GPU, TOKEN = "nvidia.com/gpu", "nvidia.com/gpu.shared"
WELL = (True, True, True, True)


async def runs(koordinator: Koordinator, name: str, *containers: Mapping[str, str]) -> Pod:
    """The pod with containers that are told of the very cards that were written on it, in their order."""
    pod = await koordinator.binds(name, *containers)
    await koordinator.node.admit_pod(pod)
    promised = iter(koordinator.promised(pod))
    for it in pod.containers:
        told = await koordinator.node.cards_of(pod, it.name)
        assert told == set(itertools.islice(promised, len(told)))
    assert not list(promised)
    return pod


async def breaks(node: Node, index: int) -> None:
    """Let a card fail, so that an agent to come knows what it takes to be well again."""
    await node.fail(index)
    if isinstance(node.cards, Nvidia):
        node.cards.stub.recovery(index, 1)
        await node.saved('"recovery_due":true')


def share(percent: int, **more: str) -> dict[str, str]:
    return {CORE: str(percent), RATIO: str(percent), SHARED: "1", **more}


@NVIDIA_OR_SIMULATED
async def test_containers_get_the_cards_that_a_scheduler_chose_from_our_device_alone(
    koordinator: Koordinator, node: Node
) -> None:
    await koordinator.starts({GPU: 4}, whole(GPU, placement="auto"))

    await koordinator.binds("asks-no-plugin", share(50))
    await node.counts({GPU: (4, 3)})
    await runs(koordinator, "one", {GPU: "1"})
    await runs(koordinator, "both", {GPU: "1"}, {GPU: "1"})
    await koordinator.binds("shares-it-too", share(40))

    with pytest.raises(Unschedulable, match=f"Insufficient {GPU}"):
        await koordinator.binds("one-too-many", {GPU: "1"})
    with pytest.raises(Unschedulable, match="Insufficient GPU Devices"):
        await koordinator.binds("a-share-too-many", share(20))
    await koordinator.is_one_with_the_agent()


@NVIDIA_OR_SIMULATED
async def test_broken_cards_restarts_and_pods_that_end_leave_scheduler_and_agent_of_one_mind(
    koordinator: Koordinator, node: Node, process: AgentProcess
) -> None:
    await koordinator.starts({GPU: 4}, whole(GPU, placement="auto"))
    first = await runs(koordinator, "first", {GPU: "1"})
    pair = await runs(koordinator, "pair", {GPU: "2"})
    broken = node.cards.uuids.index(koordinator.promised(first)[0])

    await breaks(node, broken)
    await koordinator.sees(*(it != broken for it in range(4)))
    await koordinator.ends(first)
    await process.kill()
    await process.start()
    await koordinator.hears()
    await node.counts({GPU: (4, 3)})
    await runs(koordinator, "next", {GPU: "1"})
    with pytest.raises(Unschedulable):
        await koordinator.binds("nowhere", {GPU: "1"})
    await koordinator.is_one_with_the_agent()

    node.cards.reset(broken)
    await koordinator.sees(*WELL)
    await node.counts({GPU: (4, 4)})
    await node.kubelet.restart()
    await node.counts({GPU: (4, 4)})
    again = await runs(koordinator, "again", {GPU: "1"})
    assert koordinator.promised(again) == [node.cards.uuids[broken]]
    await koordinator.ends(pair)
    await runs(koordinator, "pair-again", {GPU: "2"})
    await koordinator.is_one_with_the_agent()


@ONLY_NVIDIA
async def test_shares_are_where_the_scheduler_counts_them_and_fill_a_card_to_its_brim(
    koordinator: Koordinator, node: Node
) -> None:
    await koordinator.starts({TOKEN: 400}, shared(TOKEN, 100, placement="claim", policy="distributed"))

    for n, percent in enumerate((60, 30, 100, 50, 30)):
        await runs(koordinator, f"share-{n}", share(percent, **{TOKEN: "1"}))
    await runs(koordinator, "pair", {CORE: "20", RATIO: "20", SHARED: "2", TOKEN: "2"})

    with pytest.raises(Unschedulable, match="Insufficient GPU Devices"):
        await koordinator.binds("one-too-many", share(95, **{TOKEN: "1"}))
    await koordinator.is_one_with_the_agent()
    assert max(it[RATIO] for it in booked(koordinator.pods.values())["gpu"].values()) == 100
