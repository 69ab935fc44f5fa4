"""What other device plugins got wrong in matching, state and recovery; docs/peer-bugs.md lists all of it."""

from __future__ import annotations

import json

import pytest
from peers.faults import FaultyPodResources

from agent.core.allocation.known_pods import KnownPods
from agent.testing.node_kubelet import Container, Pod
from agent.vendors.simulated.agent.claims import ANNOTATION

from .cards import Sliced
from .conftest import ONLY_SLICED
from .node import Node, confirmed, in_use, one, owned_by, released, shared, whole
from .process import AgentProcess

XPU = "example.com/xpu"


async def served(node: Node) -> None:
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})


def promised_each(node: Node, pod: Pod) -> None:
    """Let a scheduler have promised each container slices that bear its name."""
    said = {it.name: {"parameters": {"name": it.name}} for it in pod.containers}
    node.shows(pod, **{ANNOTATION: json.dumps(said)})


# enflame


@ONLY_SLICED
async def test_enflame_b3_a_request_that_is_refused_or_cut_off_leaves_nothing(
    node: Node, sliced: Sliced
) -> None:
    node.gives_up(prepare=2.0)
    await served(node)
    sliced.scenario.hang("prepared")
    refusal = await node.refused("cut-off", {XPU: 1})
    assert "prepare did not return within 2 s" in refusal.message
    sliced.behave()

    await node.until(lambda it: not sliced.slices and not in_use(it))

    await node.until(lambda it: "open" in [one.state for one in it.snapshot.vendors])
    await node.admit("next", {XPU: 4})


@ONLY_SLICED
async def test_enflame_b4_init_containers_and_sidecars_are_matched_to_their_own_claims(
    node: Node, sliced: Sliced
) -> None:
    await served(node)
    init, sidecar = (
        Container({XPU: 1}, "prepare", init=True),
        Container({XPU: 1}, "watch", init=True, restartable=True),
    )
    pod = Pod("of-three", (init, sidecar, Container({XPU: 1})))
    promised_each(node, pod)

    await node.admit_pod(pod)

    for it in pod.containers:
        assert sliced.made_with(await node.start_of(pod, it.name)) == {"name": it.name}


@ONLY_SLICED
async def test_enflame_b5_equal_containers_of_one_pod_never_share_a_claim(node: Node, sliced: Sliced) -> None:
    await served(node)
    pod = Pod("twins", (Container({XPU: 1}, "left"), Container({XPU: 1}, "right")))
    promised_each(node, pod)

    await node.admit_pod(pod)

    for it in pod.containers:
        assert sliced.made_with(await node.start_of(pod, it.name)) == {"name": it.name}


async def test_enflame_b7_a_pod_is_admitted_while_no_api_server_answers(node: Node) -> None:
    await served(node)
    await node.kubelet.restart(api_away=True)
    await node.counts({XPU: (4, 4)})

    pod = await node.admit_pod(one("static", XPU, static=True))

    await node.until(lambda it: confirmed(it, pod))


async def test_enflame_b11_a_card_that_fails_while_nothing_else_answers_costs_only_itself(
    node: Node, lister: FaultyPodResources
) -> None:
    await served(node)
    await lister.go_away()
    node.state.rename(node.state.with_name("away"))
    node.state.write_text("a file is in the way")

    await node.fail(0)

    await node.counts({XPU: (4, 3)})
    node.cards.reset(0)
    await node.counts({XPU: (4, 4)})
    assert (node.streams(XPU), node.view.sessions[XPU].registrations) == (1, 1)


@ONLY_SLICED
async def test_enflame_b17_one_leaked_slice_stops_nothing(node: Node, sliced: Sliced) -> None:
    sliced.plant("leaked", "0123456789abcdef")
    sliced.plant("theirs", None)

    await served(node)

    await node.admit("one", {XPU: 4})


