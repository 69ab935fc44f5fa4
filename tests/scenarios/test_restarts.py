"""Somebody ends and comes back: the kubelet, the agent, and a second agent that waits."""

from __future__ import annotations

import re
import socket
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs
from peers.faults import FaultyPodResources
from peers.plugin import TinyPlugin
from support.waiting import eventually

from agent.core.model import AllocationState
from agent.testing.kubelet import SimKubelet
from agent.testing.node_kubelet import Container, Pod
from agent.vendor_api.agent import State

from .cards import Simulated
from .conftest import EVERY_RELEASE, NVIDIA_OR_SIMULATED
from .kubelets import Kind
from .node import PATIENCE, Node, confirmed, device, in_use, owned_by, released, shared, whole
from .process import AgentProcess

XPU = "example.com/xpu"
SHARED = "example.com/xpu.shared"


def sockets(node: Node) -> set[str]:
    return {path.name for path in node.kubelet.plugin_dir.glob("xpu-*.sock")}


# The kubelet


@EVERY_RELEASE
@NVIDIA_OR_SIMULATED
async def test_a_kubelet_that_restarts_is_registered_with_once_more_on_new_sockets(node: Node) -> None:
    await node.start(whole(XPU, [0, 1]), shared(SHARED, 4, [2, 3]))
    await node.counts({XPU: (2, 2), SHARED: (8, 8)})
    before = sockets(node)

    await node.kubelet.restart()

    await node.counts({XPU: (2, 2), SHARED: (8, 8)})
    view = await node.until(lambda it: not it.troubles)
    assert {name: it.registrations for name, it in view.sessions.items()} == {XPU: 2, SHARED: 2}
    assert (node.streams(XPU), node.streams(SHARED)) == (2, 2)
    assert len(sockets(node)) == 2
    assert sockets(node).isdisjoint(before)


@EVERY_RELEASE
async def test_a_kubelet_that_restarts_again_and_again_gets_one_registration_each(
    node: Node, sim: SimKubelet
) -> None:
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})

    for _ in range(3):
        await sim.restart()
        await node.counts({XPU: (4, 4)})

    assert sim.journal.registrations == {XPU: 4}
    assert sim.journal.streams == {XPU: 4}


@NVIDIA_OR_SIMULATED
async def test_faults_and_allocations_outlast_a_kubelet_restart(node: Node) -> None:
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})
    pod = await node.admit("kept", {XPU: 2})
    (held,) = in_use(await node.until(lambda it: confirmed(it, pod)))
    (free, *_) = {*node.cards.uuids} - {*held.devices}
    await node.fail(node.cards.uuids.index(free))
    await node.counts({XPU: (4, 3)})

    await node.kubelet.restart()

    await node.counts({XPU: (4, 3)})
    assert device(node.view, free).health.reason == "xid-79"
    assert [replace(it, life=held.life) for it in in_use(node.view)] == [held]
    assert await node.cards_of(pod) == {*held.devices}
    other = await node.admit("next", {XPU: 1})
    assert await node.cards_of(other) == {*node.cards.uuids} - {*held.devices} - {free}


async def test_a_pod_deleted_while_the_kubelet_was_away_is_released(node: Node) -> None:
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})
    pod = await node.admit("gone", {XPU: 4})
    await node.until(lambda it: confirmed(it, pod))

    await node.kubelet.delete(pod.uid)
    await node.kubelet.restart()

    await node.until(lambda it: released(it, pod))
    await node.counts({XPU: (4, 4)})
    await node.admit("next", {XPU: 4})


@EVERY_RELEASE
async def test_a_socket_that_somebody_removes_is_made_anew(node: Node) -> None:
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})
    (before,) = sockets(node)

    (node.kubelet.plugin_dir / before).unlink()

    await node.until(lambda it: it.sessions[XPU].registrations == 2 and not it.troubles)
    await node.counts({XPU: (4, 4)})
    assert before not in sockets(node)
    await node.admit("one", {XPU: 1})


