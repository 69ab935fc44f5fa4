"""Units of Enflame's memory: sizes, a change of them while pods hold another, lists that are too long."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import ONLY_ENFLAME
from .enflame import GB, GCU, MEMORY, Enflame
from .node import Node, confirmed, in_use, owned_by, released

pytestmark = ONLY_ENFLAME


@pytest.fixture
def enflame(node: Node) -> Enflame:
    assert isinstance(node.cards, Enflame)
    return node.cards


def counting(node: Node, unit: str, **settings: Any) -> None:
    """Let the config have this unit."""
    assert isinstance(node.cards, Enflame)
    node.cards.dialect, node.cards.more = "gcushare-v1", {"memoryUnit": unit, **settings}
    node.configure()


async def test_a_unit_that_pods_hold_stays_beside_whole_cards_until_the_last_has_ended(
    node: Node, enflame: Enflame
) -> None:
    enflame.sized(*[16 * GB] * 4)
    counting(node, "1")
    await node.start()
    await node.counts({GCU: (4, 4), MEMORY: (64, 64)})
    pod = await node.admit("first", {MEMORY: 4})
    await node.until(lambda it: confirmed(it, pod))

    counting(node, "0.1")
    view = await node.until(lambda it: it.kept_units)
    kept, sentence = view.kept_units[MEMORY]
    assert (kept.unit, kept.wanted) == ("1", "0.1")
    assert "until these pods have ended: default/first" in sentence
    whole = await node.admit("whole", {GCU: 1})
    await node.counts({GCU: (4, 3), MEMORY: (64, 48)})

    await node.kubelet.delete(pod.uid)
    await node.until(lambda it: released(it, pod))
    await node.counts({GCU: (4, 4), MEMORY: (640, 480)})
    assert (await node.cards_of(whole)).issubset(enflame.uuids)
    last = await node.admit("last", {MEMORY: 4})
    view = await node.until(lambda it: confirmed(it, last))
    assert [it.unit for it in owned_by(view, last)] == ["0.1"]


@pytest.mark.parametrize("count", [8])
async def test_thousandths_of_eight_cards_of_16_gb_are_listed(node: Node, enflame: Enflame) -> None:
    enflame.sized(*[16 * GB] * 8)
    counting(node, "0.001")
    await node.start()

    await node.counts({GCU: (8, 8), MEMORY: (128_000, 128_000)})
    await node.admit("some", {MEMORY: 100})


@pytest.mark.parametrize("count", [8])
@pytest.mark.parametrize("size", [32, 48])
async def test_a_list_that_is_too_long_is_refused_with_the_unit_that_fits_and_whole_cards_are_served(
    node: Node, enflame: Enflame, size: int
) -> None:
    enflame.sized(*[size * GB] * 8)
    counting(node, "0.001")
    await node.start()

    view = await node.until(lambda it: MEMORY in it.sessions and it.sessions[MEMORY].state == "refused")
    [trouble] = [it for it in view.troubles if MEMORY in it]
    assert "the kubelet takes 4194304; unit '0.01' is the smallest that fits" in trouble
    await node.counts({GCU: (8, 8)})
    assert MEMORY not in await node.kubelet.capacity()

    counting(node, "0.01")
    await node.counts({GCU: (8, 8), MEMORY: (size * 800, size * 800)})


@pytest.mark.parametrize("count", [8])
async def test_the_smallest_unit_is_chosen_where_the_config_says_auto(node: Node, enflame: Enflame) -> None:
    enflame.sized(*[48 * GB] * 8)
    counting(node, "auto")
    await node.start()

    await node.counts({MEMORY: (8 * 4800, 8 * 4800)})
    pod = await node.admit("one", {MEMORY: 100})
    [it] = in_use(await node.until(lambda it: confirmed(it, pod)))
    assert it.unit == "0.01"


@pytest.mark.parametrize("ids", ["short", "uuid"])
async def test_units_are_known_again_from_the_kubelet_when_the_checkpoint_is_lost(
    node: Node, enflame: Enflame, ids: str
) -> None:
    enflame.sized(*[16 * GB] * 4)
    enflame.dialect = "gcushare-v1"
    await node.start({"name": MEMORY, "ids": ids})
    await node.counts({MEMORY: (64, 64)})
    pod = await node.admit("pod", {MEMORY: 4})
    await node.until(lambda it: confirmed(it, pod))
    await node.stop()
    (node.state / "checkpoint.json").write_text("torn")

    await node.start()

    view = await node.until(lambda it: confirmed(it, pod))
    assert [(it.unit, it.cards) for it in owned_by(view, pod)] == [("1", tuple(await node.cards_of(pod)))]
