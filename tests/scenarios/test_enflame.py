"""Enflame's cards whole, by memory, in slices and sliced by their hardware, side by side on one node."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest
from support.waiting import eventually

from agent.testing.node_kubelet import Container, Pod

from .conftest import ONLY_ENFLAME
from .enflame import DRS, GB, GCU, MEMORY, S60, SHARED, Enflame
from .node import Node, confirmed, gets, in_use, one, released

pytestmark = ONLY_ENFLAME


async def served(node: Node, dialect: str, counted: dict[str, tuple[int, int]], **settings: Any) -> None:
    assert isinstance(node.cards, Enflame)
    node.cards.dialect, node.cards.more = dialect, settings
    node.configure()
    await node.start()
    await node.counts(counted)


async def test_a_whole_card_is_told_by_the_number_of_its_node(node: Node, enflame: Enflame) -> None:
    await served(node, "none", {GCU: (4, 4)})

    pods = [await node.admit(f"pod-{n}", {GCU: 1}) for n in range(4)]

    got = [await gets(node, pod) for pod in pods]
    minors = [it.env[enflame.visible] for it in got]
    assert sorted(minors) == ["0", "1", "2", "3"]
    assert [it.nodes for it in got] == [{"/dev/gcuctl", f"/dev/gcu{minor}"} for minor in minors]
    assert {uuid for pod in pods for uuid in await node.cards_of(pod)} == {*enflame.uuids}
    await node.refused("fifth", {GCU: 1})


async def test_units_of_memory_fill_a_card_before_the_next_beside_whole_ones(
    node: Node, enflame: Enflame
) -> None:
    enflame.sized(*[16 * GB] * 4)
    await served(node, "gcushare-v1", {GCU: (4, 4), MEMORY: (64, 64)})

    pods = [await node.admit(f"pod-{size}", {MEMORY: size}) for size in (4, 8, 12)]
    refused = await node.refused("pod-20", {MEMORY: 20})

    four, eight, twelve = [await node.cards_of(pod) for pod in pods]
    assert four == eight != twelve
    assert "insufficient GCU Memory in one gcu device" in refused.message
    assert "the largest free card has 16" in refused.message
    await node.counts({GCU: (4, 2), MEMORY: (64, 64)})
    whole = await node.admit("whole", {GCU: 1})
    assert (await node.cards_of(whole)).isdisjoint(four | twelve)
    await node.counts({GCU: (4, 2), MEMORY: (64, 48)})


async def test_slices_that_nothing_keeps_apart_are_packed_beside_whole_cards(
    node: Node, enflame: Enflame
) -> None:
    await served(node, "gcushare-v4", {GCU: (4, 4), SHARED: (24, 24), DRS: (24, 24)})

    pods = [await node.admit(f"pod-{n}", {SHARED: 2}) for n in range(3)]

    first, second, third = [await node.cards_of(pod) for pod in pods]
    assert first == second == third
    await node.counts({GCU: (4, 3), SHARED: (24, 24), DRS: (24, 18)})
    assert enflame.slices == []


async def test_a_slice_of_the_hardware_is_made_for_its_container_and_removed_with_it(
    node: Node, enflame: Enflame
) -> None:
    await served(node, "gcushare-v4", {GCU: (4, 4), SHARED: (24, 24), DRS: (24, 24)})

    pod = await node.admit("three", {DRS: 3})

    [made] = enflame.slices
    assert made.profile == "3g.20gb"
    minor = enflame.minors[made.slot]
    got = await gets(node, pod)
    assert got.env["TOPS_VISIBLE_DEVICES"] == f"DRS-{made.uuid}"
    assert got.env[enflame.visible] == str(minor)
    assert got.nodes == {"/dev/gcuctl", f"/dev/gcu{minor}"}
    await node.counts({GCU: (4, 3), SHARED: (24, 18), DRS: (24, 24)})
    assert enflame.stub.drs() == [made.slot]

    await node.until(lambda it: confirmed(it, pod))
    await node.kubelet.delete(pod.uid)
    await node.until(lambda it: released(it, pod))
    await node.counts({GCU: (4, 4), SHARED: (24, 24), DRS: (24, 24)})
    assert enflame.slices == []
    assert enflame.stub.drs() == []


async def test_a_container_is_told_its_slice_in_the_answer_where_the_setting_says_so(
    node: Node, enflame: Enflame
) -> None:
    counted = {GCU: (4, 4), SHARED: (24, 24), DRS: (24, 24)}
    await served(node, "gcushare-v4", counted, drsVariable="env")

    pod = await node.admit("three", {DRS: 3})

    [made] = enflame.slices
    options = await node.kubelet.run_options(pod.uid, "main")
    assert options.env["TOPS_VISIBLE_DEVICES"] == f"DRS-{made.uuid}"
    assert options.cdi_devices == ()


@pytest.mark.parametrize("count", [1])
@pytest.mark.parametrize("other", [SHARED, DRS])
async def test_of_a_whole_card_and_a_slice_of_it_asked_for_at_once_one_is_given(
    node: Node, enflame: Enflame, other: str
) -> None:
    await served(node, "gcushare-v4", {GCU: (1, 1), SHARED: (6, 6), DRS: (6, 6)})

    verdicts = await asyncio.gather(*map(node.kubelet.admit, (one("whole", GCU), one("slice", other))))

    assert sorted(it.admitted for it in verdicts) == [False, True]
    [has] = in_use(node.view)
    assert len(enflame.slices) == (has.resource == DRS)


async def test_all_ways_run_side_by_side_on_one_node(node: Node, enflame: Enflame) -> None:
    await served(node, "gcushare-v4", {GCU: (4, 4), SHARED: (24, 24), DRS: (24, 24)})
    pods: list[Pod] = []
    for name, left in (
        (GCU, {GCU: (4, 4), SHARED: (24, 18), DRS: (24, 18)}),
        (SHARED, {GCU: (4, 3), SHARED: (24, 18), DRS: (24, 12)}),
        (DRS, {GCU: (4, 2), SHARED: (24, 12), DRS: (24, 12)}),
    ):
        pods.append(await node.admit(f"pod-{len(pods)}", {name: 1}))
        await node.counts(left)

    assert len({uuid for pod in pods for uuid in await node.cards_of(pod)}) == 3
    two = await node.admit_pod(Pod("two", (Container({DRS: 1}, "a"), Container({DRS: 1}, "b"))))
    assert await node.cards_of(two, "a") == await node.cards_of(two, "b") == await node.cards_of(pods[2])
    assert len(enflame.slices) == 3


async def test_slices_of_the_hardware_stay_their_containers_through_a_restart(
    node: Node, enflame: Enflame
) -> None:
    await served(node, "gcushare-v4", {GCU: (4, 4), SHARED: (24, 24), DRS: (24, 24)})
    pod = await node.admit("drs", {DRS: 1})
    await node.until(lambda it: confirmed(it, pod))
    made = enflame.slices

    await node.stop()
    await node.start()

    await node.counts({GCU: (4, 3), SHARED: (24, 18), DRS: (24, 24)})
    assert enflame.slices == made
    assert (await gets(node, pod)).env["TOPS_VISIBLE_DEVICES"] == f"DRS-{made[0].uuid}"


async def test_cards_that_can_not_be_sliced_are_offered_without_slices_of_the_hardware(
    node: Node, enflame: Enflame
) -> None:
    enflame.sized(*[S60] * 4)
    enflame.stub.virt(0, 0, "SRIOV")

    await served(node, "gcushare-v4", {GCU: (4, 4), SHARED: (24, 24), DRS: (18, 18)})


def told(node: Node) -> tuple[Mapping[str, int], list[int], Mapping[str, int | None]]:
    """Slices by the number of the card's node, sixths that the hardware may make in the order of the cards,
    and what is counted for the Node.
    """
    annotations, counts = (
        node.agent.parts.publisher.annotations.value,
        node.agent.parts.publisher.extended.value,
    )
    assert annotations is not None
    assert counts is not None
    shared, sliced = (
        json.loads(annotations.values.get(f"enflame.com/gcu-{it}-capacity") or "{}")
        for it in ("shared", "drs")
    )
    return shared, [it["capacity"] for it in sliced.get("devices", ())], counts.values


async def test_the_node_tells_schedulers_which_slices_are_to_be_had_and_how_many_cards_are_shared(
    node: Node, enflame: Enflame
) -> None:
    await served(node, "gcushare-v4", {GCU: (4, 4), SHARED: (24, 24), DRS: (24, 24)})
    free = {str(minor): 6 for minor in enflame.minors}
    count = {"enflame.com/gcu-count": 4}
    await eventually(lambda: told(node) == (free, [6] * 4, count))

    whole = await node.admit("whole", {GCU: 1})
    (uuid,) = await node.cards_of(whole)
    slot = enflame.uuids.index(uuid)
    taken = {minor: 6 for minor in free if minor != str(enflame.minors[slot])}
    sixths = [6] * 3
    await eventually(lambda: told(node) == (taken, sixths, count))

    await node.admit("shared", {SHARED: 2})
    await node.admit("sliced", {DRS: 3})
    await eventually(lambda: told(node) == (taken, sixths, count))


async def test_what_no_profile_or_no_single_card_has_is_refused_with_what_there_is(
    node: Node, enflame: Enflame
) -> None:
    await served(node, "gcushare-v4", {GCU: (4, 4), SHARED: (24, 24), DRS: (24, 24)})

    assert "it can have 1g.6gb, 3g.20gb, 6g.40gb" in (await node.refused("two", {DRS: 2})).message
    seven = (await node.refused("seven", {SHARED: 7})).message

    assert "7 shares requested, the largest free card has 6" in seven
    assert enflame.slices == []
    assert enflame.stub.drs() == []


# What others made on the hardware


async def test_a_card_on_which_others_made_a_slice_is_neither_whole_nor_shared_until_it_is_gone(
    node: Node, enflame: Enflame
) -> None:
    theirs = enflame.stub.make_instance(1, "3g.20gb")
    await served(node, "gcushare-v4", {GCU: (4, 3), SHARED: (24, 18), DRS: (24, 24)})

    pods = [await node.admit(f"whole-{n}", {GCU: 1}) for n in range(3)]

    cards = {uuid for pod in pods for uuid in await node.cards_of(pod)}
    assert cards == {*enflame.uuids} - {enflame.uuids[1]}
    await node.refused("fourth", {GCU: 1})
    await node.refused("shared", {SHARED: 1})
    [doubt] = node.view.doubts
    assert f"{enflame.uuids[1]} has slices that this agent did not make (1)" in doubt
    beside = await node.admit("sliced", {DRS: 1})
    assert await node.cards_of(beside) == {enflame.uuids[1]}

    enflame.stub.vanish(theirs.uuid)
    await node.until(lambda it: confirmed(it, beside))
    await node.kubelet.delete(beside.uid)
    await node.until(lambda it: released(it, beside))

    await node.counts({GCU: (4, 4), SHARED: (24, 6)})
    assert node.view.doubts == ()
    assert await node.cards_of(await node.admit("fifth", {GCU: 1})) == {enflame.uuids[1]}


@pytest.mark.parametrize(
    ("dialect", "counted"),
    [("none", {GCU: (4, 3)}), ("gcushare-v1", {GCU: (4, 3), MEMORY: (192, 144)})],
)
async def test_slices_of_others_hold_their_card_also_where_no_slice_is_offered(
    node: Node, enflame: Enflame, dialect: str, counted: dict[str, tuple[int, int]]
) -> None:
    enflame.sized(*[S60] * 4)
    enflame.stub.make_instance(2)

    await served(node, dialect, counted)

    pods = [await node.admit(f"whole-{n}", {GCU: 1}) for n in range(3)]
    assert enflame.uuids[2] not in {uuid for pod in pods for uuid in await node.cards_of(pod)}


async def test_a_pod_keeps_its_card_on_which_others_make_a_slice(node: Node, enflame: Enflame) -> None:
    await served(node, "gcushare-v4", {GCU: (4, 4), SHARED: (24, 24), DRS: (24, 24)})
    pod = await node.admit("whole", {GCU: 1})
    (mine,) = await node.cards_of(pod)
    await node.until(lambda it: confirmed(it, pod))

    enflame.stub.make_instance(enflame.uuids.index(mine))
    await node.admit("looks", {DRS: 1})  # the agent looks at the hardware once it has changed it
    await node.until(lambda it: it.doubts)

    await node.counts({GCU: (4, 3)})
    await node.start_of(pod)
    assert await node.cards_of(pod) == {mine}
    await node.kubelet.delete(pod.uid)
    await node.counts({GCU: (4, 2)})
