"""The change from another device plugin to us: its pods keep what they have, and nothing is given twice."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from peers.plugin import TinyPlugin

from agent.core.model import Source
from agent.testing.node import Pod

from .cards import Simulated
from .node import Node, by_memory, confirmed, in_use, shared, whole

GCU = "example.com/gcu-memory"
GB = 1024
#: How other plugins write the nth unit of a card: GCUShare of 2022, since then, and NVIDIA's early ones.
WRITINGS = ("{uuid}-_-{n}", "{minor}-{n}", "{uuid}-{n}")


@pytest.fixture
def simulated(node: Node) -> Simulated:
    assert isinstance(node.cards, Simulated)
    return node.cards


@dataclass(frozen=True, slots=True)
class Old:
    """Another plugin's pod, and the IDs that it was given."""

    pod: Pod
    ids: frozenset[str]
    card: int


def listed(node: Node, writing: str, *units: int) -> list[list[str]]:
    """The IDs of each card as another plugin writes them."""
    uuids = node.cards.uuids
    return [
        [writing.format(uuid=uuids[c], minor=c, n=n) for n in range(count)] for c, count in enumerate(units)
    ]


async def served_before(node: Node, resource: str, cards: list[list[str]], count: int) -> Old:
    """Let another plugin serve these IDs and give some of them, of one card, to a pod; then it is gone."""
    async with TinyPlugin(node.kubelet.plugin_dir, resource) as plugin:
        # The card is the plugin's choice, which the kubelet makes by what it is offered.
        await plugin.publish(dict.fromkeys(cards[0], "Healthy"))
        await plugin.register()
        await node.counts({resource: (len(cards[0]), len(cards[0]))})
        pod = await node.admit("old", {resource: count})
        every = [it for ids in cards for it in ids]
        await plugin.publish(dict.fromkeys(every, "Healthy"))
        await node.counts({resource: (len(every), len(every))})
    await node.unserved()
    held = (await node.kubelet.devices(pod.uid))["main"][resource]
    return Old(pod, frozenset(held), 0)


@pytest.mark.parametrize("writing", WRITINGS)
async def test_a_pod_of_another_plugin_keeps_its_units_and_the_others_of_its_card_are_served(
    node: Node, simulated: Simulated, writing: str
) -> None:
    simulated.sized(16 * GB, 16 * GB)
    old = await served_before(node, GCU, listed(node, writing, 16, 16), 6)

    await node.start(by_memory(GCU, "1"))

    view = await node.until(lambda it: confirmed(it, old.pod))
    (it,) = in_use(view)
    assert (it.source, it.unit, {*it.cards}) == (Source.KUBELET, "1", {node.cards.uuids[0]})
    assert old.ids == {*it.ids}
    await node.counts({GCU: (32, 32)})
    refused = await node.refused("too-many", {GCU: 17})
    assert "the largest free card has 16" in refused.message
    beside = await node.admit("beside", {GCU: 10})
    assert await node.cards_of(beside) == {node.cards.uuids[0]}
    full = await node.admit("the-other-card", {GCU: 16})
    assert await node.cards_of(full) == {node.cards.uuids[1]}
    await node.refused("one-more", {GCU: 1})
    await node.kubelet.delete(old.pod.uid)
    await node.until(lambda it: len(in_use(it)) == 2)
    await node.counts({GCU: (32, 32)})
    last = await node.admit("last", {GCU: 6})
    assert await node.cards_of(last) == {node.cards.uuids[0]}


@pytest.mark.parametrize("again", ["the agent", "the kubelet", "its checkpoint lost"])
async def test_what_a_pod_of_another_plugin_has_outlasts_every_restart(
    node: Node, simulated: Simulated, again: str
) -> None:
    simulated.sized(16 * GB)
    old = await served_before(node, GCU, listed(node, "{minor}-{n}", 16), 6)
    await node.start(by_memory(GCU, "1"))
    await node.until(lambda it: confirmed(it, old.pod))
    await node.counts({GCU: (16, 16)})
    beside = await node.admit("beside", {GCU: 4})
    await node.until(lambda it: confirmed(it, beside))

    if again == "the kubelet":
        await node.kubelet.restart(readmit=True)
    else:
        await node.stop()
        if again == "its checkpoint lost":
            (node.state / "checkpoint.json").unlink()
        await node.start()

    await node.until(lambda it: confirmed(it, old.pod, beside))
    await node.counts({GCU: (16, 16)})
    assert not node.kubelet.refused
    assert set((await node.kubelet.health(old.pod.uid)).values()) == {"Healthy"}
    refused = await node.refused("seven", {GCU: 7})
    assert "6" in refused.message
    rest = await node.admit("rest", {GCU: 6})
    await node.until(lambda it: confirmed(it, rest))
    await node.kubelet.delete(old.pod.uid)
    await node.until(lambda it: confirmed(it, rest) and not confirmed(it, old.pod))
    await node.counts({GCU: (16, 16)})


