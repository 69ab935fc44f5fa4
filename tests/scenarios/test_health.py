"""Health: what the driver says reaches the kubelet, card by card, and ends only with proof."""

from __future__ import annotations

from agent.core.model import VendorState
from agent.core.vendor import Proof, State
from agent.testing.kubelet import SimKubelet

from .cards import Nvidia, Simulated
from .conftest import ANY_KUBELET, EVERY_VENDOR, ONLY_NVIDIA
from .node import Node, device, shared, vendor_is, whole

pytestmark = ANY_KUBELET

XPU = "example.com/xpu"


@EVERY_VENDOR
async def test_an_xid_takes_every_replica_of_its_card_and_no_other(node: Node) -> None:
    await node.start(shared(XPU, 3))
    await node.counts({XPU: (12, 12)})
    pods = [await node.admit(f"pod-{n}", {XPU: 1}) for n in range(4)]
    sick = node.cards.uuids[2]

    await node.fail(2)

    await node.counts({XPU: (12, 9)})
    for pod in pods:
        expected = "Unhealthy" if sick in await node.cards_of(pod) else "Healthy"
        assert set((await node.kubelet.health(pod.uid)).values()) == {expected}
    health = device(node.view, sick).health
    assert (health.state, health.reason) == (State.UNHEALTHY, "xid-79")


@EVERY_VENDOR
async def test_a_proven_reset_brings_the_card_back(node: Node) -> None:
    await node.start(shared(XPU, 3))
    await node.counts({XPU: (12, 12)})
    await node.fail(1)
    await node.counts({XPU: (12, 9)})

    node.cards.reset(1)

    await node.counts({XPU: (12, 12)})
    assert device(node.view, node.cards.uuids[1]).health.state is State.HEALTHY
    assert node.streams(XPU) == 1


async def test_looking_well_is_no_proof(node: Node) -> None:
    scenario = simulated(node).scenario
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})
    scenario.fault(scenario.uuids[0], "fell-off-the-bus", cleared_by=(Proof.RESET,))
    scenario.fault(scenario.uuids[1], "too-hot")
    await node.counts({XPU: (4, 2)})

    scenario.heal(scenario.uuids[0])
    scenario.heal(scenario.uuids[1])

    # The transient fault is over after good looks; the same looks at the other card change nothing.
    await node.until(lambda it: device(it, scenario.uuids[1]).health.state is State.HEALTHY)
    assert device(node.view, scenario.uuids[0]).health.reason == "fell-off-the-bus"
    await node.counts({XPU: (4, 3)})


@ONLY_NVIDIA
async def test_a_driver_loaded_anew_is_proof_for_all_its_cards(node: Node) -> None:
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})
    await node.fail(0)
    await node.fail(1)
    await node.counts({XPU: (4, 2)})

    node.cards.unload()
    await node.until(lambda it: vendor_is(it, node.cards.vendor, VendorState.UNAVAILABLE))
    node.cards.load()

    await node.counts({XPU: (4, 4)})


@ONLY_NVIDIA
async def test_a_lost_card_hides_no_other(node: Node) -> None:
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})

    nvidia(node).stub.lose(1)

    await node.counts({XPU: (4, 3)})
    assert device(node.view, node.cards.uuids[1]).health.reason == "lost"
    pod = await node.admit("three", {XPU: 3})
    assert await node.cards_of(pod) == {*node.cards.uuids} - {node.cards.uuids[1]}


@ONLY_NVIDIA
async def test_a_card_that_is_lost_at_the_start_hides_no_other(node: Node) -> None:
    nvidia(node).stub.lose(1)

    await node.start(whole(XPU))

    view = await node.until(lambda it: it.snapshot.devices)
    assert {it.uuid for it in view.snapshot.devices if it.told_healthy} == {
        *node.cards.uuids[:1],
        *node.cards.uuids[2:],
    }
    await node.until(lambda it: not it.troubles)
    await node.counts({XPU: (3, 3)})


@ONLY_NVIDIA
async def test_errors_of_applications_leave_the_card_in_service(node: Node) -> None:
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})

    await node.watched()
    for code in (13, 31, 43, 45, 68, 109):
        nvidia(node).stub.xid(0, code)
    await node.fail(1)

    await node.counts({XPU: (4, 3)})  # the last event has arrived, so those before it have
    assert device(node.view, node.cards.uuids[0]).health.state is State.HEALTHY


async def test_a_flip_is_one_list_on_the_stream_that_is_open(node: Node, sim: SimKubelet) -> None:
    await node.start(shared(XPU, 100))
    await node.counts({XPU: (400, 400)})

    await node.fail(3)

    await node.counts({XPU: (400, 300)})
    assert (sim.journal.streams[XPU], sim.journal.lists[XPU]) == (1, 2)


async def test_a_card_that_is_gone_stays_listed_while_it_may_come_back(node: Node) -> None:
    scenario = simulated(node).scenario
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})
    await node.admit("all", {XPU: 4})
    cards = scenario.read()["devices"]

    scenario.change(devices=cards[1:])

    view = await node.until(lambda it: device(it, cards[0]["uuid"]).health.state is State.UNKNOWN)
    assert device(view, cards[0]["uuid"]).told_healthy
    assert (await node.kubelet.capacity())[XPU].capacity == 4
    scenario.change(devices=cards)
    await node.until(lambda it: device(it, cards[0]["uuid"]).health.state is State.HEALTHY)


def simulated(node: Node) -> Simulated:
    assert isinstance(node.cards, Simulated)
    return node.cards


def nvidia(node: Node) -> Nvidia:
    assert isinstance(node.cards, Nvidia)
    return node.cards