@EVERY_RELEASE
async def test_a_stream_that_breaks_is_followed_by_one_registration(node: Node, sim: SimKubelet) -> None:
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})

    sim.drop_stream(XPU)

    await node.until(lambda it: it.sessions[XPU].registrations == 2 and not it.troubles)
    await node.counts({XPU: (4, 4)})
    assert sim.journal.registrations == {XPU: 2}


@EVERY_RELEASE
@pytest.mark.parametrize("own", [True, False], ids=["our-ids", "its-own-ids"])
async def test_another_plugin_that_comes_and_goes_is_outlived_and_not_fought(
    node: Node, lister: FaultyPodResources, kind: Kind, own: bool
) -> None:
    node.pace = structs.replace(node.pace, renewals=0.1)
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})
    ids = node.cards.uuids[:3] if own else ("alien-0", "alien-1", "alien-2")

    async with TinyPlugin(node.kubelet.plugin_dir, XPU) as stranger:
        await stranger.publish(dict.fromkeys(ids, "Healthy"))
        await stranger.register()
        await node.counts({XPU: (3, 3)})
        await looks(lister, 5)
        assert node.view.sessions[XPU].registrations == 1

    if kind.release == "1.37":  # it had two plugins, and keeps the last list of either until the next one
        await node.fail(0)
        await node.counts({XPU: (4, 3)})
        node.cards.reset(0)
    await node.counts({XPU: (4, 4)})
    await node.until(lambda it: it.sessions[XPU].registrations == 2 and not it.troubles)
    await node.counts({XPU: (4, 4)})
    pods = [await node.admit(f"pod-{number}", {XPU: 1}) for number in range(4)]
    assert {card for pod in pods for card in await node.cards_of(pod)} == {*node.cards.uuids}


@EVERY_RELEASE
async def test_a_list_of_ours_does_not_hide_that_another_plugin_has_gone(node: Node) -> None:
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})

    async with TinyPlugin(node.kubelet.plugin_dir, XPU) as stranger:
        await stranger.publish({"alien-0": "Healthy"})
        await stranger.register()
        await node.counts({XPU: (1, 1)})
        await node.until(lambda it: it.other_plugins)
    await node.fail(0)

    await node.until(lambda it: it.sessions[XPU].registrations == 2 and not it.troubles)
    await node.counts({XPU: (4, 3)})
    pod = await node.admit("one", {XPU: 1})
    assert await node.cards_of(pod) < {*node.cards.uuids[1:]}


@EVERY_RELEASE
async def test_a_list_of_ours_does_not_hide_that_another_plugin_with_our_very_ids_has_gone(
    node: Node, lister: FaultyPodResources, kind: Kind
) -> None:
    node.pace = structs.replace(
        node.pace, renewals=0.1, renewal_again=1.0
    )  # the list comes between two looks
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})

    async with TinyPlugin(node.kubelet.plugin_dir, XPU) as stranger:
        await stranger.publish(dict.fromkeys(node.cards.uuids[:3], "Healthy"))
        await stranger.register()
        await node.counts({XPU: (3, 3)})
        await looks(lister, 5)
    await node.fail(0)

    if kind.release != "1.37":  # it had two plugins, and asks the one that is left
        await node.until(lambda it: it.sessions[XPU].registrations == 2)
    await node.until(lambda it: not it.troubles)
    await node.counts({XPU: (4, 3)})
    pod = await node.admit("one", {XPU: 1})
    assert await node.cards_of(pod) < {*node.cards.uuids[1:]}


async def test_a_pod_that_ended_as_the_kubelet_began_anew_is_released_though_a_look_was_under_way(
    node: Node, lister: FaultyPodResources
) -> None:
    """What the new kubelet asks for first has it write its file without the pod."""
    node.pace = structs.replace(node.pace, settle=3600.0)
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})
    lister.stall()
    asked = lister.calls
    gone = await node.admit("gone", {XPU: 1})
    await eventually(lambda: lister.calls > asked, PATIENCE)

    await node.kubelet.delete(gone.uid)
    await node.kubelet.restart()
    await node.counts({XPU: (4, 4)})
    pod = await node.admit("next", {XPU: 1})
    await lister.heal()

    await node.until(lambda it: released(it, gone) and confirmed(it, pod))


