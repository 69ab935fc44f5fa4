"""What is kept on disk is spoilt, or can not be written: the agent keeps serving and says what is wrong."""

from __future__ import annotations

import pytest

from agent.core.model import Owner
from agent.testing.kubelet import SimKubelet

from .conftest import ANY_KUBELET
from .node import Node, confirmed, in_use, owned_by, released, shared, whole

pytestmark = ANY_KUBELET

XPU = "example.com/xpu"

SPOILT = {
    "empty": b"",
    "cut short": None,
    "not JSON": b"\x00\xff garbage",
    "of a release to come": b'{"version": 99, "checksum": "", "data": {}}',
    "edited": b'{"version": 1, "checksum": "sha256:0", "data": {}}',
}


@pytest.mark.parametrize("name", SPOILT)
async def test_a_checkpoint_that_is_spoilt_is_set_aside_and_read_back_from_the_kubelet(
    node: Node, name: str
) -> None:
    await node.start(shared(XPU, 2))
    await node.counts({XPU: (8, 8)})
    pod = await node.admit("running", {XPU: 2})
    await node.until(lambda it: confirmed(it, pod))
    (before,) = in_use(node.view)
    await node.stop()
    checkpoint = node.state / "checkpoint.json"
    content = SPOILT[name]
    checkpoint.write_bytes(checkpoint.read_bytes()[:-20] if content is None else content)

    await node.start()

    await node.counts({XPU: (8, 8)})
    assert len(list(node.state.glob("checkpoint.json.corrupt-*"))) == 1
    view = await node.until(lambda it: confirmed(it, pod))
    (after,) = in_use(view)
    assert (after.id, after.resource, after.vendor) == (before.id, before.resource, before.vendor)
    assert dict(zip(after.ids, after.devices, strict=True)) == dict(
        zip(before.ids, before.devices, strict=True)
    )
    assert after.owner == Owner(pod.uid, "main", "default", "running")
    assert after.source == "kubelet"


async def test_what_was_read_back_is_released_with_its_pod(node: Node) -> None:
    await node.start(shared(XPU, 2))
    await node.counts({XPU: (8, 8)})
    pod = await node.admit("running", {XPU: 2})
    await node.until(lambda it: confirmed(it, pod))
    await node.stop()
    (node.state / "checkpoint.json").unlink()
    await node.start()
    await node.until(lambda it: confirmed(it, pod))

    await node.kubelet.delete(pod.uid)

    await node.until(lambda it: released(it, pod))
    assert len(owned_by(node.view, pod)) == 1


@pytest.mark.parametrize("count", [1])
async def test_what_was_read_back_is_not_offered_in_another_way(node: Node) -> None:
    await node.start(whole(XPU))
    await node.counts({XPU: (1, 1)})
    pod = await node.admit("running", {XPU: 1})
    await node.until(lambda it: confirmed(it, pod))
    await node.stop()
    (node.state / "checkpoint.json").write_text("{")
    await node.start()
    await node.until(lambda it: confirmed(it, pod))

    node.configure(shared(XPU, 10))
    await node.until(lambda it: it.resources[XPU].rule.sharing.replicas == 10)

    await node.counts({XPU: (1, 1)})
    await node.kubelet.delete(pod.uid)
    await node.counts({XPU: (10, 10)})


async def test_a_state_directory_that_can_not_be_written_costs_no_pod_and_is_said(node: Node) -> None:
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})
    away = node.state.with_name("away")
    node.state.rename(away)
    node.state.write_text("a file is in the way")

    first = await node.admit("first", {XPU: 1})

    view = await node.until(lambda it: it.checkpoint_error)
    assert str(node.state) in view.checkpoint_error
    await node.until(lambda it: confirmed(it, first))
    await node.fail(0)
    await node.counts({XPU: (4, 3)})
    node.state.unlink()
    away.rename(node.state)
    second = await node.admit("second", {XPU: 1})
    await node.until(lambda it: not it.checkpoint_error)
    await node.saved(first.uid, '"xid-79"')
    await node.until(lambda it: confirmed(it, second))


async def test_a_kubelet_checkpoint_that_is_spoilt_releases_nothing(node: Node, sim: SimKubelet) -> None:
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})
    pod = await node.admit("running", {XPU: 1})
    await node.until(lambda it: confirmed(it, pod))
    good = sim.checkpoint.read_bytes()

    sim.checkpoint.write_bytes(b"spoilt")
    await node.until(lambda it: node.count("reconcile_actions", action="unreadable") > 2)

    assert len(in_use(node.view)) == 1
    sim.checkpoint.write_bytes(good)
    await sim.delete(pod.uid)
    await node.until(lambda it: released(it, pod))
