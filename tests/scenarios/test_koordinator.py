"""The scheduler's choice is honoured: Koordinator's pods end on the cards that it wrote on them."""

from __future__ import annotations

import json
from collections.abc import Mapping

import anyio
import pytest
import recorded

from agent.core.koordinator.allocated import ALLOCATED, BOUND
from agent.testing.node import Container, Pod

from .conftest import ANY_KUBELET, EVERY_VENDOR, ONLY_NVIDIA
from .node import Node, in_use, one, shared, whole

GPU, TOKEN = "nvidia.com/gpu", "example.com/token"
CORE, RATIO, SHARED = (f"koordinator.sh/{it}" for it in ("gpu-core", "gpu-memory-ratio", "gpu.shared"))
HALF = {CORE: 50, RATIO: 50, SHARED: 1}


def written(node: Node, *cards: int, bound: int = 0, percent: int = 100) -> dict[str, str]:
    """What the scheduler writes for these cards."""
    resources = {CORE: str(percent), RATIO: str(percent)}
    gpu = [{"minor": it, "id": node.cards.uuids[it], "resources": resources} for it in cards]
    return {ALLOCATED: json.dumps({"gpu": gpu}), BOUND: str(1795210468 * 10**9 + bound)}


def uuids(node: Node, *cards: int) -> set[str]:
    return {node.cards.uuids[it] for it in cards}


def limits_of(case: recorded.Case) -> tuple[Container, ...]:
    return tuple(Container(dict(its), name) for name, its in case.limits.items())


@pytest.mark.parametrize("count", [8])
@ONLY_NVIDIA
async def test_the_recorded_pods_of_koordinator_end_on_the_cards_that_it_wrote(node: Node) -> None:
    await node.start(whole(GPU, placement="auto"))
    await node.counts({GPU: (8, 8)})
    asking: dict[str, Mapping[str, set[str]]] = {}
    for case in recorded.cases("nv1"):
        pod = Pod(case.name, limits_of(case))
        if not case.scheduled:
            continue
        node.shows(pod, **case.annotations)
        await node.admit_pod(pod)
        if any(GPU in its for its in case.limits.values()):
            asking[case.name] = {name: await node.cards_of(pod, name) for name in case.limits}

    assert asking == {
        "n-whole1": {"a": uuids(node, 0)},
        "n-whole2": {"a": uuids(node, 2, 3)},
        "n-two-ctrs": {"a": uuids(node, 6), "b": uuids(node, 7)},
    }


@EVERY_VENDOR
async def test_pods_that_come_in_another_order_than_they_were_bound_keep_whole_cards_apart(
    node: Node,
) -> None:
    await node.start(whole(GPU, placement="auto"))
    await node.counts({GPU: (4, 4)})
    first, second = one("first", GPU), one("second", GPU)
    node.shows(second, **written(node, 1, bound=2))
    node.shows(first, **written(node, 3, bound=1))

    await node.admit_pod(second)
    await node.admit_pod(first)

    assert await node.cards_of(first) | await node.cards_of(second) == uuids(node, 1, 3)


@ANY_KUBELET
async def test_a_pod_without_a_promise_is_kept_from_cards_that_are_promised(node: Node) -> None:
    await node.start(whole(GPU, placement="auto"))
    await node.counts({GPU: (4, 4)})
    pair, plain = one("pair", GPU, 2), one("plain", GPU)
    node.shows(pair, **written(node, 0, 1))
    node.shows(plain)

    await node.admit_pod(plain)
    await node.admit_pod(pair)

    assert await node.cards_of(pair) == uuids(node, 0, 1)
    assert (await node.cards_of(plain)).isdisjoint(uuids(node, 0, 1))


@ANY_KUBELET
async def test_a_whole_card_that_another_one_has_is_not_replaced_unsaid(node: Node) -> None:
    await node.start(whole(GPU, placement="auto"))
    await node.counts({GPU: (4, 4)})
    stranger = await node.admit("stranger", {GPU: 1})
    (taken,) = (node.cards.uuids.index(it) for it in await node.cards_of(stranger))
    late = one("late", GPU)
    node.shows(late, **written(node, taken))

    verdict = await node.kubelet.admit(late)

    assert not verdict.admitted
    assert "claims are on other cards: default/late on" in verdict.message


@ANY_KUBELET
async def test_shares_are_on_the_card_that_the_scheduler_chose(node: Node) -> None:
    await node.start(shared(TOKEN, 4, placement="claim", policy="distributed"))
    await node.counts({TOKEN: (16, 16)})
    pods = [Pod(f"share-{n}", (Container({TOKEN: 1, **HALF}),)) for n in range(3)]
    for n, pod in enumerate(pods):
        node.shows(pod, **written(node, 2, bound=n, percent=50))

    for pod in pods:
        await node.admit_pod(pod)

    assert [await node.cards_of(pod) for pod in pods] == [uuids(node, 2)] * 3
    view = await node.until(lambda it: len(in_use(it)) == 3 and all(one.claim for one in in_use(it)))
    assert {one.claim.parameters["core"] for one in in_use(view) if one.claim} == {"50"}


@ANY_KUBELET
async def test_the_containers_of_a_pod_have_each_the_share_that_was_chosen_for_it(node: Node) -> None:
    await node.start(shared(TOKEN, 4, placement="auto"))
    await node.counts({TOKEN: (16, 16)})
    pod = Pod("both", (Container({TOKEN: 4, **HALF}, "a"), Container({TOKEN: 1, **HALF}, "b")))
    node.shows(pod, **written(node, 2, 3, percent=50))

    await node.admit_pod(pod)

    assert await node.cards_of(pod, "a") == uuids(node, 2)
    assert await node.cards_of(pod, "b") == uuids(node, 3)


@ANY_KUBELET
async def test_where_a_scheduler_must_choose_a_pod_without_a_choice_is_refused_with_the_reason(
    node: Node,
) -> None:
    await node.start(whole(GPU, placement="claim"))
    await node.counts({GPU: (4, 4)})

    verdict = await node.refused("nobodys", {GPU: 1})

    assert "no scheduler has chosen a card for it" in verdict.message


@ANY_KUBELET
async def test_where_a_scheduler_must_choose_its_word_is_waited_for(node: Node) -> None:
    await node.start(whole(GPU, placement="claim"))
    await node.counts({GPU: (4, 4)})
    pod = one("heard-of-late", GPU)

    async with anyio.create_task_group() as group:
        group.start_soon(node.admit_pod, pod)
        await node.until(lambda it: it.counters.get(("plugin_preferred", (("resource", GPU),)), 0))
        node.shows(pod, **written(node, 3))

    assert await node.cards_of(pod) == uuids(node, 3)