async def test_a_pod_that_went_while_no_agent_ran_is_released_by_an_agent_that_has_just_begun(
    node: Node,
) -> None:
    node.pace = structs.replace(node.pace, settle=3600.0)
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})
    pods = [await node.admit(name, {XPU: 1}) for name in ("kept", "gone")]
    view = await node.until(lambda it: confirmed(it, *pods))
    held = {it.owner.pod: set(it.ids) for it in in_use(view) if it.owner}
    await node.stop()
    await node.kubelet.delete(pods[1].uid)

    await node.start(shared(XPU, 2))

    await node.until(lambda it: released(it, pods[1]))
    assert {one for it in in_use(node.view) for one in it.ids} == held["kept"]


async def test_a_pod_whose_ids_went_on_is_released_by_the_first_pass_of_an_agent_that_was_restarted(
    node: Node, lister: FaultyPodResources
) -> None:
    """An agent that begins anew each few seconds never waits for any time to the end."""
    node.pace = structs.replace(node.pace, settle=3600.0, grace=3600.0, reconcile=3600.0)
    await lister.go_away()  # so that nobody learns what the pod is called
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})
    gone = await node.admit("gone", {XPU: 4})
    await node.until(lambda it: owned_by(it, gone))
    await node.stop()
    await lister.heal()
    await node.kubelet.delete(gone.uid)

    await node.start()
    await node.counts({XPU: (4, 4)})
    pod = await node.admit("next", {XPU: 4})

    await node.until(lambda it: released(it, gone) and confirmed(it, pod))
    assert [it.owner.uid for it in in_use(node.view) if it.owner] == [pod.uid]


@EVERY_RELEASE
async def test_a_kubelet_that_refuses_to_register_is_asked_again_and_its_words_are_shown(
    node: Node, sim: SimKubelet
) -> None:
    sim.refuse_registration("not today")
    await node.start(whole(XPU))

    view = await node.until(lambda it: it.troubles and it.sessions)
    view = await node.until(lambda it: it.sessions[XPU].state == "refused")
    sim.refuse_registration(None)

    assert "not today" in view.sessions[XPU].reason
    await node.counts({XPU: (4, 4)})


# The agent


@NVIDIA_OR_SIMULATED
async def test_an_agent_that_was_killed_continues_from_its_checkpoint(
    node: Node, process: AgentProcess
) -> None:
    node.configure(whole(XPU, [0, 1]), shared(SHARED, 4, [2, 3]))
    await process.start()
    await node.counts({XPU: (2, 2), SHARED: (8, 8)})
    pods = [await node.admit("one", {XPU: 1}), await node.admit("two", {SHARED: 2})]
    await node.fail(3)
    await node.counts({SHARED: (8, 4)})
    before = await process.until(lambda it: all(owner(it, pod) for pod in pods))
    await node.saved('"xid-79"', *(f'"pod":"{pod.name}"' for pod in pods))

    await process.kill()
    await node.counts({XPU: (2, 0), SHARED: (8, 0)})
    left = sockets(node)
    await process.start()

    await node.counts({XPU: (2, 2), SHARED: (8, 4)})
    after = await process.until(lambda it: it["ready"] and len(it["devices"]) == 4)
    assert after["allocations"] == [{**it, "source": "checkpoint"} for it in before["allocations"]]
    assert [it["health"]["reason"] for it in after["devices"]] == ["", "", "", "xid-79"]
    assert [it["registrations"] for it in after["resources"]] == [1, 1]
    assert len(sockets(node)) == 2
    assert sockets(node).isdisjoint(left)


@EVERY_RELEASE
async def test_a_killed_agent_registers_once_per_life(
    node: Node, process: AgentProcess, sim: SimKubelet
) -> None:
    node.configure(whole(XPU))
    for _ in range(2):
        await process.start()
        await node.counts({XPU: (4, 4)})
        await process.kill()
        await node.counts({XPU: (4, 0)})

    assert sim.journal.registrations == {XPU: 2}
    assert sim.journal.streams == {XPU: 2}