async def test_units_of_another_plugin_in_another_size_keep_that_size_until_their_pod_has_ended(
    node: Node, simulated: Simulated
) -> None:
    simulated.sized(16 * GB, 16 * GB)
    old = await served_before(node, GCU, listed(node, "{minor}-{n}", 160, 160), 60)

    await node.start(by_memory(GCU, "1"))

    view = await node.until(lambda it: it.kept_units and confirmed(it, old.pod))
    assert [it.unit for it in in_use(view)] == ["0.1"]
    await node.counts({GCU: (320, 320)})
    await node.kubelet.delete(old.pod.uid)
    await node.counts({GCU: (32, 32)})


async def test_a_card_that_another_plugin_shared_in_no_size_of_ours_waits_and_says_so(
    node: Node, simulated: Simulated
) -> None:
    simulated.sized(16 * GB, 16 * GB)
    old = await served_before(node, GCU, listed(node, "{minor}-{n}", 15, 15), 6)

    await node.start(by_memory(GCU, "1"))

    await node.until(lambda it: confirmed(it, old.pod))
    await node.counts({GCU: (6 + 16, 6 + 16)})
    waits = "waits for 1 card that pods hold in shares of another plugin's size: default/old"
    assert node.view.waits[GCU] == (f"{GCU} {waits}",)
    unit = await node.admit("unit", {GCU: 1})
    assert await node.cards_of(unit) == {node.cards.uuids[1]}
    await node.kubelet.delete(old.pod.uid)
    await node.counts({GCU: (32, 32)})
    await node.until(lambda it: not it.waits)


@pytest.mark.parametrize(("theirs", "ours", "counts"), [(6, 6, 12), (4, 6, 3 + 6)])
async def test_replicas_of_another_plugin_are_given_to_nobody_else(
    node: Node, theirs: int, ours: int, counts: int, simulated: Simulated
) -> None:
    simulated.sized(16 * GB, 16 * GB)
    old = await served_before(node, GCU, listed(node, "{minor}-{n}", theirs, theirs), 3)

    await node.start(shared(GCU, ours, policy="packed", ids="minor"))

    await node.until(lambda it: confirmed(it, old.pod))
    await node.counts({GCU: (counts, counts)})
    pods = [await node.admit(f"pod-{n}", {GCU: 1}) for n in range(counts - 3)]
    on = [(await node.cards_of(pod)).pop() for pod in pods]
    assert on.count(node.cards.uuids[0]) == (ours - 3 if theirs == ours else 0)
    await node.refused("one-more", {GCU: 1})
    await node.kubelet.delete(old.pod.uid)
    await node.counts({GCU: (12, 12)})


@pytest.mark.parametrize("writing", ["{uuid}", "{minor}"])
async def test_a_whole_card_of_another_plugins_pod_is_nobody_elses(node: Node, writing: str) -> None:
    ids = [writing.format(uuid=uuid, minor=n) for n, uuid in enumerate(node.cards.uuids)]
    old = await served_before(node, GCU, [ids[:1], ids[1:]], 1)

    await node.start(whole(GCU))

    await node.until(lambda it: confirmed(it, old.pod))
    await node.counts({GCU: (4, 4)})
    pods = [await node.admit(f"pod-{n}", {GCU: 1}) for n in range(3)]
    assert {card for pod in pods for card in await node.cards_of(pod)} == {*node.cards.uuids[1:]}
    await node.refused("one-more", {GCU: 1})
    await node.kubelet.delete(old.pod.uid)
    await node.counts({GCU: (4, 4)})
    await node.admit("last", {GCU: 1})
