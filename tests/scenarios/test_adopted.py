"""The change from another device plugin to us: its pods keep what they have, and nothing is given twice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest
from msgspec.structs import replace
from peers.plugin import TinyPlugin
from structlog.testing import capture_logs
from support.waiting import eventually

from agent.core.model import AllocationSource
from agent.testing.kubelet import SimKubelet
from agent.testing.node_kubelet import Container, Pod

from .cards import Simulated
from .conftest import EVERY_RELEASE, ONLY_ENFLAME, ONLY_METAX, ONLY_NVIDIA
from .enflame import DRS, GCU, MEMORY, S60, SHARED, Enflame
from .metax import MetaX
from .node import Node, by_memory, confirmed, in_use, shared, whole

UNITS = "example.com/gcu-memory"
XPU = "example.com/xpu"
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


async def test_our_own_pod_holds_its_cards_under_a_name_that_the_config_lost_with_the_checkpoint(
    node: Node,
) -> None:
    await node.start(whole("example.com/before"))
    await node.counts({"example.com/before": (4, 4)})
    pod = await node.admit("ours", {"example.com/before": 3})
    held = await node.cards_of(pod)
    await node.stop()
    (node.state / "checkpoint.json").unlink()

    await node.start(whole(XPU))

    await node.counts({XPU: (1, 1)})
    other = await node.admit("other", {XPU: 1})
    assert not held & await node.cards_of(other)
    await node.refused("one-more", {XPU: 1})
    await node.kubelet.delete(pod.uid)
    await node.counts({XPU: (4, 4)})


async def test_a_pod_of_another_plugin_holds_its_card_whatever_its_resource_is_called(node: Node) -> None:
    uuids = node.cards.uuids
    await served_before(node, "other.example/gpu", [[f"{uuids[0]}::{n}" for n in range(4)]], 1)

    await node.start(whole(XPU))

    await node.counts({XPU: (3, 3)})
    view = await node.until(in_use)
    assert [(it.resource, it.cards, it.source) for it in in_use(view)] == [
        ("other.example/gpu", (uuids[0],), AllocationSource.KUBELET)
    ]
    assert "other.example/gpu" not in view.resources, "it is not ours to serve"


async def test_the_first_list_is_without_the_cards_of_other_plugins_pods(node: Node, sim: SimKubelet) -> None:
    uuids = node.cards.uuids
    await served_before(node, "other.example/gpu", [[f"{uuids[0]}::{n}" for n in range(4)]], 1)

    await node.start(whole(XPU))
    await node.counts({XPU: (3, 3)})

    assert sim.journal.lists[XPU] == 1


async def test_a_pod_that_another_plugin_gives_a_card_while_we_serve_holds_it_too(node: Node) -> None:
    await node.start(shared(XPU, 4))
    await node.counts({XPU: (16, 16)})
    ours = await node.admit("ours", {XPU: 1})
    await node.until(lambda it: confirmed(it, ours))  # by then it is known what the kubelet had before
    used = await node.cards_of(ours)

    async with TinyPlugin(node.kubelet.plugin_dir, "other.example/gpu") as plugin:
        await plugin.publish({next(it for it in node.cards.uuids if it not in used): "Healthy"})
        await plugin.register()
        await node.counts({"other.example/gpu": (1, 1)})
        pod = await node.admit("theirs", {"other.example/gpu": 1})

        await node.counts({XPU: (12, 12)})
        await node.kubelet.delete(pod.uid)
        await node.counts({XPU: (16, 16)})


async def test_devices_that_are_no_cards_are_neither_held_nor_said(node: Node) -> None:
    async with TinyPlugin(node.kubelet.plugin_dir, "nic.example/vf") as plugin:
        await plugin.publish({"0000:99:00.2": "Healthy", "0": "Healthy"})
        await plugin.register()
        await node.counts({"nic.example/vf": (2, 2)})
        await node.admit("net", {"nic.example/vf": 2})

        await node.start(whole(XPU))
        await node.counts({XPU: (4, 4)})
        pod = await node.admit("ours", {XPU: 1})
        view = await node.until(lambda it: confirmed(it, pod))

    assert len(view.allocations) == 1
    assert view.unknown_cards == ()


GPU_MANAGER = "tencent.com/vcuda-core"


@ONLY_NVIDIA
async def test_a_card_of_gpu_managers_pod_is_given_out_once_that_has_ended(node: Node) -> None:
    uuids = node.cards.uuids
    async with TinyPlugin(node.kubelet.plugin_dir, GPU_MANAGER, socket="vcore.sock") as plugin:
        plugin.variables = {"NVIDIA_VISIBLE_DEVICES": uuids[2]}
        await plugin.publish({f"{GPU_MANAGER}-{n}": "Healthy" for n in range(400)})
        await plugin.register()
        await node.counts({GPU_MANAGER: (400, 400)})
        old = await node.admit("old", {GPU_MANAGER: 30})
    await node.unserved()

    await node.start(whole(XPU))

    await node.counts({XPU: (3, 3)})
    others = await node.admit("others", {XPU: 3})
    assert uuids[2] not in await node.cards_of(others)
    await node.kubelet.delete(old.uid)
    await node.counts({XPU: (4, 4)})


@ONLY_NVIDIA
async def test_nothing_is_registered_while_gpu_manager_runs(node: Node) -> None:
    async with TinyPlugin(node.kubelet.plugin_dir, GPU_MANAGER, socket="vcore.sock") as plugin:
        await plugin.publish({f"{GPU_MANAGER}-0": "Healthy"})
        await plugin.register()
        await node.start(whole(XPU))
        view = await node.until(lambda it: it.other_plugins and XPU in it.sessions)
        assert "vcore.sock" in view.other_plugins[XPU]
        assert not view.sessions[XPU].registrations

    await node.counts({XPU: (4, 4)})


@ONLY_NVIDIA
@pytest.mark.parametrize("foreign", ["refuse", "yield"])
async def test_a_pod_with_a_card_that_is_not_here_is_said_and_keeps_only_who_yields_from_registering(
    node: Node, foreign: str
) -> None:
    async with TinyPlugin(node.kubelet.plugin_dir, "nvidia.com/gpu.shared") as plugin:
        plugin.variables = {"NVIDIA_VISIBLE_DEVICES": "GPU-taken-out"}
        await plugin.publish({"GPU-taken-out": "Healthy"})
        await plugin.register()
        await node.counts({"nvidia.com/gpu.shared": (1, 1)})
        old = await node.admit("old", {"nvidia.com/gpu.shared": 1})
    await node.unserved()
    its = {**node.cards.settings, "enabled": True, "foreign": foreign, "resources": [whole(XPU)]}
    node.configure(nvidia=its)
    node.pace = replace(node.pace, reconcile=0.2)

    await node.start()

    view = await node.until(lambda it: it.unknown_cards and XPU in it.sessions)
    ((vendor, entry),) = view.unknown_cards
    assert (vendor, entry.resource, entry.uid) == ("nvidia", "nvidia.com/gpu.shared", old.uid)
    if foreign == "yield":
        await node.until(lambda it: it.sessions[XPU].state == "yielded")
        await node.kubelet.delete(old.uid)
    await node.counts({XPU: (4, 4)})


@ONLY_METAX
async def test_no_slice_is_made_on_a_card_of_which_a_pod_of_before_has_all(node: Node) -> None:
    assert isinstance(node.cards, MetaX)
    node.cards.mode, uuids = "sgpu", node.cards.uuids
    await served_before(node, "metax-tech.com/gpu", [[uuids[0]]], 1)
    node.configure()

    await node.start()

    view = await node.until(lambda it: in_use(it) and "metax-tech.com/sgpu" in it.resources)
    (it,) = in_use(view)
    assert (it.vendor, it.cards) == ("metax", (uuids[0],))
    assert uuids[0] not in {card.uuid for card in view.resources["metax-tech.com/sgpu"].cards}


@pytest.mark.parametrize("writing", WRITINGS)
async def test_a_pod_of_another_plugin_keeps_its_units_and_the_others_of_its_card_are_served(
    node: Node, simulated: Simulated, writing: str
) -> None:
    simulated.sized(16 * GB, 16 * GB)
    old = await served_before(node, UNITS, listed(node, writing, 16, 16), 6)

    await node.start(by_memory(UNITS, "1"))

    view = await node.until(lambda it: confirmed(it, old.pod))
    (it,) = in_use(view)
    assert (it.source, it.unit, {*it.cards}) == (AllocationSource.KUBELET, "1", {node.cards.uuids[0]})
    assert old.ids == {*it.ids}
    await node.counts({UNITS: (32, 32)})
    refused = await node.refused("too-many", {UNITS: 17})
    assert "the largest free card has 16" in refused.message
    beside = await node.admit("beside", {UNITS: 10})
    assert await node.cards_of(beside) == {node.cards.uuids[0]}
    full = await node.admit("the-other-card", {UNITS: 16})
    assert await node.cards_of(full) == {node.cards.uuids[1]}
    await node.refused("one-more", {UNITS: 1})
    await node.kubelet.delete(old.pod.uid)
    await node.until(lambda it: len(in_use(it)) == 2)
    await node.counts({UNITS: (32, 32)})
    last = await node.admit("last", {UNITS: 6})
    assert await node.cards_of(last) == {node.cards.uuids[0]}


@pytest.mark.parametrize("again", ["the agent", "the kubelet", "its checkpoint lost"])
async def test_what_a_pod_of_another_plugin_has_outlasts_every_restart(
    node: Node, simulated: Simulated, again: str
) -> None:
    simulated.sized(16 * GB)
    old = await served_before(node, UNITS, listed(node, "{minor}-{n}", 16), 6)
    await node.start(by_memory(UNITS, "1"))
    await node.until(lambda it: confirmed(it, old.pod))
    await node.counts({UNITS: (16, 16)})
    beside = await node.admit("beside", {UNITS: 4})
    await node.until(lambda it: confirmed(it, beside))

    if again == "the kubelet":
        await node.kubelet.restart(readmit=True)
    else:
        await node.stop()
        if again == "its checkpoint lost":
            (node.state / "checkpoint.json").unlink()
        await node.start()

    await node.until(lambda it: confirmed(it, old.pod, beside))
    await node.counts({UNITS: (16, 16)})
    assert not node.kubelet.refused
    assert set((await node.kubelet.health(old.pod.uid)).values()) == {"Healthy"}
    refused = await node.refused("seven", {UNITS: 7})
    assert "6" in refused.message
    rest = await node.admit("rest", {UNITS: 6})
    await node.until(lambda it: confirmed(it, rest))
    await node.kubelet.delete(old.pod.uid)
    await node.until(lambda it: confirmed(it, rest) and not confirmed(it, old.pod))
    await node.counts({UNITS: (16, 16)})


async def test_units_of_another_plugin_in_another_size_keep_that_size_until_their_pod_has_ended(
    node: Node, simulated: Simulated
) -> None:
    simulated.sized(16 * GB, 16 * GB)
    old = await served_before(node, UNITS, listed(node, "{minor}-{n}", 160, 160), 60)

    await node.start(by_memory(UNITS, "1"))

    view = await node.until(lambda it: it.kept_units and confirmed(it, old.pod))
    assert [it.unit for it in in_use(view)] == ["0.1"]
    await node.counts({UNITS: (320, 320)})
    await node.kubelet.delete(old.pod.uid)
    await node.counts({UNITS: (32, 32)})


async def test_a_card_that_another_plugin_shared_in_no_size_of_ours_waits_and_says_so(
    node: Node, simulated: Simulated
) -> None:
    simulated.sized(16 * GB, 16 * GB)
    old = await served_before(node, UNITS, listed(node, "{minor}-{n}", 15, 15), 6)

    await node.start(by_memory(UNITS, "1"))

    await node.until(lambda it: confirmed(it, old.pod))
    await node.counts({UNITS: (6 + 16, 6 + 16)})
    waits = "waits for 1 card that pods hold in shares of another plugin's size: default/old"
    assert node.view.resource_waits[UNITS] == (f"{UNITS} {waits}",)
    unit = await node.admit("unit", {UNITS: 1})
    assert await node.cards_of(unit) == {node.cards.uuids[1]}
    await node.kubelet.delete(old.pod.uid)
    await node.counts({UNITS: (32, 32)})
    await node.until(lambda it: not it.resource_waits)


async def test_a_whole_card_goes_to_nobody_by_the_share_of_one_of_two_pods_that_has_ended(node: Node) -> None:
    """The kubelet takes it for free before we see its pod gone, and the other pod has the card still."""
    uuids = node.cards.uuids
    async with TinyPlugin(node.kubelet.plugin_dir, XPU) as plugin:
        await plugin.publish({f"{uuids[0]}::{n}": "Healthy" for n in range(2)})
        await plugin.register()
        await node.counts({XPU: (2, 2)})
        one, two = [await node.admit(name, {XPU: 1}) for name in ("one", "two")]
    await node.unserved()
    node.pace = replace(node.pace, reconcile=600.0)
    await node.start(whole(XPU))
    await node.counts({XPU: (5, 5)})
    await node.admit("others", {XPU: 3})

    await node.kubelet.delete(one.uid)

    refused = await node.refused("new", {XPU: 1})
    assert "is listed only for the pod that held it" in refused.message
    assert await node.kubelet.devices(two.uid)


@pytest.mark.parametrize(("theirs", "ours", "counts"), [(6, 6, 12), (4, 6, 3 + 6)])
async def test_replicas_of_another_plugin_are_given_to_nobody_else(
    node: Node, theirs: int, ours: int, counts: int, simulated: Simulated
) -> None:
    simulated.sized(16 * GB, 16 * GB)
    old = await served_before(node, UNITS, listed(node, "{minor}-{n}", theirs, theirs), 3)

    await node.start(shared(UNITS, ours, policy="packed", ids="minor"))

    await node.until(lambda it: confirmed(it, old.pod))
    await node.counts({UNITS: (counts, counts)})
    pods = [await node.admit(f"pod-{n}", {UNITS: 1}) for n in range(counts - 3)]
    on = [(await node.cards_of(pod)).pop() for pod in pods]
    assert on.count(node.cards.uuids[0]) == (ours - 3 if theirs == ours else 0)
    await node.refused("one-more", {UNITS: 1})
    await node.kubelet.delete(old.pod.uid)
    await node.counts({UNITS: (12, 12)})


@pytest.mark.parametrize("writing", ["{uuid}", "{minor}"])
async def test_a_whole_card_of_another_plugins_pod_is_nobody_elses(node: Node, writing: str) -> None:
    ids = [writing.format(uuid=uuid, minor=n) for n, uuid in enumerate(node.cards.uuids)]
    old = await served_before(node, UNITS, [ids[:1], ids[1:]], 1)

    await node.start(whole(UNITS))

    await node.until(lambda it: confirmed(it, old.pod))
    await node.counts({UNITS: (4, 4)})
    pods = [await node.admit(f"pod-{n}", {UNITS: 1}) for n in range(3)]
    assert {card for pod in pods for card in await node.cards_of(pod)} == {*node.cards.uuids[1:]}
    await node.refused("one-more", {UNITS: 1})
    await node.kubelet.delete(old.pod.uid)
    own = {*node.cards.uuids}
    await node.until(lambda it: {one for card in it.resources[UNITS].cards for one in card} == own)
    await node.counts({UNITS: (4, 4)})

    async def admitted() -> bool:
        """As a controller makes a pod anew that came before the kubelet heard of the list."""
        return (await node.kubelet.admit(Pod("last", (Container({UNITS: 1}),)))).admitted

    assert await eventually(admitted)


# Enflame's own plugins


@pytest.fixture
def enflame(node: Node) -> Enflame:
    assert isinstance(node.cards, Enflame)
    return node.cards


def dialect(enflame: Enflame, name: str) -> None:
    enflame.sized(*[16 * GB] * 4)
    enflame.dialect = name


@ONLY_ENFLAME
@pytest.mark.parametrize(
    ("speaks", "resource", "writing", "of"),
    [
        ("gcushare-v1", MEMORY, "{uuid}-_-{n}", 16),
        ("gcushare-v1", MEMORY, "{minor}-{n}", 16),
        ("gcushare-v4", SHARED, "{minor}-{n}", 6),
    ],
)
async def test_what_gcushare_gave_a_pod_stays_its_own_in_our_hands(
    node: Node, enflame: Enflame, speaks: str, resource: str, writing: str, of: int
) -> None:
    dialect(enflame, speaks)
    cards = [
        [writing.format(uuid=uuid, minor=minor, n=n) for n in range(of)]
        for uuid, minor in zip(enflame.uuids, enflame.minors, strict=True)
    ]
    old = await served_before(node, resource, cards, 2)
    node.configure()

    await node.start()

    view = await node.until(lambda it: confirmed(it, old.pod))
    assert [it.cards[0] for it in in_use(view)] == [enflame.uuids[0]]
    await node.counts({resource: (4 * of, 4 * of), GCU: (4, 3)})
    beside = await node.admit("beside", {resource: of - 2})
    assert await node.cards_of(beside) == {enflame.uuids[0]}
    assert "in-other-mode" not in str((await node.kubelet.health(old.pod.uid)).values())
    await node.kubelet.delete(old.pod.uid)
    await node.kubelet.delete(beside.uid)
    await node.counts({resource: (4 * of, 4 * of), GCU: (4, 4)})


@dataclass(frozen=True, slots=True)
class Gift:
    """What GCUShare gave a pod: IDs of any cards, which the kubelet chose, and what it told it."""

    name: str
    ids: tuple[str, ...]
    variables: Mapping[str, str]


async def given_before(node: Node, resource: str, every: list[str], *gifts: Gift) -> list[Pod]:
    """Let GCUShare serve these IDs and give each pod its own; then it is gone."""
    pods: list[Pod] = []
    async with TinyPlugin(node.kubelet.plugin_dir, resource) as plugin:
        taken: list[str] = []
        for gift in gifts:
            taken += gift.ids
            plugin.variables = gift.variables
            # What is listed leaves the kubelet no other choice.
            await plugin.publish(dict.fromkeys(taken, "Healthy"))
            if not pods:
                await plugin.register()
            await node.counts({resource: (len(taken), len(taken))})
            pods.append(await node.admit(gift.name, {resource: len(gift.ids)}))
        await plugin.publish(dict.fromkeys(every, "Healthy"))
        await node.counts({resource: (len(every), len(every))})
    await node.unserved()
    return pods


def gift(enflame: Enflame, name: str, writing: str, ids: list[tuple[int, int]], told: str) -> Gift:
    """Slot and number of each ID."""
    its = (writing.format(uuid=enflame.uuids[it], minor=enflame.minors[it], n=n) for it, n in ids)
    return Gift(name, tuple(its), {enflame.visible: told})


def every(enflame: Enflame, writing: str, of: int) -> list[str]:
    cards = zip(enflame.uuids, enflame.minors, strict=True)
    return [writing.format(uuid=uuid, minor=minor, n=n) for uuid, minor in cards for n in range(of)]


async def restarted(node: Node, *pods: Pod) -> None:
    """Let both sides begin anew, and us without what we had written down."""
    await node.stop()
    (node.state / "checkpoint.json").unlink()
    await node.kubelet.restart(readmit=True)
    await node.start()
    await node.until(lambda it: confirmed(it, *pods))
    assert not node.kubelet.refused


@ONLY_ENFLAME
@pytest.mark.parametrize("count", [8])
@pytest.mark.parametrize(
    ("speaks", "resource", "writing", "of"),
    [
        ("gcushare-v1", MEMORY, "{uuid}-_-{n}", 16),
        ("gcushare-v1", MEMORY, "{minor}-{n}", 16),
        ("gcushare-v4", SHARED, "{minor}-{n}", 6),
    ],
)
async def test_what_gcushare_gave_on_another_card_than_its_ids_say_is_counted_there_and_nowhere_else(
    node: Node, enflame: Enflame, speaks: str, resource: str, writing: str, of: int
) -> None:
    enflame.sized(*[16 * GB] * 8)
    enflame.dialect = speaks
    real, size = enflame.uuids[3], of // 2 - 1
    told = str(enflame.minors[3])
    seven = [(slot % 7, 2 + slot // 7) for slot in range(size)]
    old = await given_before(
        node,
        resource,
        every(enflame, writing, of),
        gift(enflame, "spread", writing, seven, told),
        gift(enflame, "beside", writing, [(5, n) for n in range(2)], told),
    )
    node.configure()

    await node.start()

    view = await node.until(lambda it: confirmed(it, *old))
    assert [it.cards for it in in_use(view)] == [(real,), (real,)]
    everything = {resource: (8 * of, 8 * of)}
    await node.counts({**everything, GCU: (8, 7)})
    await restarted(node, *old)
    await node.counts(everything)
    others = [await node.admit(f"full-{n}", {resource: of}) for n in range(7)]
    assert {card for it in others for card in await node.cards_of(it)} == {*enflame.uuids} - {real}
    await node.refused("too-many", {resource: of - size - 1})
    rest = await node.admit("rest", {resource: of - size - 2})
    assert await node.cards_of(rest) == {real}
    await node.refused("one-more", {resource: 1})
    await node.kubelet.delete(old[0].uid)
    last = await node.admit("last", {resource: size})
    assert await node.cards_of(last) == {real}
    await node.until(lambda it: confirmed(it, old[1], last, *others))
    await node.counts(everything)


@ONLY_ENFLAME
@pytest.mark.parametrize("told", ["no-gcu-has-2GiB-to-run", "none", "all", "17", "1,1", " 1"])
async def test_an_answer_of_gcushare_that_names_no_card_is_counted_by_its_ids_and_said(
    node: Node, enflame: Enflame, told: str
) -> None:
    dialect(enflame, "gcushare-v1")
    writing = "{minor}-{n}"
    (old,) = await given_before(
        node, MEMORY, every(enflame, writing, 16), gift(enflame, "old", writing, [(0, 0), (0, 1)], told)
    )
    node.configure()

    with capture_logs() as logs:
        await node.start()
        view = await node.until(lambda it: confirmed(it, old))

    assert [it.cards for it in in_use(view)] == [(enflame.uuids[0],)]
    said = [it["reason"] for it in logs if it["event"] == "allocation counted on the cards of its IDs"]
    assert [it.partition(" names ")[0] for it in said] == ["its answer"]
    await node.counts({MEMORY: (64, 64)})


@ONLY_ENFLAME
async def test_a_slice_of_gcushares_making_stays_foreign_and_is_not_made_again(
    node: Node, enflame: Enflame
) -> None:
    """Its pod's answer names that slice alone, so that another one would lie idle on the card."""
    enflame.sized(*[S60] * 4)
    enflame.dialect = "gcushare-v4"
    writing, slot = "{minor}-{n}", 2
    theirs = enflame.stub.make_instance(slot)
    told = {enflame.visible: str(enflame.minors[slot]), "TOPS_VISIBLE_DEVICES": f"DRS-{theirs.uuid}"}
    ids = tuple(writing.format(minor=enflame.minors[it], n=0) for it in (0,))
    (old,) = await given_before(node, DRS, every(enflame, writing, 6), Gift("old", ids, told))
    node.configure()

    await node.start()

    view = await node.until(lambda it: confirmed(it, old) and it.sessions[DRS].state == "registered")
    assert [(it.cards, it.partitions) for it in in_use(view)] == [((enflame.uuids[slot],), ())]
    await node.kubelet.run_options(old.uid, "main")
    assert [it.uuid for it in enflame.slices] == [theirs.uuid]
    await node.kubelet.delete(old.uid)
    await node.until(lambda it: not in_use(it))
    assert [it.uuid for it in enflame.slices] == [theirs.uuid]