async def test_a_start_with_a_bad_config_serves_by_the_last_good_one_until_it_is_mended(
    node: Node, process: AgentProcess
) -> None:
    node.configure(whole(XPU, [0, 1]), shared(SHARED, 4, [2, 3]))
    await process.start()
    await node.counts({XPU: (2, 2), SHARED: (8, 8)})
    pod = await node.admit("before", {SHARED: 1})
    await node.saved('"pod":"before"')
    await node.read(node.state / "agent.last-config.json", SHARED)
    await process.kill()
    await node.counts({XPU: (2, 0), SHARED: (8, 0)})
    node.write(node.config.read_text().replace('"resources"', '"resorces"'))

    await process.start()

    await node.counts({XPU: (2, 2), SHARED: (8, 8)})
    await node.admit("new", {XPU: 1})
    refused = await process.until(lambda it: it["ready"] and owner(it, pod))
    assert refused["config"]["source"] == str(node.config)
    assert "resorces: unknown key" in refused["config"]["error"]
    assert re.search(
        r"the last good configuration, of 20\d\d-.+Z, stays in force$", refused["config"]["error"]
    )
    await process.said("config refused")
    node.configure(whole(XPU, [0, 1]), shared(SHARED, 6, [2, 3]))
    await node.counts({XPU: (2, 2), SHARED: (12, 12)})
    assert (await process.until(lambda it: not it["config"]["error"]))["ready"]


async def test_a_pod_that_runs_does_not_notice_that_the_agent_is_away(
    node: Node, process: AgentProcess
) -> None:
    node.configure(whole(XPU))
    await process.start()
    await node.counts({XPU: (4, 4)})
    pod = await node.admit("running", {XPU: 1})
    before = await node.kubelet.run_options(pod.uid, "main")

    await process.kill()
    away = await node.kubelet.run_options(pod.uid, "main")
    refused = await node.kubelet.admit(pod_of("new"))
    await process.start()
    await node.counts({XPU: (4, 4)})

    assert before == away == await node.kubelet.run_options(pod.uid, "main")
    assert not refused.admitted


async def test_a_pod_that_went_while_no_agent_ran_is_released(node: Node, process: AgentProcess) -> None:
    node.configure(whole(XPU))
    await process.start()
    await node.counts({XPU: (4, 4)})
    pod = await node.admit("gone", {XPU: 4})
    await node.saved('"pod":"gone"')

    await process.kill()
    await node.kubelet.delete(pod.uid)
    await process.start()

    await process.until(lambda it: [one["state"] for one in it["allocations"]] == ["released"])


@EVERY_RELEASE
async def test_an_agent_that_ends_in_order_leaves_no_socket_and_no_healthy_device(node: Node) -> None:
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})

    await node.stop()

    await node.counts({XPU: (4, 0)})
    assert sockets(node) == set()


async def test_a_fault_outlasts_the_agent_though_the_card_looks_well_again(node: Node) -> None:
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})
    await node.fail(0)
    await node.counts({XPU: (4, 3)})
    await node.stop()

    simulated(node).scenario.heal(node.cards.uuids[0])
    await node.start()

    await node.counts({XPU: (4, 3)})
    node.cards.reset(0)
    await node.counts({XPU: (4, 4)})
    assert device(node.view, node.cards.uuids[0]).health.state is State.HEALTHY


async def test_a_fault_of_the_last_moment_is_written_at_the_end(node: Node) -> None:
    node.pace = structs.replace(node.pace, save=600.0)  # the first change is written, the next one is not yet
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})
    for index in range(3):
        await node.fail(index)
        await node.counts({XPU: (4, 3 - index)})

    await node.stop()
    for uuid in node.cards.uuids:
        simulated(node).scenario.heal(uuid)
    await node.start()

    await node.counts({XPU: (4, 1)})


