"""Who holds what: confirmed from the kubelet's own files, and given back when the pod is gone."""

from __future__ import annotations

import pytest

from agent.core.model import AllocationState, Owner
from agent.testing.node import Container, Pod

from .conftest import EVERY_VENDOR
from .node import Node, confirmed, in_use, owned_by, released, whole

XPU = "example.com/xpu"


@EVERY_VENDOR
async def test_the_owner_is_known_by_uid_namespace_pod_and_container(node: Node) -> None:
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})

    pod = await node.admit("trainer", {XPU: 2}, namespace="research")

    view = await node.until(lambda it: confirmed(it, pod))
    (allocation,) = in_use(view)
    assert allocation.owner == Owner(pod.uid, "main", "research", "trainer")
    assert frozenset(allocation.ids) == (await node.kubelet.devices(pod.uid))["main"][XPU]


async def test_many_pods_admitted_at_once_are_told_apart(node: Node) -> None:
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})

    pods = [await node.admit(f"pod-{n}", {XPU: 1}) for n in range(4)]

    view = await node.until(lambda it: confirmed(it, *pods))
    for pod in pods:
        (allocation,) = owned_by(view, pod)
        assert set(allocation.devices) == await node.cards_of(pod)


@pytest.mark.parametrize("count", [1])
async def test_a_pod_that_is_gone_is_released_and_its_ids_go_out_again(node: Node) -> None:
    await node.start(whole(XPU))
    await node.counts({XPU: (1, 1)})
    first = await node.admit("first", {XPU: 1})
    await node.until(lambda it: confirmed(it, first))

    await node.kubelet.delete(first.uid)
    await node.until(lambda it: released(it, first))
    second = await node.admit("second", {XPU: 1})

    view = await node.until(lambda it: confirmed(it, second))
    assert [it.ids for it in owned_by(view, first)] == [it.ids for it in owned_by(view, second)]


@pytest.mark.parametrize("count", [1])
async def test_ids_that_go_to_the_next_pod_at_once_release_the_former_one(node: Node) -> None:
    await node.start(whole(XPU))
    await node.counts({XPU: (1, 1)})
    first = await node.admit("first", {XPU: 1})

    await node.kubelet.delete(first.uid)
    second = await node.admit("second", {XPU: 1})

    view = await node.until(lambda it: confirmed(it, second) and len(in_use(it)) == 1)
    assert in_use(view) == owned_by(view, second)


@pytest.mark.parametrize("count", [1])
async def test_init_and_app_container_share_a_card_in_two_allocations_released_together(node: Node) -> None:
    await node.start(whole(XPU))
    await node.counts({XPU: (1, 1)})
    pod = await node.admit_pod(
        Pod("prepared", (Container({XPU: 1}, "prepare", init=True), Container({XPU: 1})))
    )

    view = await node.until(lambda it: len(owned_by(it, pod)) == 2 and confirmed(it, pod))
    view = await node.until(lambda it: all(one.owner and one.owner.pod for one in owned_by(it, pod)))
    init, app = owned_by(view, pod)
    assert (init.owner, app.owner) == (
        Owner(pod.uid, "prepare", "default", "prepared"),
        Owner(pod.uid, "main", "default", "prepared"),
    )
    assert init.id != app.id
    assert init.ids == app.ids

    await node.kubelet.delete(pod.uid)
    await node.until(lambda it: released(it, pod))


async def test_a_sidecar_keeps_cards_of_its_own(node: Node) -> None:
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})
    sidecar = Container({XPU: 1}, "sidecar", init=True, restartable=True)

    pod = await node.admit_pod(Pod("watched", (sidecar, Container({XPU: 1}))))

    view = await node.until(lambda it: len(owned_by(it, pod)) == 2 and confirmed(it, pod))
    assert {it.owner.container for it in owned_by(view, pod) if it.owner} == {"sidecar", "main"}
    assert not await node.cards_of(pod, "sidecar") & await node.cards_of(pod)


async def test_a_container_that_starts_again_keeps_what_it_has(node: Node) -> None:
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})
    pod = await node.admit("crashing", {XPU: 1})

    starts = [await node.kubelet.run_options(pod.uid, "main") for _ in range(3)]

    assert starts == [starts[0]] * 3
    assert [it.state for it in node.view.allocations] == [AllocationState.DONE]