@ONLY_ENFLAME
@pytest.mark.parametrize(("resource", "writing"), [(MEMORY, "{}-0"), ("enflame-tech.com/gcu", "{}")])
async def test_a_card_of_a_resource_that_is_ours_no_more_waits_for_its_pod(
    node: Node, enflame: Enflame, resource: str, writing: str
) -> None:
    dialect(enflame, "none")
    ids = [writing.format(it) for it in enflame.minors]
    old = await served_before(node, resource, [ids[:1], ids[1:]], 1)
    node.configure()

    await node.start()

    await node.until(lambda it: confirmed(it, old.pod))
    await node.counts({GCU: (3, 3), resource: (1, 1)})
    waits = f"{GCU} waits for 1 card that pods hold as {resource}: default/old"
    assert node.view.resource_waits[GCU] == (waits,)
    await node.kubelet.delete(old.pod.uid)
    await node.counts({GCU: (4, 4)})


@ONLY_ENFLAME
async def test_a_whole_card_of_enflames_own_plugin_stays_its_pods(node: Node, enflame: Enflame) -> None:
    dialect(enflame, "gcushare-v1")
    minors = [str(it) for it in enflame.minors]
    old = await served_before(node, GCU, [minors[:1], minors[1:]], 1)
    node.configure()

    await node.start()

    await node.until(lambda it: confirmed(it, old.pod))
    await node.counts({GCU: (4, 4), MEMORY: (64, 48)})
    await node.kubelet.delete(old.pod.uid)
    await node.counts({GCU: (4, 4), MEMORY: (64, 64)})