# Two agents


@EVERY_RELEASE
async def test_a_second_agent_stands_by_and_takes_over(node: Node, process: AgentProcess) -> None:
    node.configure(whole(XPU))
    await process.start()
    await node.counts({XPU: (4, 4)})
    pod = await node.admit("kept", {XPU: 1})
    await node.saved('"pod":"kept"')

    await node.start()
    waiting = await node.until(lambda it: "pid" in it.standby)
    assert waiting.troubles == ()
    assert waiting.sessions == {}
    assert len(sockets(node)) == 1
    await process.kill()

    await node.until(lambda it: not it.standby and it.sessions)
    await node.until(lambda it: not it.troubles)
    await node.counts({XPU: (4, 4)})
    assert node.view.sessions[XPU].registrations == 1
    assert [it.state for it in node.view.allocations] == [AllocationState.DONE]
    assert confirmed(node.view, pod)


async def test_an_agent_with_another_state_directory_stands_by_and_takes_over(
    node: Node, process: AgentProcess
) -> None:
    node.configure(whole(XPU))
    await process.start()
    await node.counts({XPU: (4, 4)})
    pod = await node.admit("kept", {XPU: 3})

    node.state = node.root / "another"
    await node.start(whole(XPU))
    view = await node.until(lambda it: it.standby != "starting")
    (its,) = sockets(node)
    assert view.standby == f"the agent that serves {node.kubelet.plugin_dir / its}"
    await process.kill()

    await node.counts({XPU: (4, 4)})
    await node.until(lambda it: confirmed(it, pod))
    await node.refused("second", {XPU: 2})


async def test_a_state_directory_that_is_removed_lets_no_second_agent_in(
    node: Node, process: AgentProcess
) -> None:
    node.configure(whole(XPU))
    await process.start()
    await node.counts({XPU: (4, 4)})
    await node.admit("kept", {XPU: 1})
    before = await process.until(lambda it: it["allocations"][0]["owner"])
    await node.saved('"pod":"kept"')

    node.state.rename(node.root / "removed")
    await node.start()
    await node.until(lambda it: "pid" in it.standby)

    await node.saved('"pod":"kept"')
    await node.read(node.state / "agent.last-config.json", "version")
    after = await process.until(lambda it: it["ready"])
    assert after["allocations"] == before["allocations"]
    assert node.view.standby
    assert len(sockets(node)) == 1


async def test_an_agent_stands_by_while_one_that_locks_no_directory_serves_the_kubelet(node: Node) -> None:
    """As one of an earlier release with another state directory does."""
    path = node.kubelet.plugin_dir / "xpu-0a0b0c0d-4711-1.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        await node.start(whole(XPU))
        await node.until(lambda it: it.standby == f"the agent that serves {path}")

    await node.counts({XPU: (4, 4)})


# No kubelet


async def looks(lister: FaultyPodResources, more: int) -> None:
    """Wait until it was looked so often what the kubelet can give out."""
    call = "GetAllocatableResources"
    wanted = lister.counts[call] + more
    await eventually(lambda: lister.counts[call] >= wanted, PATIENCE)


@EVERY_RELEASE
async def test_an_agent_without_a_kubelet_says_so_and_registers_when_it_comes(
    node: Node, sim: SimKubelet
) -> None:
    await sim.stop()
    await node.start(whole(XPU))
    view = await node.until(lambda it: it.sessions and it.sessions[XPU].reason)
    assert "no kubelet at" in view.troubles[0]

    await sim.start()

    await node.counts({XPU: (4, 4)})


def simulated(node: Node) -> Simulated:
    assert isinstance(node.cards, Simulated)
    return node.cards


def pod_of(name: str) -> Pod:
    return Pod(name, (Container({XPU: 1}),))


def owner(document: dict[str, Any], pod: Pod) -> object:
    """Whether the pod is known by name as an owner."""
    owners = [it["owner"] for it in document["allocations"] if it["owner"]]
    return any(it["uid"] == pod.uid and it["pod"] == pod.name for it in owners)
