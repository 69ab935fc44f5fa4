"""The configuration changes while pods run."""

from __future__ import annotations

from functools import partial

import anyio
import pytest
from msgspec.structs import replace

from agent.core.model import VendorState
from agent.core.publishing.agent_status import AgentStatus
from agent.testing.kubelet import SimKubelet
from agent.testing.node_kubelet import Capacity

from .conftest import EVERY_RELEASE
from .node import PATIENCE, Node, confirmed, in_use, released, shared, vendor_is, whole

XPU = "example.com/xpu"
OTHER = "example.com/other"


@EVERY_RELEASE
async def test_a_resource_that_leaves_keeps_ids_in_use_until_they_are_free_and_then_ends(node: Node) -> None:
    await node.start(whole(XPU, [0, 1]), shared(OTHER, 4, [2, 3]))
    await node.counts({XPU: (2, 2), OTHER: (8, 8)})
    pod = await node.admit("last", {OTHER: 1})
    await node.until(lambda it: confirmed(it, pod))

    node.configure(whole(XPU, [0, 1]))
    await node.counts({XPU: (2, 2), OTHER: (1, 1)})
    assert node.view.resources[OTHER].retired
    assert set((await node.kubelet.health(pod.uid)).values()) == {"Healthy"}
    await node.refused("late", {OTHER: 1})

    await node.kubelet.delete(pod.uid)
    await node.until(lambda it: released(it, pod))
    await node.counts({XPU: (2, 2), OTHER: (0, 0)})
    await node.until(lambda it: OTHER not in it.sessions and OTHER not in it.resources)
    assert node.view.troubles == ()
    assert node.view.sessions[XPU].registrations == 1


@EVERY_RELEASE
async def test_who_takes_the_place_of_a_pod_is_refused_a_resource_that_leaves_until_the_new_one_has_its_cards(
    node: Node,
) -> None:
    # Nothing but a refusal has the agent look whether a pod has gone: the kubelet always knows it first.
    node.pace = replace(node.pace, reconcile=3600.0)
    await node.start(shared(XPU, 10))
    await node.counts({XPU: (40, 40)})
    pods = [await node.admit(f"pod-{n}", {XPU: 1}) for n in range(5)]
    await node.until(lambda it: confirmed(it, *pods))

    node.configure(shared(OTHER, 4))
    await node.counts({XPU: (5, 5), OTHER: (0, 0)})
    whose = "default/pod-0, default/pod-1, default/pod-2, default/pod-3, default/pod-4"
    assert node.view.resource_waits == {
        OTHER: (f"{OTHER} waits for 4 cards that pods hold as {XPU}: {whose}",)
    }
    assert node.view.troubles == ()
    while pods:
        ended = pods.pop()
        await node.kubelet.delete(ended.uid)
        verdict = await node.refused(f"instead-of-{ended.name}", {XPU: 1})
        assert "is listed only for the pods that hold it; ask for example.com/other" in verdict.message
        with anyio.fail_after(PATIENCE):
            while not released(node.view, ended):  # its controller does not give up
                await node.refused(f"again-instead-of-{ended.name}", {XPU: 1})
        await node.counts({XPU: (len(pods), len(pods))})
        for pod in pods:
            assert set((await node.kubelet.health(pod.uid)).values()) == {"Healthy"}
            await node.start_of(pod)

    await node.until(lambda it: XPU not in it.resources)
    await node.counts({OTHER: (16, 16)})
    assert node.view.resource_waits == {}
    await node.admit("one", {OTHER: 1})
    assert node.view.sessions[OTHER].registrations == 1


@EVERY_RELEASE
async def test_a_resource_that_comes_back_while_it_is_in_use_is_given_out_again(node: Node) -> None:
    await node.start(shared(XPU, 2))
    await node.counts({XPU: (8, 8)})
    pod = await node.admit("one", {XPU: 1})
    await node.until(lambda it: confirmed(it, pod))
    node.configure(shared(OTHER, 2))
    await node.counts({XPU: (1, 1), OTHER: (6, 6)})

    node.configure(shared(XPU, 2))

    await node.counts({XPU: (8, 8), OTHER: (0, 0)})
    await node.admit("rest", {XPU: 7})
    assert node.view.sessions[XPU].registrations == 1


@EVERY_RELEASE
async def test_a_resource_that_comes_back_is_registered_anew(node: Node) -> None:
    await node.start(whole(XPU, [0, 1]), whole(OTHER, [2, 3]))
    await node.counts({XPU: (2, 2), OTHER: (2, 2)})
    node.configure(whole(XPU, [0, 1]))
    await node.counts({OTHER: (0, 0)})
    await node.until(lambda it: OTHER not in it.sessions)

    node.configure(whole(XPU, [0, 1]), whole(OTHER, [2, 3]))

    await node.counts({XPU: (2, 2), OTHER: (2, 2)})
    await node.admit("one", {OTHER: 2})


