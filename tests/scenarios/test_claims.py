"""Whose request it is: what schedulers promised follows what the kubelet did, before a container starts."""

from __future__ import annotations

import json

import pytest

from agent.core.model import Allocation
from agent.vendors.simulated.agent.claims import ANNOTATION

from .cards import Sliced
from .conftest import ONLY_SLICED
from .node import Node, confirmed, in_use, one, owned_by, shared, whole
from .test_shares import astray

XPU = "example.com/xpu"

MALFORMED = {
    "no JSON": "{",
    "no object": "[1, 2]",
    "no object for the container": '{"main": 7}',
    "a card that is not here": '{"main": {"devices": ["SIM-of-another-node"]}}',
    "parameters that are a list": '{"main": {"parameters": [1]}}',
    "devices that are a number": '{"main": {"devices": 5}}',
    "no end of brackets": "[" * 100_000,
}


@pytest.fixture
def count() -> int:
    """One card, so that all pods are on the same."""
    return 1


async def served(node: Node) -> None:
    await node.start(shared(XPU, 4))
    await node.counts({XPU: (4, 4)})


def bears_its_own(it: Allocation) -> bool:
    """Whether the allocation's claim is that of its owner."""
    return it.claim is not None and it.owner is not None and it.claim.uid == it.owner.uid


@ONLY_SLICED
async def test_of_two_equal_pods_that_come_in_another_order_each_starts_with_its_own_parameters(
    node: Node, sliced: Sliced
) -> None:
    await served(node)
    first, second = one("first", XPU), one("second", XPU)
    node.promises(first, memory="8")
    node.promises(second, memory="16")

    await node.admit_pod(second)
    await node.until(lambda it: confirmed(it, second))
    await node.admit_pod(first)

    made = {pod.name: sliced.made_with(await node.start_of(pod)) for pod in (second, first)}
    assert made == {"first": {"memory": "8"}, "second": {"memory": "16"}}
    view = await node.until(lambda it: confirmed(it, first, second))
    assert all(map(bears_its_own, in_use(view)))


@ONLY_SLICED
async def test_equal_pods_that_come_at_once_start_each_with_its_own_parameters(
    node: Node, sliced: Sliced
) -> None:
    await served(node)
    pods = [one(f"pod-{n}", XPU) for n in range(4)]
    for pod in pods:
        node.promises(pod, memory=pod.name)

    await node.admit_at_once(*reversed(pods))

    for pod in pods:
        assert sliced.made_with(await node.start_of(pod)) == {"memory": pod.name}


@ONLY_SLICED
async def test_a_pod_without_a_claim_takes_no_other_pods_promise_along(node: Node, sliced: Sliced) -> None:
    await served(node)
    stranger, promised = one("stranger", XPU), one("promised", XPU)
    node.shows(stranger)
    node.promises(promised, memory="8")

    await node.admit_at_once(stranger, promised)

    assert sliced.made_with(await node.start_of(promised)) == {"memory": "8"}
    assert sliced.made_with(await node.start_of(stranger)) == {}


@ONLY_SLICED
async def test_a_pod_that_is_heard_of_after_its_allocate_starts_with_its_own_parameters(
    node: Node, sliced: Sliced
) -> None:
    await served(node)
    pod = await node.admit("early", {XPU: 1})

    node.promises(pod, memory="8")

    assert sliced.made_with(await node.start_of(pod)) == {"memory": "8"}


@pytest.mark.parametrize("count", [2])
@ONLY_SLICED
async def test_what_is_promised_of_another_card_is_not_made_of_this_one(node: Node, sliced: Sliced) -> None:
    await node.start(whole(XPU))
    await node.counts({XPU: (2, 2)})
    first = await node.admit("first", {XPU: 1})
    (taken,) = await node.cards_of(first)
    pod = one("late", XPU)
    said = {"main": {"devices": [taken], "parameters": {"memory": "8"}}}
    node.shows(pod, **{ANNOTATION: json.dumps(said)})

    await node.admit_pod(pod)

    assert sliced.made_with(await node.start_of(pod)) == {}
    view = await node.until(lambda it: confirmed(it, pod))
    assert [it.claim for it in in_use(view)] == [None, None]


@pytest.mark.parametrize("count", [4])
@ONLY_SLICED
async def test_slices_of_shares_are_made_on_the_card_that_was_chosen_whatever_the_ids_say(
    node: Node, sliced: Sliced, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.start(shared(XPU, 4, placement="auto"))
    await node.counts({XPU: (16, 16)})
    astray(monkeypatch, node, 0)
    pods = {memory: one(f"of-{memory}", XPU) for memory in ("8", "16")}
    for memory, pod in pods.items():
        said = {"main": {"devices": [node.cards.uuids[2]], "parameters": {"memory": memory}}}
        node.shows(pod, **{ANNOTATION: json.dumps(said)})

    for pod in (pods["16"], pods["8"]):  # in another order than they were shown
        await node.admit_pod(pod)

    for memory, pod in pods.items():
        assert sliced.made_with(await node.start_of(pod)) == {"memory": memory}
    held = in_use(node.view)
    assert [(it.devices, it.diverged) for it in held] == [
        ((node.cards.uuids[0],), (node.cards.uuids[2],))
    ] * 2
    assert sliced.cards == {node.cards.uuids[2]}


@ONLY_SLICED
async def test_a_claim_outlasts_the_agent(node: Node, sliced: Sliced) -> None:
    await served(node)
    first, second = one("first", XPU), one("second", XPU)
    node.promises(first, memory="8")
    node.promises(second, memory="16")
    await node.admit_pod(second)
    await node.stop()
    await node.start()
    await node.counts({XPU: (4, 4)})

    await node.admit_pod(first)

    assert sliced.made_with(await node.start_of(second)) == {"memory": "16"}
    assert sliced.made_with(await node.start_of(first)) == {"memory": "8"}


async def test_where_nothing_is_made_the_ledgers_claims_follow_the_kubelet(node: Node) -> None:
    await served(node)
    first, second = one("first", XPU), one("second", XPU)
    node.promises(first, priority="low")
    node.promises(second, priority="high")

    await node.admit_pod(second)
    await node.admit_pod(first)

    view = await node.until(lambda it: confirmed(it, first, second) and all(map(bears_its_own, in_use(it))))
    claims = {pod.name: owned_by(view, pod)[0].claim for pod in (first, second)}
    assert {name: it and it.parameters for name, it in claims.items()} == {
        "first": {"priority": "low"},
        "second": {"priority": "high"},
    }


@pytest.mark.parametrize("name", MALFORMED)
async def test_a_malformed_annotation_harms_nobody(node: Node, name: str) -> None:
    await served(node)
    pods = [one("odd", XPU), one("good", XPU)]
    node.shows(pods[0], **{ANNOTATION: MALFORMED[name]})
    node.promises(pods[1], memory="8")

    await node.admit_at_once(*pods)

    view = await node.until(lambda it: confirmed(it, *pods))
    assert [it.claim for it in owned_by(view, pods[0])] == [None]
    await node.until(lambda it: owned_by(it, pods[1])[0].claim)
    for pod in pods:
        assert await node.cards_of(pod) == {*node.cards.uuids}
