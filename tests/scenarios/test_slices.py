"""Hardware made for each allocation: nothing leaks, nothing foreign is touched, what is lost is remade."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from agent.core.model import AllocationState
from agent.core.publishing.agent_status import AgentStatus
from agent.kubelet.kubelet_errors import KubeletRefused
from agent.kubelet.pod_resources import PodResources
from agent.kubelet.protobuf import delimited
from agent.kubelet.rpc import call

from .cards import Sliced
from .conftest import EVERY_RELEASE, ONLY_SLICED
from .node import PATIENCE, Node, confirmed, in_use, one, owned_by, released, whole
from .process import AgentProcess

pytestmark = ONLY_SLICED

XPU = "example.com/xpu"
PRE_START = "/v1beta1.DevicePlugin/PreStartContainer"


async def served(node: Node) -> None:
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})


def state_of(view: AgentStatus, sliced: Sliced) -> str:
    return next(it.state for it in view.snapshot.vendors if it.name == sliced.vendor)


async def gone(node: Node, sliced: Sliced, *names: str) -> None:
    """Wait until none of these slices is left."""
    await node.until(lambda _: not sliced.slices.keys() & {*names})


async def test_a_slice_is_made_before_the_answer_and_goes_with_its_pod(node: Node, sliced: Sliced) -> None:
    await served(node)

    pod = await node.admit("short", {XPU: 2})

    made = sliced.slices
    view = await node.until(lambda it: confirmed(it, pod))
    (held,) = owned_by(view, pod)
    assert set(made) == set(held.partitions)
    assert set(made.values()) == {held.id} == {await node.start_of(pod)}
    await node.kubelet.delete(pod.uid)
    await node.until(lambda it: released(it, pod))
    assert sliced.slices == {}


async def test_a_pod_deleted_while_its_allocate_is_in_flight_leaves_nothing(
    node: Node, sliced: Sliced
) -> None:
    await served(node)
    pod = one("short", XPU)
    sliced.scenario.hang("prepared")
    admission = asyncio.create_task(node.kubelet.admit(pod))
    await node.until(lambda it: sliced.slices and it.allocations)
    deletion = asyncio.create_task(node.kubelet.delete(pod.uid))
    await asyncio.sleep(0)
    sliced.behave()

    await asyncio.gather(admission, deletion)

    view = await node.until(lambda it: it.allocations and not in_use(it))
    assert [it.state for it in view.allocations] == [AllocationState.RELEASED]
    assert sliced.slices == {}
    await node.admit("next", {XPU: 4})


async def test_foreign_slices_are_never_touched(node: Node, sliced: Sliced) -> None:
    sliced.plant("theirs", None)
    await served(node)
    await node.until(lambda it: it.foreign_slices == {("simulated", sliced.uuids[0]): 1})
    pod = await node.admit("one", {XPU: 1})
    await node.until(lambda it: confirmed(it, pod))
    await node.kubelet.delete(pod.uid)
    await node.until(lambda it: released(it, pod))
    sliced.plant("ours", "0123456789abcdef")

    await gone(node, sliced, "ours")

    assert sliced.slices == {"theirs": None}
    assert node.view.foreign_slices == {("simulated", sliced.uuids[0]): 1}
    sliced.lose()
    await node.until(lambda it: it.foreign_slices == {})


async def test_foreign_slices_are_never_touched_after_a_lost_checkpoint_either(
    node: Node, sliced: Sliced
) -> None:
    sliced.plant("theirs", None)
    await served(node)
    pod = await node.admit("kept", {XPU: 1})
    mark = await node.start_of(pod)
    await node.stop()
    (node.state / "checkpoint.json").unlink()
    sliced.plant("ours", "0123456789abcdef")

    await node.start()

    await gone(node, sliced, "ours")
    assert sliced.slices == {"theirs": None, f"{mark}/0": mark}
    await node.until(lambda it: confirmed(it, pod))
    await node.kubelet.delete(pod.uid)
    await gone(node, sliced, f"{mark}/0")
    assert sliced.slices == {"theirs": None}


async def test_slices_of_ours_that_nobody_owns_go_and_those_in_use_stay(node: Node, sliced: Sliced) -> None:
    await served(node)
    pod = await node.admit("kept", {XPU: 1})
    mark = await node.start_of(pod)

    sliced.plant("leaked", "0123456789abcdef")

    await node.until(lambda _: node.done("remove"))
    assert sliced.slices == {f"{mark}/0": mark}


async def test_an_agent_killed_before_its_answer_leaves_no_slice_and_no_id_taken(
    node: Node, sliced: Sliced, process: AgentProcess
) -> None:
    node.configure(whole(XPU))
    await process.start()
    await node.counts({XPU: (4, 4)})
    sliced.scenario.hang("prepared")
    admission = asyncio.create_task(node.kubelet.admit(one("cut-off", XPU)))
    await process.until(lambda it: sliced.slices and it["allocations"])

    await process.kill()

    assert not (await admission).admitted
    assert sliced.slices
    sliced.behave()
    await process.start()
    shown = await process.until(lambda it: it["allocations"] and not sliced.slices)
    shown = await process.until(lambda it: it["allocations"][0]["state"] == "released")
    assert [it["reason"] for it in shown["allocations"]] == ["never answered"]
    await node.counts({XPU: (4, 4)})
    await node.admit("next", {XPU: 4})


async def test_a_slice_lost_under_a_container_is_told_and_made_when_the_container_starts_anew(
    node: Node, sliced: Sliced
) -> None:
    await served(node)
    pod = await node.admit("running", {XPU: 1})
    mark = await node.start_of(pod)
    await node.until(lambda it: confirmed(it, pod))

    sliced.lose()

    view = await node.until(lambda it: in_use(it)[0].reason)
    assert (
        in_use(view)[0].reason
        == f"{mark}/0 is gone from the hardware; made again when the container starts again"
    )
    assert node.done("remark") == 1
    assert sliced.slices == {}  # nothing is changed under a container that runs
    assert await node.start_of(pod) == mark
    assert sliced.slices == {f"{mark}/0": mark}
    assert in_use(node.view)[0].reason == ""


@EVERY_RELEASE
async def test_what_a_reboot_took_is_made_again_before_each_container_starts(
    node: Node, sliced: Sliced
) -> None:
    await served(node)
    pods = [await node.admit(name, {XPU: 2}) for name in ("one", "two")]
    await node.until(lambda it: confirmed(it, *pods))
    before = sliced.slices
    await node.stop()
    await node.kubelet.kill()
    sliced.lose()
    node.reboot()

    await node.kubelet.start()
    await node.start()

    await node.counts({XPU: (4, 4)})
    view = await node.until(lambda it: all(one.reason for one in in_use(it)) and len(in_use(it)) == 2)
    assert all("made again before the container starts" in it.reason for it in in_use(view))
    for pod in pods:
        mark = await node.start_of(pod)
        assert mark in sliced.slices.values()
    assert sliced.slices == before
    assert [it.reason for it in in_use(node.view)] == ["", ""]


async def test_a_driver_that_is_away_when_a_pod_ends_is_asked_again(node: Node, sliced: Sliced) -> None:
    await served(node)
    pod = await node.admit("short", {XPU: 1})
    await node.until(lambda it: confirmed(it, pod))
    sliced.unload()
    await node.until(lambda it: state_of(it, sliced) == "unavailable")

    await node.kubelet.delete(pod.uid)

    await node.until(lambda _: node.done("release_failed") > 2)
    assert owned_by(node.view, pod) == in_use(node.view)
    sliced.load()
    await node.until(lambda it: released(it, pod))
    assert sliced.slices == {}


BROKEN: dict[str, tuple[Callable[[Sliced], None], str]] = {
    "hung": (lambda it: it.scenario.hang("prepare"), "prepare did not return within 2 s"),
    "crashed": (lambda it: it.scenario.change(crash=1, unavailable="driver-not-loaded: gone"), "simulated: "),
    "away": (lambda it: it.unload(), "the vendor is not open"),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_a_container_does_not_start_without_its_slice_and_starts_once_it_can_be_made(
    node: Node, sliced: Sliced, name: str
) -> None:
    if name == "hung":
        node.gives_up(prepare=2.0)
    await served(node)
    pod = await node.admit("waiting", {XPU: 1})
    mark = await node.start_of(pod)
    break_it, words = BROKEN[name]
    break_it(sliced)
    if name != "hung":
        await node.until(lambda it: state_of(it, sliced) != "open")
    sliced.lose()

    assert words in await node.not_started(pod)

    assert [it.id for it in in_use(node.view)] == [mark]
    sliced.behave()
    sliced.load()
    await node.until(lambda it: name == "away" or node.restarts)  # a loss is told after its refusal
    await node.until(lambda it: state_of(it, sliced) == "open")
    assert await node.start_of(pod) == mark
    assert sliced.slices == {f"{mark}/0": mark}


async def test_a_start_on_ids_that_nobody_holds_is_refused_by_name(node: Node, sliced: Sliced) -> None:
    await served(node)
    (socket,) = node.kubelet.plugin_dir.glob("xpu-*.sock")

    with pytest.raises(KubeletRefused, match=f"no allocation on this node has {node.cards.uuids[2]}"):
        await call(socket, PRE_START, delimited(1, node.cards.uuids[2].encode()), timeout=PATIENCE)

    assert sliced.slices == {}


async def test_a_device_that_the_kubelet_gives_out_twice_is_refused(node: Node, sliced: Sliced) -> None:
    """It lets go of the IDs of an Allocate under way if a pod ends and PodResources is listed just then."""
    await served(node)
    first = await node.admit("first", {XPU: 1})
    await node.until(lambda it: confirmed(it, first))
    second = one("second", XPU)
    sliced.scenario.hang("prepared")
    admission = asyncio.create_task(node.kubelet.admit(second))
    await node.until(lambda it: len(sliced.slices) == 2)
    await node.kubelet.finish(first.uid)
    await PodResources(node.kubelet.pod_resources_socket).in_use()
    sliced.behave()
    assert (await admission).admitted
    await node.until(lambda it: confirmed(it, second))

    verdict = await node.refused("third", {XPU: 4})

    assert "is held by default/second, as the kubelet's PodResources shows" in verdict.message
    await node.admit("fourth", {XPU: 3})
