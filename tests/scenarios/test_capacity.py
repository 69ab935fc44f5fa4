"""What the kubelet counts: cards whole or shared, few or 58,000 IDs, and never more than it can take."""

from __future__ import annotations

import re

import pytest

from agent.testing.kubelet import SimKubelet

from .conftest import EVERY_RELEASE, NVIDIA_OR_SIMULATED
from .node import Node, in_use, shared, whole

XPU = "example.com/xpu"
SHARED = "example.com/xpu.shared"


@EVERY_RELEASE
@NVIDIA_OR_SIMULATED
async def test_every_resource_is_registered_once(node: Node) -> None:
    await node.start(whole(XPU, [0, 1]), shared(SHARED, 4, [2, 3]))

    await node.counts({XPU: (2, 2), SHARED: (8, 8)})
    view = await node.until(lambda it: not it.troubles)
    assert {name: it.registrations for name, it in view.sessions.items()} == {XPU: 1, SHARED: 1}
    assert (node.streams(XPU), node.streams(SHARED)) == (1, 1)
    assert len(list(node.kubelet.plugin_dir.glob("xpu-*.sock"))) == 2


@NVIDIA_OR_SIMULATED
@pytest.mark.parametrize("count", [2])
async def test_of_four_pods_on_two_whole_cards_two_run_and_two_are_refused(node: Node) -> None:
    await node.start(whole(XPU))
    await node.counts({XPU: (2, 2)})

    running = [await node.admit(f"pod-{n}", {XPU: 1}) for n in range(2)]
    refused = [await node.refused(f"pod-{n}", {XPU: 1}) for n in range(2, 4)]

    assert {card for pod in running for card in await node.cards_of(pod)} == set(node.cards.uuids)
    assert all("requested number of devices unavailable" in it.message for it in refused)


@NVIDIA_OR_SIMULATED
@pytest.mark.parametrize("count", [2])
async def test_of_four_pods_on_two_cards_with_ten_replicas_all_run_two_per_card(node: Node) -> None:
    await node.start(shared(XPU, 10))
    await node.counts({XPU: (20, 20)})

    pods = [await node.admit(f"pod-{n}", {XPU: 1}) for n in range(4)]

    cards = [card for pod in pods for card in await node.cards_of(pod)]
    assert sorted(cards) == sorted([*node.cards.uuids, *node.cards.uuids])


async def test_58_000_ids_are_registered_and_one_is_admitted(node: Node) -> None:
    await node.start(shared(XPU, 14_500))

    await node.counts({XPU: (58_000, 58_000)})
    pod = await node.admit("one", {XPU: 1})
    assert len(await node.cards_of(pod)) == 1
    assert node.streams(XPU) == 1


@EVERY_RELEASE
async def test_a_list_that_the_kubelet_would_cut_is_not_registered_and_the_others_are(node: Node) -> None:
    await node.start(shared(XPU, 100_000, [0, 1]), shared(SHARED, 2, [2, 3]))

    await node.counts({SHARED: (4, 4)})
    view = await node.until(lambda it: it.sessions[XPU].state == "refused")
    (trouble,) = view.troubles
    assert re.search(r"the kubelet takes 4194304; at most \d+ IDs per device fit \(replicas: \d+", trouble)
    assert XPU not in await node.kubelet.capacity()
    assert view.sessions[XPU].registrations == 0


async def test_the_count_that_a_refused_list_names_is_what_the_kubelet_takes(node: Node) -> None:
    await node.start(shared(XPU, 100_000, [0, 1]))
    view = await node.until(lambda it: it.sessions.get(XPU) and it.sessions[XPU].state == "refused")
    named = re.search(r"replicas: (\d+)", view.sessions[XPU].reason)
    assert named is not None
    most = int(named[1])

    node.configure(shared(XPU, most, [0, 1]))

    await node.counts({XPU: (2 * most, 2 * most)})
    await node.admit("one", {XPU: 1})


async def test_a_list_that_grows_too_long_stays_what_it_was(node: Node) -> None:
    await node.start(shared(XPU, 2))
    await node.counts({XPU: (8, 8)})

    node.configure(shared(XPU, 100_000))
    await node.until(lambda it: node.count("plugin_lists_too_long", resource=XPU))
    await node.fail(0)

    await node.counts({XPU: (8, 6)})
    pod = await node.admit("meanwhile", {XPU: 1})
    assert await node.cards_of(pod) <= set(node.cards.uuids[1:])
    node.configure(shared(XPU, 3))
    await node.counts({XPU: (12, 9)})
    assert node.streams(XPU) == 1


async def test_a_list_is_sent_once_however_often_the_hardware_is_looked_at(
    node: Node, sim: SimKubelet
) -> None:
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})
    await node.admit("one", {XPU: 1})
    await node.until(lambda it: all(status.device.links for status in it.snapshot.devices))

    assert sim.journal.lists == {XPU: 1}
    assert len(in_use(node.view)) == 1