@ONLY_ENFLAME
@pytest.mark.parametrize("foreign", ["refuse", "yield"])
async def test_beside_enflames_plugin_nothing_is_registered_until_it_has_gone(
    node: Node, enflame: Enflame, foreign: str
) -> None:
    dialect(enflame, "none")
    minors = [str(it) for it in enflame.minors]
    enflame.said = {"foreign": foreign}
    node.configure()

    async with TinyPlugin(node.kubelet.plugin_dir, GCU, "enflame.sock") as plugin:
        await plugin.publish(dict.fromkeys(minors[:3], "Healthy"))
        await plugin.register()
        await node.counts({GCU: (3, 3)})
        await node.start()
        state = "yielded" if foreign == "yield" else "refused"
        view = await node.until(lambda it: GCU in it.sessions and it.sessions[GCU].state == state)
        assert "another device plugin serves cards of enflame at enflame.sock" in view.other_plugins[GCU]
        assert any("enflame.sock" in it for it in view.troubles) == (foreign == "refuse")
        pod = await node.admit("of the other", {GCU: 1})
        assert len(plugin.allocated) == 1
        assert node.view.sessions[GCU].registrations == 0

    await node.until(lambda it: confirmed(it, pod) and not it.troubles)
    await node.counts({GCU: (4, 4)})
    ours = [await node.admit(f"ours-{n}", {GCU: 1}) for n in range(3)]
    had = {card for it in ours for card in await node.cards_of(it)}
    assert had == {*enflame.uuids} - {enflame.named(plugin.allocated[0][0])}
    await node.refused("one-more", {GCU: 1})


@EVERY_RELEASE
@ONLY_ENFLAME
async def test_beside_a_plugin_of_another_name_that_serves_the_cards_nothing_is_registered_until_it_has_gone(
    node: Node, enflame: Enflame
) -> None:
    dialect(enflame, "none")
    node.configure()

    async with TinyPlugin(node.kubelet.plugin_dir, SHARED, "of-our-own-make.sock") as plugin:
        await plugin.publish({f"{minor}-{n}": "Healthy" for minor in enflame.minors for n in range(6)})
        await plugin.register()
        await node.counts({SHARED: (24, 24)})
        # The kubelet writes down what a plugin lists with the next pod that it judges.
        await node.admit("of the other", {SHARED: 1})
        await node.start()
        view = await node.until(lambda it: GCU in it.sessions and it.sessions[GCU].state == "refused")
        assert f"another device plugin serves cards of enflame as {SHARED}" in view.other_plugins[GCU]
        assert node.view.sessions[GCU].registrations == 0

    await node.until(lambda it: not it.troubles)
    await node.counts({GCU: (3, 3)})