@ONLY_SLICED
async def test_enflame_b17_slices_that_can_not_be_listed_stop_nothing(node: Node, sliced: Sliced) -> None:
    sliced.spoil()

    await served(node)

    await node.until(lambda _: node.count("evidence_unreadable", source="slices of simulated"))
    sliced.lose()
    await node.admit("one", {XPU: 4})


@pytest.mark.parametrize("end", ["deleted", "finished"])
@ONLY_SLICED
async def test_enflame_b18_slices_go_with_pods_that_ended_unseen(
    node: Node, sliced: Sliced, process: AgentProcess, end: str
) -> None:
    node.configure(whole(XPU))
    await process.start()
    await node.counts({XPU: (4, 4)})
    pod = await node.admit("short", {XPU: 2})
    await node.saved('"pod":"short"')
    await process.kill()
    await (node.kubelet.delete if end == "deleted" else node.kubelet.finish)(pod.uid)

    await process.start()

    await process.until(lambda it: [one["state"] for one in it["allocations"]] == ["released"])
    assert sliced.slices == {}


@ONLY_SLICED
async def test_enflame_b19_the_end_of_a_pod_that_was_never_allocated_is_nothing(
    node: Node, sliced: Sliced
) -> None:
    await served(node)
    node.promises(one("never", XPU), memory="8")
    node.agent.pods.set(KnownPods())

    pod = await node.admit("next", {XPU: 1})

    await node.until(lambda it: confirmed(it, pod))
    assert sliced.made_with(await node.start_of(pod)) == {}


@ONLY_SLICED
async def test_enflame_b20_a_start_changes_nothing_on_the_hardware(
    node: Node, sliced: Sliced, lister: FaultyPodResources
) -> None:
    sliced.plant("theirs", None)
    await served(node)
    pod = await node.admit("running", {XPU: 1})
    await node.until(lambda it: confirmed(it, pod))
    written = sliced.written
    await node.stop()
    calls = lister.calls

    await node.start()

    await node.counts({XPU: (4, 4)})
    await node.until(lambda it: lister.calls > calls + 3 and confirmed(it, pod))
    assert sliced.written == written


# gpu-manager


async def test_gpu_manager_2_a_pod_that_the_api_server_has_not_shown_is_not_released(
    node: Node, lister: FaultyPodResources
) -> None:
    await served(node)
    node.shows(one("somebody-else", XPU))

    pod = await node.admit("unseen", {XPU: 1})

    await node.until(lambda it: confirmed(it, pod))
    other = await node.admit("next", {XPU: 1})
    calls = lister.calls
    await node.until(lambda it: lister.calls > calls + 3 and confirmed(it, other))
    assert not released(node.view, pod)


async def test_gpu_manager_8_what_is_recovered_is_recovered_once(node: Node) -> None:
    await node.start(shared(XPU, 2))
    await node.counts({XPU: (8, 8)})
    pods = [await node.admit(name, {XPU: 2}) for name in ("one", "two")]
    view = await node.until(lambda it: confirmed(it, *pods))
    ids = [it.id for it in in_use(view)]
    await node.stop()
    (node.state / "checkpoint.json").unlink()

    for recalled in (2, 0):
        await node.start()
        view = await node.until(lambda it: confirmed(it, *pods))
        await node.counts({XPU: (8, 8)})
        assert sorted(it.id for it in view.allocations) == sorted(ids)
        assert node.done("recall") == recalled
        await node.stop()


async def test_gpu_manager_12_a_missing_kubelet_checkpoint_is_no_reason_to_stop(node: Node) -> None:
    assert not node.kubelet.checkpoint.exists()

    await served(node)

    pod = await node.admit("one", {XPU: 1})
    await node.until(lambda it: confirmed(it, pod))
    node.kubelet.checkpoint.unlink()
    other = await node.admit("two", {XPU: 1})  # the kubelet writes it anew
    view = await node.until(lambda it: confirmed(it, pod, other))
    assert len(owned_by(view, pod)) == 1
