"""Who holds what: confirmed from the kubelet's own files, and given back when the pod is gone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace
from peers.faults import FaultyPodResources
from structlog.testing import capture_logs

from agent.core.model import Owner
from agent.testing.node_kubelet import Container, Pod

from .conftest import EVERY_RELEASE, NVIDIA_OR_SIMULATED
from .node import Node, confirmed, in_use, one, owned_by, released, shared, whole

XPU = "example.com/xpu"


async def limited(lister: FaultyPodResources) -> None:
    lister.limit()


async def stalled(lister: FaultyPodResources) -> None:
    lister.stall()


@EVERY_RELEASE
@NVIDIA_OR_SIMULATED
async def test_the_owner_is_known_by_uid_namespace_pod_and_container(node: Node) -> None:
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})

    pod = await node.admit("trainer", {XPU: 2}, namespace="research")

    view = await node.until(lambda it: confirmed(it, pod))
    (allocation,) = in_use(view)
    assert allocation.owner == Owner(pod.uid, "main", "research", "trainer")
    assert frozenset(allocation.ids) == (await node.kubelet.devices(pod.uid))["main"][XPU]


async def test_equal_pods_admitted_at_the_same_time_are_told_apart(node: Node) -> None:
    await node.start(shared(XPU, 4))
    await node.counts({XPU: (16, 16)})
    pods = [one(f"pod-{n}", XPU, 2) for n in range(8)]

    await node.admit_at_once(*pods)

    view = await node.until(lambda it: confirmed(it, *pods))
    for pod in pods:
        (allocation,) = owned_by(view, pod)
        assert allocation.id == await node.start_of(pod)
        assert frozenset(allocation.ids) == (await node.kubelet.devices(pod.uid))["main"][XPU]


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
    view = await node.until(lambda it: confirmed(it, pod) and in_use(it)[0].life)
    before = in_use(view)

    starts = [await node.kubelet.run_options(pod.uid, "main") for _ in range(3)]

    assert starts == [starts[0]] * 3
    assert in_use(node.view) == before
    assert node.count("plugin_allocations", resource=XPU) == 1


# Ends


async def test_a_pod_that_ends_while_the_kubelet_writes_nothing_is_released_after_one_question(
    node: Node,
) -> None:
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})
    pod = await node.admit("short", {XPU: 1})
    await node.until(lambda it: confirmed(it, pod))
    lists = node.count("plugin_lists", resource=XPU)

    await node.kubelet.delete(pod.uid)

    view = await node.until(lambda it: released(it, pod))
    assert [it.reason for it in owned_by(view, pod)] == ["pod gone"]
    assert node.count("plugin_lists", resource=XPU) == lists + 1
    assert node.done("doubt") == 1


@EVERY_RELEASE
async def test_a_kubelet_that_restarts_while_the_api_server_is_away_releases_nothing(node: Node) -> None:
    node.pace = replace(node.pace, request_again_after=0.1)
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})
    lasting, short = await node.admit("lasting", {XPU: 1}), await node.admit("short", {XPU: 1})
    static = await node.admit_pod(one("static", XPU, static=True))
    view = await node.until(lambda it: confirmed(it, lasting, short, static))
    before = [it.id for it in in_use(view)]

    await node.kubelet.restart(api_away=True)
    await node.kubelet.delete(short.uid)
    await node.counts({XPU: (4, 4)})
    asked = node.done("doubt")
    view = await node.until(lambda _: node.done("doubt") > asked + 6)

    assert [it.id for it in in_use(view)] == before
    await node.kubelet.api_back()
    view = await node.until(lambda it: released(it, short))
    assert [it.owner.pod for it in in_use(view) if it.owner] == ["lasting", "static"]


@EVERY_RELEASE
async def test_a_static_pod_is_known_and_released_like_any_other(node: Node) -> None:
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})
    pod = await node.admit_pod(one("static", XPU, static=True))
    view = await node.until(lambda it: confirmed(it, pod))
    assert in_use(view)[0].owner == Owner(pod.uid, "main", "default", "static")

    await node.kubelet.delete(pod.uid)

    await node.until(lambda it: released(it, pod))


AWAY: dict[str, Callable[[FaultyPodResources], Awaitable[None]]] = {
    "gone": FaultyPodResources.go_away,
    "rate-limited": limited,
    "stalled": stalled,
}


@pytest.mark.parametrize("name", AWAY)
async def test_while_pod_resources_can_not_be_asked_nothing_is_released(
    node: Node, lister: FaultyPodResources, name: str
) -> None:
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})
    pod = await node.admit("short", {XPU: 1})
    await node.until(lambda it: confirmed(it, pod))
    calls = lister.calls
    with capture_logs() as logs:
        await AWAY[name](lister)
        await node.kubelet.delete(pod.uid)
        other = await node.admit("other", {XPU: 1})
        if name == "stalled":
            await node.until(lambda _: lister.calls > calls)
        else:
            await node.until(lambda _: node.count("evidence_unreadable", source="PodResources") > 3)
            assert "PodResources" in node.view.evidence_errors
    told = [it for it in logs if it["event"] == "evidence not read, nothing is released on it"]

    assert not released(node.view, pod)
    assert bool(told) is (name != "stalled")
    assert len(told) == len(
        {it["error"] for it in told}
    )  # one that goes is cut off first, and not there then
    await lister.heal()
    await node.until(lambda it: released(it, pod) and confirmed(it, other))
    assert node.view.evidence_errors == {}


# Checkpoints


@pytest.mark.parametrize("count", [1])
async def test_no_device_goes_to_a_second_pod_because_the_kubelet_lost_its_checkpoint(node: Node) -> None:
    node.pace = replace(node.pace, grace=600.0)  # so that no look has found it out by then
    await node.start(whole(XPU))
    await node.counts({XPU: (1, 1)})
    first = await node.admit("first", {XPU: 1})
    await node.until(lambda it: confirmed(it, first) and in_use(it)[0].life)

    await lose_checkpoint_of_the_kubelet(node)

    await node.counts({XPU: (1, 1)})
    refusal = await node.refused("second", {XPU: 1})
    assert (
        f"device {node.cards.uuids[0]} is held by default/first, and the kubelet has lost its record of "
        "that; delete that pod to free it"
    ) in refusal.message
    await node.kubelet.delete(first.uid)
    await node.admit("third", {XPU: 1})


@EVERY_RELEASE
async def test_devices_that_the_kubelet_has_forgotten_are_not_offered_until_their_pod_is_gone(
    node: Node,
) -> None:
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})
    pod = await node.admit("forgotten", {XPU: 1})
    await node.until(lambda it: confirmed(it, pod) and in_use(it)[0].life)

    await lose_checkpoint_of_the_kubelet(node)

    await node.counts({XPU: (4, 3)})
    assert "the kubelet has lost its record of it" in in_use(node.view)[0].reason
    others = await node.admit("others", {XPU: 3})
    await node.kubelet.delete(pod.uid)
    await node.until(lambda it: released(it, pod) and confirmed(it, others))
    await node.counts({XPU: (4, 4)})


async def test_a_checkpoint_replaced_by_an_older_one_is_made_whole_from_the_kubelet(node: Node) -> None:
    checkpoint = node.state / "checkpoint.json"
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})
    before, over = await node.admit("before", {XPU: 1}), await node.admit("over", {XPU: 1})
    await node.until(lambda it: confirmed(it, before, over))
    await node.stop()
    older = checkpoint.read_bytes()
    await node.start()
    await node.counts({XPU: (4, 4)})
    await node.kubelet.delete(over.uid)
    await node.until(lambda it: released(it, over))
    since = await node.admit("since", {XPU: 2})
    view = await node.until(lambda it: confirmed(it, since))
    ids = {it.id for it in in_use(view)}
    await node.stop()
    checkpoint.write_bytes(older)

    await node.start()

    await node.counts({XPU: (4, 4)})
    view = await node.until(lambda it: confirmed(it, before, since) and released(it, over))
    assert {it.id for it in in_use(view)} == ids
    sources = {it.owner.pod: it.source for it in in_use(view) if it.owner}
    assert sources == {"before": "checkpoint", "since": "kubelet"}


@EVERY_RELEASE
async def test_where_both_checkpoints_are_gone_nothing_is_invented(
    node: Node, lister: FaultyPodResources
) -> None:
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})
    pod = await node.admit("running", {XPU: 1})
    await node.until(lambda it: confirmed(it, pod))
    await node.stop()
    (node.state / "checkpoint.json").unlink()
    await lose_checkpoint_of_the_kubelet(node)
    calls = lister.calls

    await node.start()

    await node.counts({XPU: (4, 4)})
    await node.until(lambda _: lister.calls > calls)
    other = await node.admit("other", {XPU: 4})
    view = await node.until(lambda it: confirmed(it, other))
    assert view.allocations == tuple(owned_by(view, other))


async def lose_checkpoint_of_the_kubelet(node: Node) -> None:
    """Restart the kubelet without it, as on a disk that was full."""
    await node.kubelet.kill()
    node.kubelet.checkpoint.unlink()
    await node.kubelet.start()
