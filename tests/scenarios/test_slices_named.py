"""Slices that containers find by CDI names: the spec is on disk before anybody starts by it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from anyio.to_thread import run_sync as to_thread

from agent.vendors.simulated.shared.cdi_spec import SPEC, device

from .cards import Sliced
from .conftest import ONLY_SLICED
from .node import Node, confirmed, in_use, whole

pytestmark = ONLY_SLICED

XPU = "example.com/xpu"
TOO_SMALL = "a slice of 64 MiB was asked for; 128 MiB is the least"


async def served(node: Node) -> None:
    node.configure(whole(XPU))
    document = json.loads(node.config.read_text())
    document["vendors"]["simulated"]["settings"]["cdi"] = True
    node.write(json.dumps(document, default=list))
    await node.start()
    await node.counts({XPU: (4, 4)})


def named(directory: Path) -> list[str]:
    """The allocations whose slices the spec on disk names."""
    try:
        return [it["name"] for it in json.loads((directory / SPEC).read_text())["devices"]]
    except FileNotFoundError:
        return []


def left_nothing(node: Node, sliced: Sliced) -> bool:
    return not (sliced.slices or in_use(node.view) or named(node.cdi))


async def test_a_container_starts_by_a_name_that_is_on_disk_and_goes_with_its_pod(
    node: Node, sliced: Sliced
) -> None:
    await served(node)

    pod = await node.admit("short", {XPU: 2})

    (it,) = in_use(node.view)
    assert named(node.cdi) == [it.id]
    options = await node.kubelet.run_options(pod.uid, "main")
    assert options.cdi_devices == (device(it.id),)
    await node.until(lambda view: confirmed(view, pod))
    await node.kubelet.delete(pod.uid)
    await node.until(lambda _: left_nothing(node, sliced))


async def test_slices_of_a_last_agent_are_named_before_the_cards_are_listed(
    node: Node, sliced: Sliced
) -> None:
    await served(node)
    mark = await node.start_of(await node.admit("running", {XPU: 1}))
    await node.stop()
    await to_thread(shutil.rmtree, node.cdi)

    await node.start()
    await node.counts({XPU: (4, 4)})

    await node.until(lambda _: named(node.cdi) == [mark])


async def test_what_a_reboot_took_is_made_and_named_before_its_container_starts(
    node: Node, sliced: Sliced
) -> None:
    await served(node)
    pod = await node.admit("running", {XPU: 1})
    mark = await node.start_of(pod)
    await node.until(lambda it: confirmed(it, pod))
    await node.stop()
    await node.kubelet.kill()
    sliced.lose()
    await to_thread(shutil.rmtree, node.cdi)
    node.reboot()
    await node.kubelet.start()
    await node.start()
    await node.counts({XPU: (4, 4)})
    assert named(node.cdi) == []

    assert await node.start_of(pod) == mark

    assert sliced.slices == {f"{mark}/0": mark}
    assert named(node.cdi) == [mark]


async def test_a_spec_that_can_not_be_written_refuses_the_pod_and_leaves_nothing(
    node: Node, sliced: Sliced
) -> None:
    await to_thread(node.cdi.write_text, "in the way")
    await served(node)

    verdict = await node.refused("unnamed", {XPU: 1})

    assert f"simulated: its CDI specs cannot be written: {node.cdi}" in verdict.message
    await node.until(lambda _: not (sliced.slices or in_use(node.view)))
    await to_thread(node.cdi.unlink)
    await node.admit("named", {XPU: 1})
    assert len(named(node.cdi)) == 1


async def test_a_request_that_the_vendor_refuses_is_so_in_its_words_and_leaves_nothing(
    node: Node, sliced: Sliced
) -> None:
    await served(node)
    sliced.scenario.refuse(TOO_SMALL)

    verdict = await node.refused("small", {XPU: 1})

    assert (
        f'invalid allocation request for "{XPU}": the vendor refuses the request: {TOO_SMALL}'
        in verdict.message
    )
    assert left_nothing(node, sliced)
    assert node.restarts == 0
    sliced.scenario.refuse("")
    await node.admit("next", {XPU: 4})


async def test_a_container_whose_slice_is_refused_when_it_starts_anew_says_so_and_keeps_its_devices(
    node: Node, sliced: Sliced
) -> None:
    await served(node)
    pod = await node.admit("running", {XPU: 1})
    mark = await node.start_of(pod)
    sliced.scenario.refuse(TOO_SMALL)

    assert TOO_SMALL in await node.not_started(pod)

    assert [it.id for it in in_use(node.view)] == [mark]
    assert node.restarts == 0
    sliced.scenario.refuse("")
    assert await node.start_of(pod) == mark
