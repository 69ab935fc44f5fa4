"""Resources that name the same cards: each is the first's of which a pod takes, until it is free."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from agent.core.publishing.agent_status import AgentStatus

from .conftest import EVERY_RELEASE, NVIDIA_OR_SIMULATED
from .node import Node, by_memory, confirmed, in_use, one, shared, whole

WHOLE, SHARED = "example.com/xpu", "example.com/xpu.shared"
FREE: Mapping[str, tuple[int, int]] = {WHOLE: (2, 2), SHARED: (6, 6)}


@pytest.fixture
def count() -> int:
    return 2


async def served(node: Node) -> None:
    configure(node)
    await node.start()
    await node.counts(FREE)


def configure(node: Node) -> None:
    vendor = {"enabled": True, **node.cards.settings, "modes": "dynamic"}
    rules = [whole(WHOLE), shared(SHARED, 3, policy="packed")]
    node.configure(**{node.cards.vendor: {**vendor, "resources": rules}})


def modes(view: AgentStatus) -> dict[str, str]:
    """Card to the resource that has it, as the plan says."""
    return {card.uuid: card.mode for it in view.resources.values() for card in it.cards if card.mode}


@NVIDIA_OR_SIMULATED
async def test_a_card_that_is_shared_is_offered_whole_no_more_until_its_last_share_is_free(
    node: Node,
) -> None:
    await served(node)

    first, second = [await node.admit(name, {SHARED: 1}) for name in ("first", "second")]
    await node.counts({WHOLE: (2, 1), SHARED: (6, 6)})
    assert await node.cards_of(first) == await node.cards_of(second), "shares are packed"
    await node.until(lambda it: confirmed(it, first, second))

    await node.kubelet.delete(first.uid)
    await node.until(lambda it: len(in_use(it)) == 1)
    await node.counts({WHOLE: (2, 1), SHARED: (6, 6)})
    await node.kubelet.delete(second.uid)
    await node.counts(FREE)


@NVIDIA_OR_SIMULATED
async def test_a_card_that_is_whole_is_shared_no_more_and_both_run_side_by_side(node: Node) -> None:
    await served(node)

    alone = await node.admit("alone", {WHOLE: 1})
    await node.counts({WHOLE: (2, 2), SHARED: (6, 3)})
    sharing = [await node.admit(f"share-{n}", {SHARED: 1}) for n in range(3)]
    await node.counts({WHOLE: (2, 1), SHARED: (6, 3)})

    (taken,) = await node.cards_of(alone)
    assert {card for pod in sharing for card in await node.cards_of(pod)} == {*node.cards.uuids} - {taken}
    assert len((await node.refused("more", {WHOLE: 1})).message) > 0


@EVERY_RELEASE
@pytest.mark.parametrize("count", [1])
async def test_of_a_whole_card_and_a_share_of_it_asked_for_at_once_one_is_given(node: Node) -> None:
    """Whether the kubelet has heard of the mode by then or not."""
    configure(node)
    await node.start()
    await node.counts({WHOLE: (1, 1), SHARED: (3, 3)})

    pods = (one("alone", WHOLE), one("share", SHARED))
    verdicts = await asyncio.gather(*map(node.kubelet.admit, pods))

    assert sorted(it.admitted for it in verdicts) == [False, True]
    assert len(in_use(node.view)) == 1


async def test_a_whole_card_and_a_share_asked_for_at_once_get_a_card_each(node: Node) -> None:
    """Whether the kubelet has heard of the mode by then or not."""
    await served(node)
    pods = (one("alone", WHOLE), one("share", SHARED))

    await node.admit_at_once(*pods)

    has = [await node.cards_of(pod) for pod in pods]
    assert set().union(*has) == {*node.cards.uuids}


async def test_whole_cards_and_units_of_memory_lie_side_by_side(node: Node) -> None:
    vendor = {"enabled": True, **node.cards.settings, "modes": "dynamic"}
    rules = [whole(WHOLE), by_memory(SHARED, "1")]
    node.configure(**{node.cards.vendor: {**vendor, "resources": rules}})
    await node.start()
    units = await units_of_a_card(node)

    alone = await node.admit("alone", {WHOLE: 1})
    await node.counts({WHOLE: (2, 2), SHARED: (2 * units, units)})
    some = await node.admit("some", {SHARED: units - 1})
    await node.counts({WHOLE: (2, 1), SHARED: (2 * units, units)})
    assert await node.cards_of(alone) != await node.cards_of(some)

    await node.kubelet.delete(alone.uid)
    await node.counts({WHOLE: (2, 1), SHARED: (2 * units, 2 * units)})


async def units_of_a_card(node: Node) -> int:
    """How many units of a GiB each of the two cards has, once the kubelet counts them."""
    view = await node.until(lambda it: SHARED in it.resources and it.resources[SHARED].capacity)
    count = view.resources[SHARED].capacity
    await node.counts({WHOLE: (2, 2), SHARED: (count, count)})
    return count // 2


async def test_a_card_in_another_mode_is_no_card_with_a_fault(node: Node) -> None:
    await served(node)

    await node.admit("share", {SHARED: 1})

    view = await node.until(modes)
    assert set(modes(view).values()) == {SHARED}
    assert [(it.health.state, it.told_healthy) for it in view.snapshot.devices] == [("healthy", True)] * 2
    assert (view.troubles, view.resource_waits) == ((), {})


async def test_the_modes_of_cards_outlive_the_agent(node: Node) -> None:
    await served(node)
    pod = await node.admit("share", {SHARED: 1})
    await node.until(lambda it: confirmed(it, pod))

    await node.stop()
    await node.start()

    await node.counts({WHOLE: (2, 1), SHARED: (6, 6)})


@NVIDIA_OR_SIMULATED
async def test_a_card_that_fails_is_offered_in_no_mode_and_comes_back_in_its_own(node: Node) -> None:
    await served(node)
    pod = await node.admit("share", {SHARED: 1})
    await node.counts({WHOLE: (2, 1), SHARED: (6, 6)})
    (taken,) = await node.cards_of(pod)
    index = node.cards.uuids.index(taken)

    await node.fail(index)
    await node.counts({WHOLE: (2, 1), SHARED: (6, 3)})
    node.cards.reset(index)
    await node.counts({WHOLE: (2, 1), SHARED: (6, 6)})


async def test_modes_that_become_fixed_leave_pods_their_cards(node: Node) -> None:
    await served(node)
    pod = await node.admit("share", {SHARED: 1})
    await node.until(lambda it: confirmed(it, pod))
    (taken,) = await node.cards_of(pod)

    rest = [uuid for uuid in node.cards.uuids if uuid != taken]
    vendor = {"enabled": True, **node.cards.settings}
    node.configure(
        **{node.cards.vendor: {**vendor, "resources": [whole(WHOLE, rest), shared(SHARED, 3, [taken])]}}
    )

    await node.counts({WHOLE: (1, 1), SHARED: (3, 3)})
    assert await node.cards_of(pod) == {taken}
