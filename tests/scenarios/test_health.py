"""Health: what the driver says reaches the kubelet, card by card, and ends only with proof."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from msgspec.structs import replace

from agent.cli.operator_requests import send
from agent.core.devices.health_rules import LOST_CONTACT
from agent.core.devices.health_thresholds import HealthThresholds
from agent.core.errors import NotOnDisk
from agent.core.model import Command, VendorState
from agent.core.publishing.agent_status import AgentStatus
from agent.testing.kubelet import SimKubelet
from agent.vendor_api.agent import Proof, State

from .cards import Nvidia, Simulated
from .conftest import NVIDIA_OR_SIMULATED, ONLY_NVIDIA
from .node import Node, device, owned_by, shared, vendor_is, whole
from .process import AgentProcess

XPU = "example.com/xpu"
ENERGY = "nvmlDeviceGetTotalEnergyConsumption"


@NVIDIA_OR_SIMULATED
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


@NVIDIA_OR_SIMULATED
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


@NVIDIA_OR_SIMULATED
async def test_an_xid_79_card_stays_unhealthy_over_agent_and_kubelet_restarts(
    node: Node, process: AgentProcess
) -> None:
    node.configure(whole(XPU))
    await process.start()
    await node.counts({XPU: (4, 4)})
    await node.fail(1)
    await node.counts({XPU: (4, 3)})
    await node.saved("xid-79")

    await process.kill()
    await node.counts({XPU: (4, 0)})
    await process.start()
    await node.counts({XPU: (4, 3)})
    await node.kubelet.restart()

    await node.counts({XPU: (4, 3)})
    pod = await node.admit("three", {XPU: 3})
    assert await node.cards_of(pod) == {*node.cards.uuids} - {node.cards.uuids[1]}


async def test_a_card_that_vanishes_is_unknown_then_unhealthy_and_never_dropped_while_in_use(
    node: Node,
) -> None:
    scenario = simulated(node).scenario
    node.pace = replace(node.pace, health=HealthThresholds(good_for=0.2, patience=2.0, forget_after=8.0))
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})
    pod = await node.admit("three", {XPU: 3})
    used = sorted(await node.cards_of(pod))[0]
    (free,) = {*node.cards.uuids} - await node.cards_of(pod)
    cards = scenario.read()["devices"]

    scenario.change(devices=[card for card in cards if card["uuid"] not in (used, free)])

    await node.until(lambda it: device(it, used).health.state is State.UNKNOWN)
    await node.counts({XPU: (4, 2)})  # patience is over
    await node.counts({XPU: (3, 2)})  # and the free one forgotten
    assert device(node.view, used).health.reason == LOST_CONTACT
    await node.kubelet.delete(pod.uid)
    await node.counts({XPU: (2, 2)})


async def test_a_library_that_lists_no_card_where_the_agent_had_some_is_broken_and_not_empty(
    node: Node,
) -> None:
    scenario = simulated(node).scenario
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})
    await node.stop()
    cards = node.cards.uuids
    scenario.change(devices=[])

    await node.start(whole(XPU))

    view = await node.until(lambda it: vendor_is(it, node.cards.vendor, VendorState.FAILED))
    assert "lists no devices, it had 4" in view.troubles[0]
    for uuid in cards:
        await node.agent.apply(Command("clear", uuid, "alice"))
    await node.until(lambda it: vendor_is(it, node.cards.vendor, VendorState.OPEN))


# What counts since the driver was loaded


@ONLY_NVIDIA
async def test_a_driver_loaded_anew_while_no_agent_ran_is_proven_by_what_its_cards_count(
    node: Node,
) -> None:
    stub = nvidia(node).stub
    for index in range(4):
        stub.energy(index, 1_000_000)
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})
    await node.fail(0)
    await node.fail(1)
    await node.counts({XPU: (4, 2)})
    await node.stop()

    stub.energy(0, 5_000)
    stub.energy(1, 1_000_001)  # this one counts on
    await node.start(whole(XPU))

    await node.counts({XPU: (4, 3)})
    assert device(node.view, node.cards.uuids[1]).health.reason == "xid-79"


@ONLY_NVIDIA
async def test_a_reset_while_no_agent_ran_is_proof(node: Node) -> None:
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})
    await node.fail(0)
    nvidia(node).stub.recovery(0, 1)
    await node.counts({XPU: (4, 3)})
    await node.saved('"recovery_due":true')
    await node.stop()

    node.cards.reset(0)
    await node.start(whole(XPU))

    await node.counts({XPU: (4, 4)})


@ONLY_NVIDIA
async def test_looking_at_cards_that_count_writes_nothing(node: Node) -> None:
    stub = nvidia(node).stub

    def counted(times: int, _: AgentStatus) -> bool:
        return stub.calls(ENERGY) >= times

    async def looks(count: int) -> None:
        seen = stub.calls(ENERGY)
        for n in range(1, count + 1):
            for index in range(4):
                stub.energy(index, 1_000_000 + seen + n)
            await node.until(partial(counted, seen + 4 * n))

    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})
    await node.fail(0)
    await node.counts({XPU: (4, 3)})
    await node.saved("xid-79")
    await looks(3)  # what the fault has brought about is written
    saves, streams = node.count("checkpoint_saves"), node.count("plugin_lists", resource=XPU)

    await looks(10)

    assert node.count("checkpoint_saves") == saves
    assert node.count("plugin_lists", resource=XPU) == streams


# An operator's words


@NVIDIA_OR_SIMULATED
async def test_a_cordoned_card_keeps_its_pod_and_takes_no_other(node: Node) -> None:
    await node.start(shared(XPU, 2))
    await node.counts({XPU: (8, 8)})
    pod = await node.admit("kept", {XPU: 1})
    (card,) = await node.cards_of(pod)
    await node.until(lambda it: owned_by(it, pod))

    await node.agent.apply(Command("cordon", card, "alice", "maintenance"))

    await node.counts({XPU: (8, 7)})
    assert device(node.view, card).health.state is State.HEALTHY
    assert set((await node.kubelet.health(pod.uid)).values()) == {"Healthy"}
    await node.kubelet.restart()
    await node.counts({XPU: (8, 7)})
    await node.admit_pod(pod)  # as a kubelet does that starts
    others = [await node.admit(f"other-{n}", {XPU: 1}) for n in range(6)]
    assert card not in {uuid for other in others for uuid in await node.cards_of(other)}
    await node.refused("one-too-many", {XPU: 1})
    await node.kubelet.delete(pod.uid)
    await node.counts({XPU: (8, 6)})
    await node.agent.apply(Command("uncordon", card, "alice"))
    await node.counts({XPU: (8, 8)})


async def test_a_cordon_outlasts_agent_and_kubelet(node: Node, process: AgentProcess) -> None:
    socket, card = node.state / "agent.sock", node.cards.uuids[2]
    node.configure(whole(XPU))
    await process.start()
    await node.counts({XPU: (4, 4)})
    await process.until(lambda it: it["ready"])

    assert await asyncio.to_thread(send, socket, "cordon", card, "fan") == f"{card}: cordoned"

    await process.kill()  # what is answered is on disk
    await process.start()
    await node.kubelet.restart()
    await node.counts({XPU: (4, 3)})
    document = await process.until(lambda it: it["ready"])
    (cordon,) = [it["cordon"] for it in document["devices"] if it["cordon"]]
    assert cordon["reason"] == "fan"
    await asyncio.to_thread(send, socket, "uncordon", card)
    await node.counts({XPU: (4, 4)})


async def test_an_operators_word_that_can_not_be_written_holds_and_says_so(node: Node) -> None:
    checkpoint = node.state / "checkpoint.json"
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})
    await node.saved(node.cards.uuids[0])
    checkpoint.unlink()
    checkpoint.mkdir()  # no file can be put in its place

    with pytest.raises(NotOnDisk, match=f"{node.cards.uuids[0]}: cordoned, but only until the agent ends"):
        await node.agent.apply(Command("cordon", node.cards.uuids[0], "alice", "fan"))

    await node.counts({XPU: (4, 3)})
    checkpoint.rmdir()
    await node.saved('"author":"alice"')  # by itself, once it can be


async def test_an_operators_word_clears_a_fault_that_has_no_other_proof(node: Node) -> None:
    scenario = simulated(node).scenario
    card = scenario.uuids[0]
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})
    scenario.fault(card, "burnt", cleared_by=(Proof.OPERATOR,))
    scenario.fault(scenario.uuids[1], "too-hot")
    await node.counts({XPU: (4, 2)})
    scenario.heal(card)
    scenario.heal(scenario.uuids[1])
    await node.counts({XPU: (4, 3)})  # looking well is no proof

    said = await node.agent.apply(Command("clear", card, "alice"))

    assert said == f"{card}: cleared; healthy polls end what is left of the fault"
    await node.counts({XPU: (4, 4)})


def simulated(node: Node) -> Simulated:
    assert isinstance(node.cards, Simulated)
    return node.cards


def nvidia(node: Node) -> Nvidia:
    assert isinstance(node.cards, Nvidia)
    return node.cards
