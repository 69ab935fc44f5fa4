"""Cards counted by their memory: units exact, one container on one card, and one size of unit at a time."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import pytest
from core.values import allocation
from msgspec.structs import replace
from support.waiting import eventually

from agent.core.devices.topology import Topology
from agent.core.model import AllocationSource, Command, Resource
from agent.core.placement import ids_on_promised_cards
from agent.testing.node_kubelet import Container, Pod
from agent.vendor_api.agent import Proof
from agent.vendors.simulated.agent.claims import ANNOTATION

from .cards import Simulated
from .node import Node, by_memory, confirmed, in_use, one, owned_by, released, shared, whole
from .process import AgentProcess

GCU, OTHER = "example.com/gcu-memory", "example.com/other"
GB = 1024


@pytest.fixture
def simulated(node: Node) -> Simulated:
    assert isinstance(node.cards, Simulated)
    return node.cards


async def test_units_of_cards_of_different_sizes_are_counted_exactly(
    node: Node, simulated: Simulated
) -> None:
    simulated.sized(16 * GB, 32 * GB, 23552, 42976)

    await node.start(by_memory(GCU, "0.1"))

    await node.counts({GCU: (160 + 320 + 230 + 419, 160 + 320 + 230 + 419)})
    pod = await node.admit("all of the last", {GCU: 419})
    assert await node.cards_of(pod) == {node.cards.uuids[3]}


@pytest.mark.parametrize("count", [8])
async def test_pods_fill_a_card_before_the_next_and_one_that_no_card_holds_is_refused(
    node: Node, simulated: Simulated
) -> None:
    simulated.sized(*[16 * GB] * 8)
    await node.start(by_memory(GCU, "1"))
    await node.counts({GCU: (128, 128)})

    pods = [await node.admit(f"pod-{size}", {GCU: size}) for size in (4, 8, 12)]
    refused = await node.refused("pod-20", {GCU: 20})

    first, second = ({uuid} for uuid in node.cards.uuids[:2])
    assert [await node.cards_of(pod) for pod in pods] == [first, first, second]
    assert "insufficient memory in one device: 20 units of 1 GiB asked for" in refused.message
    assert f"the largest free card has 16 ({node.cards.uuids[2]})" in refused.message


async def test_a_pod_goes_where_it_fits_best(node: Node, simulated: Simulated) -> None:
    simulated.sized(16 * GB, 16 * GB, 24 * GB)
    await node.start(by_memory(GCU, "1"))
    await node.counts({GCU: (56, 56)})
    await node.admit("nine", {GCU: 9})
    await node.admit("eleven", {GCU: 11})

    pods = [await node.admit(f"five-{n}", {GCU: 5}) for n in range(3)]

    first, second, third = ({uuid} for uuid in node.cards.uuids[:3])
    assert [await node.cards_of(pod) for pod in pods] == [second, first, third]


async def test_units_that_are_free_on_two_cards_are_not_given_to_one_container(
    node: Node, simulated: Simulated
) -> None:
    simulated.sized(16 * GB, 16 * GB)
    await node.start(by_memory(GCU, "1"))
    await node.counts({GCU: (32, 32)})
    for n in range(2):
        await node.admit(f"ten-{n}", {GCU: 10})

    refused = await node.refused("seven", {GCU: 7})

    assert "7 units of 1 GiB asked for, the largest free card has 6" in refused.message
    pod = await node.admit_pod(Pod("two", (Container({GCU: 6}, "a"), Container({GCU: 6}, "b"))))
    assert await node.cards_of(pod, "a") != await node.cards_of(pod, "b")


async def test_units_of_a_sick_card_go_together_and_come_back(node: Node, simulated: Simulated) -> None:
    simulated.sized(16 * GB, 24 * GB, 4 * GB)
    await node.start(by_memory(GCU, "0.1"))
    await node.counts({GCU: (440, 440)})

    await node.fail(1)
    await node.counts({GCU: (440, 200)})
    assert await node.cards_of(await node.admit("small", {GCU: 100})) == {node.cards.uuids[0]}
    assert "the largest free card has 60" in (await node.refused("large", {GCU: 61})).message

    simulated.scenario.heal(node.cards.uuids[1], Proof.RESET)
    await node.counts({GCU: (440, 440)})
    assert await node.cards_of(await node.admit("large", {GCU: 240})) == {node.cards.uuids[1]}


async def test_a_card_that_can_not_tell_its_memory_now_keeps_its_units(
    node: Node, simulated: Simulated
) -> None:
    simulated.sized(16 * GB, 24 * GB)
    await node.start(by_memory(GCU, "1"))
    await node.counts({GCU: (40, 40)})

    simulated.sized(16 * GB, 0)
    await node.fail(1)

    await node.counts({GCU: (40, 16)})


async def test_units_of_a_cordoned_card_stay_with_who_has_them_and_go_to_nobody_else(
    node: Node, simulated: Simulated
) -> None:
    simulated.sized(16 * GB, 24 * GB, 4 * GB)
    await node.start(by_memory(GCU, "1"))
    await node.counts({GCU: (44, 44)})
    await node.admit("there", {GCU: 5})

    await node.agent.apply(Command("cordon", node.cards.uuids[0], "alice"))

    await node.counts({GCU: (44, 33)})
    assert await node.cards_of(await node.admit("other", {GCU: 12})) == {node.cards.uuids[1]}
    assert "the largest free card has 12" in (await node.refused("large", {GCU: 13})).message


def astray(monkeypatch: pytest.MonkeyPatch, node: Node, card: int) -> None:
    """Let the kubelet take IDs of this card, as one does that asks nobody which it should take."""

    def chosen(
        resource: Resource,
        available: Sequence[str],
        required: object,
        size: int,
        topology: Topology,
        its: object,
        room: object,
    ) -> list[str]:
        there = {one: found.uuid for one in available if (found := resource.card_of(one))}
        return [one for one in available if there[one] == node.cards.uuids[card]][:size]

    monkeypatch.setattr(ids_on_promised_cards, "chosen_ids", chosen)


async def test_units_that_a_scheduler_put_on_another_card_count_where_they_lie(
    node: Node, simulated: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated.sized(16 * GB, 16 * GB, 2 * GB)
    first, second = ({uuid} for uuid in node.cards.uuids[:2])
    await node.start(by_memory(GCU, "1", placement="auto"))
    await node.counts({GCU: (34, 34)})
    pod = one("claimed", GCU, 12)
    node.shows(pod, **{ANNOTATION: json.dumps({"main": {"devices": [*second]}})})
    with monkeypatch.context() as patch:
        astray(patch, node, 0)
        await node.admit_pod(pod)
    assert await node.cards_of(pod) == second
    (it,) = in_use(await node.until(lambda it: confirmed(it, pod)))
    assert (it.devices, it.diverged, it.unit) == ((*first,), (*second,), "1")

    six, ten = await node.admit("six", {GCU: 6}), await node.admit("ten", {GCU: 10})
    refused = await node.refused("five", {GCU: 5})
    four = await node.admit("four", {GCU: 4})

    assert [await node.cards_of(it) for it in (six, ten, four)] == [first, first, second]
    assert f"the largest free card has 4 ({next(iter(second))})" in refused.message


# The unit changes


async def test_a_unit_that_pods_hold_stays_until_the_last_has_ended(node: Node, simulated: Simulated) -> None:
    simulated.sized(16 * GB, 16 * GB)
    await node.start(by_memory(GCU, "1"))
    await node.counts({GCU: (32, 32)})
    pods = [await node.admit("first", {GCU: 4})]
    await node.until(lambda it: confirmed(it, *pods))

    node.configure(by_memory(GCU, "0.1"))
    view = await node.until(lambda it: it.kept_units)
    kept, sentence = view.kept_units[GCU]
    assert (kept.unit, kept.wanted) == ("1", "0.1")
    assert "until these pods have ended: default/first" in sentence
    assert not any(GCU in it for it in view.troubles)
    pods.append(await node.admit("meanwhile", {GCU: 12}))
    await node.until(lambda it: confirmed(it, *pods))
    assert await node.cards_of(pods[1]) == {node.cards.uuids[0]}

    await node.kubelet.delete(pods[0].uid)
    await node.until(lambda it: released(it, pods[0]))
    await node.counts({GCU: (32, 32)})
    await node.kubelet.delete(pods[1].uid)
    await node.counts({GCU: (320, 320)})
    assert node.view.kept_units == {}
    assert node.streams(GCU) == 1
    pod = await node.admit("last", {GCU: 4})
    view = await node.until(lambda it: confirmed(it, pod))
    assert [it.unit for it in owned_by(view, pod)] == ["0.1"]


async def test_a_config_that_takes_its_unit_back_leaves_everything_as_it_was(
    node: Node, simulated: Simulated
) -> None:
    simulated.sized(16 * GB)
    await node.start(by_memory(GCU, "1"))
    await node.counts({GCU: (16, 16)})
    await node.admit("one", {GCU: 4})
    node.configure(by_memory(GCU, "0.01"))
    await node.until(lambda it: it.kept_units)

    node.configure(by_memory(GCU, "1"))

    await node.until(lambda it: not it.kept_units)
    await node.counts({GCU: (16, 16)})
    await node.admit("rest", {GCU: 12})


@pytest.mark.parametrize("lost", [False, True], ids=["", "its checkpoint lost"])
@pytest.mark.parametrize(("before", "after", "gb"), [("1", "0.1", 1), ("0.1", "1", 10)])
async def test_an_agent_that_begins_while_pods_hold_another_unit_keeps_it(
    node: Node, simulated: Simulated, lost: bool, before: str, after: str, gb: int
) -> None:
    simulated.sized(16 * GB, 2 * GB)
    had, units = {"1": (18, 180), "0.1": (180, 18)}[before]
    await node.start(by_memory(GCU, before))
    await node.counts({GCU: (had, had)})
    pod = await node.admit("there", {GCU: 12 * gb})
    await node.until(lambda it: confirmed(it, pod))
    await node.stop()
    if lost:
        (node.state / "checkpoint.json").unlink()

    await node.start(by_memory(GCU, after))

    view = await node.until(lambda it: it.kept_units and confirmed(it, pod))
    assert [(it.unit, it.source is AllocationSource.KUBELET) for it in in_use(view)] == [(before, lost)]
    await node.counts({GCU: (had, had)})
    refused = await node.refused("large", {GCU: 4 * gb + 1})
    assert f"the largest free card has {4 * gb}" in refused.message
    await node.kubelet.delete(pod.uid)
    await node.counts({GCU: (units, units)})


async def test_an_agent_killed_amid_a_change_of_the_unit_goes_on_with_it(
    node: Node, simulated: Simulated, process: AgentProcess
) -> None:
    simulated.sized(16 * GB)
    node.configure(by_memory(GCU, "1"))
    await process.start()
    await node.counts({GCU: (16, 16)})
    pod = await node.admit("there", {GCU: 4})
    node.configure(by_memory(GCU, "0.1"))
    await process.until(kept)
    await process.kill()

    await process.start()

    document = await process.until(kept)
    assert [it["unit"] for it in document["allocations"]] == ["1"]
    await node.counts({GCU: (16, 16)})
    await node.kubelet.delete(pod.uid)
    await node.counts({GCU: (160, 160)})


def kept(document: dict[str, list[dict[str, str]]]) -> bool:
    return any(it["unitKept"] for it in document["resources"])


async def test_a_card_changes_from_replicas_to_memory_and_back_only_when_it_is_free(
    node: Node, simulated: Simulated
) -> None:
    simulated.sized(16 * GB, 16 * GB)
    await node.start(shared(GCU, 10, policy="packed"))
    await node.counts({GCU: (20, 20)})
    replica = await node.admit("replica", {GCU: 2})
    await node.until(lambda it: confirmed(it, replica))

    node.configure(by_memory(GCU, "1"))
    await node.counts({GCU: (2 + 16, 2 + 16)})
    unit = await node.admit("unit", {GCU: 16})
    await node.until(lambda it: confirmed(it, unit))
    assert await node.cards_of(unit) == {node.cards.uuids[1]}
    await node.kubelet.delete(replica.uid)
    await node.counts({GCU: (32, 32)})

    node.configure(shared(GCU, 10))
    await node.counts({GCU: (10 + 16, 10 + 16)})
    assert set((await node.kubelet.health(unit.uid)).values()) == {"Healthy"}
    await node.kubelet.delete(unit.uid)
    await node.counts({GCU: (20, 20)})
    assert node.streams(GCU) == 1


async def test_a_card_that_pods_have_whole_is_counted_by_memory_only_when_it_is_free(
    node: Node, simulated: Simulated
) -> None:
    simulated.sized(16 * GB, 16 * GB)
    await node.start(whole(GCU))
    await node.counts({GCU: (2, 2)})
    pod = await node.admit("whole", {GCU: 1})
    await node.until(lambda it: confirmed(it, pod))

    node.configure(by_memory(GCU, "1"))

    await node.counts({GCU: (17, 17)})
    await node.kubelet.delete(pod.uid)
    await node.counts({GCU: (32, 32)})


# As many units as the kubelet takes


@pytest.mark.parametrize("count", [8])
async def test_a_unit_too_fine_for_the_list_is_refused_naming_the_smallest_that_the_kubelet_takes(
    node: Node, simulated: Simulated
) -> None:
    simulated.sized(*[48 * GB] * 8)
    await node.start(by_memory(GCU, "0.001", [*range(7)]), by_memory(OTHER, "1", [7]))
    await node.counts({OTHER: (48, 48)})
    view = await node.until(lambda it: it.sessions[GCU].state == "refused")
    (trouble,) = (it for it in view.troubles if GCU in it)
    named = re.search(r"the kubelet takes 4194304; unit '([\d.]+)' is the smallest that fits", trouble)
    assert named is not None
    assert named[1] == "0.01"
    assert GCU not in await node.kubelet.capacity()

    node.configure(by_memory(GCU, named[1], [*range(7)]), by_memory(OTHER, "1", [7]))

    await node.counts({GCU: (7 * 4800, 7 * 4800), OTHER: (48, 48)})
    await node.admit("one", {GCU: 4800})


@pytest.mark.parametrize("count", [8])
async def test_the_smallest_unit_that_fits_is_chosen_where_the_config_leaves_it(
    node: Node, simulated: Simulated
) -> None:
    simulated.sized(*[48 * GB] * 8)

    await node.start(by_memory(GCU, "auto"))

    await node.counts({GCU: (8 * 4800, 8 * 4800)})
    pod = await node.admit("one", {GCU: 100})
    (it,) = in_use(await node.until(lambda it: confirmed(it, pod)))
    assert it.unit == "0.01"


@pytest.mark.parametrize("count", [8])
async def test_a_change_to_a_unit_that_is_too_fine_leaves_the_one_that_is_served(
    node: Node, simulated: Simulated
) -> None:
    simulated.sized(*[48 * GB] * 8)
    await node.start(by_memory(GCU, "1"))
    await node.counts({GCU: (384, 384)})

    node.configure(by_memory(GCU, "0.001"))

    view = await node.until(lambda it: it.kept_units)
    assert "unit '0.01' is the smallest that fits" in view.kept_units[GCU][1]
    await node.admit("one", {GCU: 48})
    assert await node.kubelet.capacity() == {GCU: await _capacity(node)}
    assert node.count("plugin_lists_too_long", resource=GCU) == 0


async def _capacity(node: Node) -> object:
    (found,) = (await node.kubelet.capacity()).values()
    assert found.capacity == 384
    return found


@pytest.mark.parametrize("count", [8])
async def test_128_000_units_are_registered_and_one_pod_takes_a_whole_card(
    node: Node, simulated: Simulated
) -> None:
    simulated.sized(*[16 * GB] * 8)
    await node.start(by_memory(GCU, "0.001"))

    await node.counts({GCU: (128_000, 128_000)})
    pod = await node.admit("one", {GCU: 16_000})
    assert len(await node.cards_of(pod)) == 1
    assert node.streams(GCU) == 1


@pytest.mark.parametrize("count", [1])
async def test_units_by_the_thousand_are_taken_in_with_their_pod_and_not_with_the_next_discovery(
    node: Node, simulated: Simulated
) -> None:
    simulated.sized(16 * GB)
    node.pace = replace(node.pace, discover=600.0, reconcile=600.0, grace=600.0)
    await node.start(by_memory(GCU, "0.001"))
    await node.counts({GCU: (16_000, 16_000)})
    ledger = node.agent.parts.ledger
    (card,) = node.view.resources[GCU].cards

    ledger.record(allocation("one", [*card][:2_000], resource=GCU, devices=(card.uuid,)))

    await eventually(lambda: not ledger.unread_ids)