@EVERY_RELEASE
async def test_a_reload_that_changes_nothing_for_a_resource_leaves_its_stream_alone(
    node: Node, sim: SimKubelet
) -> None:
    await node.start(whole(XPU, [0, 1]), shared(OTHER, 4, [2, 3]))
    await node.counts({XPU: (2, 2), OTHER: (8, 8)})

    node.configure(whole(XPU, [0, 1]), shared(OTHER, 6, [2, 3]))

    await node.counts({OTHER: (12, 12)})
    assert (sim.journal.streams[XPU], sim.journal.lists[XPU]) == (1, 1)
    assert (sim.journal.streams[OTHER], sim.journal.lists[OTHER]) == (1, 2)
    assert sim.journal.stream_ends == {}


async def test_fewer_replicas_leave_those_in_use_listed_until_they_are_free(node: Node) -> None:
    await node.start(shared(XPU, 4, [0, 1]))
    await node.counts({XPU: (8, 8)})
    pods = [await node.admit(f"pod-{n}", {XPU: 1}) for n in range(8)]
    await node.until(lambda it: confirmed(it, *pods))

    node.configure(shared(XPU, 2, [0, 1]))
    await node.until(lambda it: it.resources[XPU].rule.sharing.replicas == 2)
    assert await node.kubelet.capacity() == {XPU: Capacity(8, 8)}
    await node.refused("ninth", {XPU: 1})

    for pod in pods:
        await node.kubelet.delete(pod.uid)
    await node.counts({XPU: (4, 4)})
    assert node.view.sessions[XPU].registrations == 1


@pytest.mark.parametrize("count", [2])
async def test_a_card_in_use_changes_to_another_resource_only_when_it_is_free(node: Node) -> None:
    await node.start(whole(XPU))
    await node.counts({XPU: (2, 2)})
    pod = await node.admit("both", {XPU: 2})
    await node.until(lambda it: confirmed(it, pod))

    node.configure(whole(XPU, [0]), shared(OTHER, 5, [1]))
    await node.until(lambda it: it.resources[XPU].rule.devices == (0,))
    await node.counts({XPU: (2, 2), OTHER: (0, 0)})

    await node.kubelet.delete(pod.uid)
    await node.counts({XPU: (1, 1), OTHER: (5, 5)})


async def test_a_bad_file_changes_nothing_and_is_told_until_it_is_good(node: Node) -> None:
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})

    node.write("version: v1\nvendors: [")

    view = await node.until(lambda it: it.config_error)
    assert str(node.config) in view.config_error
    assert "the last good configuration stays in force" in view.config_error
    await node.admit("one", {XPU: 1})
    assert node.streams(XPU) == 1
    node.configure(shared(XPU, 2))
    await node.counts({XPU: (7, 7)})  # the card in use stays whole until it is free
    assert node.view.config_error == ""


async def test_no_content_of_the_file_ends_the_agent(node: Node) -> None:
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})

    for number, text in enumerate(("\x00", "[]", "vendors: {simulated: {resources: 7}}", "a: &a [*a]", "{")):
        known = ("", node.view.config_error)
        node.write(text)
        await node.until(partial(complains, known=known))
        if number < 4:
            await node.admit(f"pod-{number}", {XPU: 1})

    assert node.streams(XPU) == 1


def complains(view: AgentStatus, known: tuple[str, ...]) -> bool:
    """Whether the configuration is wrong in a way that is not known yet."""
    return view.config_error not in known


async def test_a_file_that_is_gone_leaves_the_last_configuration(node: Node) -> None:
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})

    node.config.unlink()

    await node.until(lambda it: it.config_error)
    await node.admit("one", {XPU: 1})


def names(view: AgentStatus) -> set[str]:
    """The vendors in service."""
    return {it.name for it in view.snapshot.vendors}


@EVERY_RELEASE
async def test_a_vendor_that_is_switched_off_takes_its_resources_along_and_can_come_back(node: Node) -> None:
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})

    node.configure(whole(XPU), simulated={"enabled": False})
    await node.counts({XPU: (0, 0)})
    await node.until(lambda it: "simulated" not in names(it) and not it.sessions)
    node.configure(whole(XPU))

    await node.counts({XPU: (4, 4)})
    assert vendor_is(node.view, "simulated", VendorState.OPEN)
    await node.admit("one", {XPU: 1})
    assert len(in_use(node.view)) == 1
