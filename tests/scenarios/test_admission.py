"""What a pod gets: the right cards, the right words in its environment, or a refusal it can read."""

from __future__ import annotations

from itertools import combinations

import pytest

from agent.core.allocation.answer_annotations import ALLOCATION
from agent.core.publishing.agent_status import AgentStatus
from agent.testing.node_kubelet import Container, Pod

from .conftest import NVIDIA_OR_SIMULATED, ONLY_NVIDIA
from .node import Node, in_use, shared, whole

XPU = "example.com/xpu"


@NVIDIA_OR_SIMULATED
async def test_a_pod_is_told_of_its_physical_cards_and_carries_the_allocation(node: Node) -> None:
    await node.start(shared(XPU, 3))
    await node.counts({XPU: (12, 12)})

    pod = await node.admit("one", {XPU: 2})

    options = await node.kubelet.run_options(pod.uid, "main")
    (allocation,) = in_use(node.view)
    assert options.env.keys() == {node.cards.visible}
    assert tuple(options.env[node.cards.visible].split(",")) == allocation.devices
    assert set(allocation.devices) < set(node.cards.uuids)
    assert options.annotations[ALLOCATION] == allocation.id


async def test_a_card_brings_its_device_nodes(node: Node) -> None:
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})

    pod = await node.admit("one", {XPU: 1})

    (card,) = await node.cards_of(pod)
    path = f"/dev/xpu{node.cards.uuids.index(card)}"
    assert (await node.kubelet.run_options(pod.uid, "main")).devices == ((path, path, "rw"),)


@ONLY_NVIDIA
@pytest.mark.parametrize("count", [1])
async def test_nvidia_visible_devices_names_a_shared_card_once(node: Node) -> None:
    await node.start(shared("nvidia.com/gpu", 10))
    await node.counts({"nvidia.com/gpu": (10, 10)})

    pod = await node.admit("one", {"nvidia.com/gpu": 3})

    env = (await node.kubelet.run_options(pod.uid, "main")).env
    assert env == {"NVIDIA_VISIBLE_DEVICES": node.cards.uuids[0]}


@NVIDIA_OR_SIMULATED
async def test_two_cards_for_one_pod_are_a_pair_with_the_most_lanes(node: Node) -> None:
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})
    view = await node.until(lambda it: all(status.device.links for status in it.snapshot.devices))

    pod = await node.admit("pair", {XPU: 2})

    assert lanes(view, *await node.cards_of(pod)) == max(
        lanes(view, *pair) for pair in combinations(node.cards.uuids, 2)
    )


async def test_a_single_card_is_taken_where_it_leaves_the_best_pair(node: Node) -> None:
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})
    view = await node.until(lambda it: all(status.device.links for status in it.snapshot.devices))

    await node.admit("single", {XPU: 1})
    pair = await node.cards_of(await node.admit("pair", {XPU: 2}))

    assert lanes(view, *pair) == 12


async def test_replicas_for_one_pod_are_spread_over_the_cards(node: Node) -> None:
    await node.start(shared(XPU, 4))
    await node.counts({XPU: (16, 16)})

    pod = await node.admit("wide", {XPU: 4})

    assert await node.cards_of(pod) == set(node.cards.uuids)


async def test_where_packing_is_wanted_replicas_of_one_card_are_used_up_first(node: Node) -> None:
    await node.start(shared(XPU, 2, policy="packed"))
    await node.counts({XPU: (8, 8)})

    first, second = [await node.admit(f"pod-{n}", {XPU: 1}) for n in range(2)]

    assert await node.cards_of(first) == await node.cards_of(second)


async def test_by_the_tree_single_cards_empty_one_group_and_two_cards_are_of_the_other(node: Node) -> None:
    await node.start(whole(XPU, policy="gpu-manager"))
    await node.counts({XPU: (4, 4)})
    await node.until(lambda it: all(status.device.links for status in it.snapshot.devices))

    singles = [await node.cards_of(await node.admit(f"single-{n}", {XPU: 1})) for n in range(2)]
    pair = await node.cards_of(await node.admit("pair", {XPU: 2}))

    assert singles == [{uuid} for uuid in node.cards.uuids[:2]]
    assert pair == {*node.cards.uuids[2:]}


async def test_by_the_tree_replicas_fill_the_fullest_card_with_enough_of_them(node: Node) -> None:
    await node.start(shared(XPU, 3, policy="gpu-manager"))
    await node.counts({XPU: (12, 12)})

    found = [
        await node.cards_of(await node.admit(f"pod-{n}", {XPU: size})) for n, size in enumerate((1, 3, 2))
    ]

    assert found == [{node.cards.uuids[0]}, {node.cards.uuids[1]}, {node.cards.uuids[0]}]


async def test_a_request_for_more_than_one_replica_is_refused_where_the_rule_says_so(node: Node) -> None:
    await node.start({**shared(XPU, 2), "sharing": {**FAIL_ABOVE_ONE, "replicas": 2}})
    await node.counts({XPU: (8, 8)})

    refused = await node.refused("two", {XPU: 2})

    assert "maximum request size for shared resources is 1; found 2" in refused.message
    assert in_use(node.view) == []
    await node.admit("one", {XPU: 1})


async def test_containers_of_one_pod_get_cards_of_their_own(node: Node) -> None:
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})

    pod = await node.admit_pod(Pod("two", (Container({XPU: 1}, "a"), Container({XPU: 2}, "b"))))

    assert len(await node.cards_of(pod, "a") | await node.cards_of(pod, "b")) == 3


@NVIDIA_OR_SIMULATED
async def test_a_pod_is_not_taken_back_on_a_card_that_is_sick_by_now(node: Node) -> None:
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})
    pod = await node.admit("restarted", {XPU: 1})
    (card,) = await node.cards_of(pod)

    await node.fail(node.cards.uuids.index(card))
    await node.counts({XPU: (4, 3)})

    again = await node.kubelet.admit(pod)
    assert "previously allocated devices are no longer healthy" in again.message


async def test_a_sick_card_is_given_to_nobody(node: Node) -> None:
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})
    await node.fail(0)
    await node.counts({XPU: (4, 3)})

    pod = await node.admit("three", {XPU: 3})

    assert await node.cards_of(pod) == set(node.cards.uuids[1:])
    await node.refused("one", {XPU: 1})


FAIL_ABOVE_ONE = {"kind": "replicas", "failRequestsGreaterThanOne": True}


def lanes(view: AgentStatus, left: str, right: str) -> int:
    """The direct lanes between two cards."""
    status = view.snapshot.device(left)
    assert status is not None
    return next((link.lanes for link in status.device.links if link.peer == right), 0)
