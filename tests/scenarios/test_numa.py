"""NUMA hints, under a kubelet that admits only what fits on one node."""

from __future__ import annotations

import pytest

from agent.testing.simkubelet.topology_manager import Policy

from .conftest import EVERY_RELEASE
from .node import Node, shared, whole

XPU = "example.com/xpu"


@pytest.fixture
def policy() -> Policy:
    return "single-numa-node"


def node_of(node: Node, cards: set[str]) -> set[int | None]:
    return {it.device.numa for it in node.view.snapshot.devices if it.uuid in cards}


@EVERY_RELEASE
async def test_what_fits_on_one_node_is_admitted_there(node: Node) -> None:
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})

    first, second = [await node.cards_of(await node.admit(f"pod-{n}", {XPU: 2})) for n in range(2)]

    assert {frozenset(node_of(node, it)) for it in (first, second)} == {frozenset({0}), frozenset({1})}


@EVERY_RELEASE
async def test_what_fits_on_no_single_node_is_refused_in_the_kubelets_words(node: Node) -> None:
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})

    refused = await node.refused("three", {XPU: 3})

    assert refused.reason == "TopologyAffinityError"
    assert refused.message == "Resources cannot be allocated with Topology locality"


@EVERY_RELEASE
async def test_replicas_stay_on_one_node_too(node: Node) -> None:
    await node.start(shared(XPU, 3))
    await node.counts({XPU: (12, 12)})

    pod = await node.admit("six", {XPU: 6})

    assert len(node_of(node, await node.cards_of(pod))) == 1
