"""MetaX's cards as slices: each container has the one that was chosen for it, and none is left behind."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace
from played_koordinator.scheduler import BOUND
from support import recorded_pods

from agent.core.model import AllocationState
from agent.schedulers.hami.pod_annotations import METAX_ALLOCATED
from agent.schedulers.koordinator.allocated_annotation import ALLOCATED
from agent.testing.node_kubelet import Container, Pod
from agent.vendor_api.agent import State
from agent.vendors.metax.agent.nodedevices import ANNOTATION

from .conftest import ONLY_METAX
from .koordination import Koordinator
from .metax import DOCUMENT_001, POLICY, SGPU, MetaX, gets, plays_document_001
from .node import Node, confirmed, device, in_use, one, owned_by, released

pytestmark = ONLY_METAX

CORE, MEMORY, RATIO = (f"koordinator.sh/{it}" for it in ("gpu-core", "gpu-memory", "gpu-memory-ratio"))
GIB = 1 << 30
POLICIES = ("best-effort", "fixed-share", "burst-share")


@pytest.fixture
def metax(node: Node) -> MetaX:
    assert isinstance(node.cards, MetaX)
    node.cards.mode = "sgpu"
    return node.cards


async def served(node: Node, **settings: Any) -> None:
    assert isinstance(node.cards, MetaX)
    node.cards.more = settings
    node.configure()
    await node.start()
    count = 16 * len(node.cards.uuids)
    await node.counts({SGPU: (count, count)})


def written(metax: MetaX, *cards: int, core: int = 10, memory: int = GIB, at: int = 0) -> dict[str, str]:
    """What koord-scheduler writes on a pod that it gives so much of each of these cards."""
    ratio = memory * 100 // metax.memory
    resources = {CORE: str(core), MEMORY: str(memory), RATIO: str(ratio)}
    gpu = [{"minor": it, "id": metax.uuids[it], "resources": resources} for it in cards]
    return {ALLOCATED: json.dumps({"gpu": gpu}), BOUND: str(1795210468 * 10**9 + at)}


def asking(name: str, core: int = 10, memory: int = GIB, count: int = 1) -> Pod:
    limits = {SGPU: count, CORE: core * count, MEMORY: memory * count, "koordinator.sh/gpu.shared": count}
    return Pod(name, (Container(limits),))


async def bound(
    node: Node, metax: MetaX, name: str, card: int, policy: str = "", core: int = 10, memory: int = GIB
) -> Pod:
    """A pod that the scheduler put on this card."""
    pod = asking(name, core, memory)
    said = {POLICY: policy} if policy else {}
    node.shows(pod, **written(metax, card, core=core, memory=memory), **said)
    return pod


def told(node: Node) -> list[Mapping[str, Any]]:
    """What the Node's annotation says of the cards, in their order."""
    wanted = node.agent.parts.publisher.annotations.value
    found: list[Mapping[str, Any]] = json.loads((wanted and wanted.values.get(ANNOTATION)) or "[]")
    return found


async def test_the_pod_of_document_001_gets_the_slice_that_was_chosen_and_leaves_none(
    koordinator: Koordinator, metax: MetaX
) -> None:
    await koordinator.starts({SGPU: 64})

    await plays_document_001(koordinator, metax)


async def test_the_recorded_pods_of_koordinator_get_the_slices_that_it_chose(
    node: Node, metax: MetaX
) -> None:
    """In their order; two of them want another policy than their card has by then."""
    await served(node)
    here = dict(zip(recorded_pods.devices("metax1"), metax.uuids, strict=True))
    got: dict[str, Any] = {}
    for case in (it for it in recorded_pods.cases("metax1") if it.scheduled):
        said = dict(case.annotations)
        for there, uuid in here.items():
            said = {key: text.replace(there, uuid) for key, text in said.items()}
        pod = Pod(case.name, tuple(Container(dict(its), name) for name, its in case.limits.items()))
        node.shows(pod, **said)
        verdict = await node.kubelet.admit(pod)
        if not verdict.admitted:
            got[case.name] = verdict.message
            node.forgets(pod)
            continue
        marks = [await node.start_of(pod, name) for name, its in case.limits.items() if SGPU in its]
        got[case.name] = [(it.slot, it.compute, it.vram) for mark in marks for it in metax.marked(mark)]

    refused = {name: got.pop(name) for name in ("m-burst", "m-ratio")}
    assert got == {
        "m-doc001": [(0, 10, 1024)],
        "m-best": [(1, 5, 1024)],
        "m-full": [(2, 100, 65536)],
        "m-two-ctrs": [(3, 15, 2048), (1, 15, 2048)],
        "m-sidecar": [(1, 10, 1024)],
    }
    for name, policy in (("m-burst", "burst-share"), ("m-ratio", "best-effort")):
        assert f"is {policy}, and the slices on {metax.uuids[0]} are fixed-share" in refused[name]
    assert [metax.policy(it) for it in (0, 1, 3)] == ["fixed-share", "best-effort", "best-effort"]


@pytest.mark.parametrize("qos", ["", *POLICIES])
async def test_the_first_slice_on_an_idle_card_sets_its_policy(node: Node, metax: MetaX, qos: str) -> None:
    await served(node)
    metax.be(1, "burst-share" if qos != "burst-share" else "fixed-share")

    await node.admit_pod(await bound(node, metax, "first", 1, qos))

    assert metax.policy(1) == (qos or "best-effort")


async def test_a_policy_that_there_is_not_is_refused_with_the_three(node: Node, metax: MetaX) -> None:
    await served(node)

    verdict = await node.kubelet.admit(await bound(node, metax, "odd", 0, "fixed"))

    assert not verdict.admitted
    assert "is 'fixed'; there are best-effort, fixed-share, burst-share" in verdict.message
    assert metax.slices == []
    assert in_use(node.view) == []


async def test_a_pod_of_another_policy_than_its_cards_is_refused_with_both(node: Node, metax: MetaX) -> None:
    await served(node)
    await node.admit_pod(await bound(node, metax, "first", 0, "fixed-share"))

    verdict = await node.kubelet.admit(await bound(node, metax, "second", 0, "burst-share"))

    assert not verdict.admitted
    words = f"is burst-share, and the slices on {metax.uuids[0]} are fixed-share"
    assert words in verdict.message
    assert len(metax.slices) == 1
    assert metax.policy(0) == "fixed-share"
    view = await node.until(lambda it: len(in_use(it)) == 1)
    assert [it.resource for it in in_use(view)] == [SGPU]


async def test_once_a_card_is_idle_it_takes_another_policy(node: Node, metax: MetaX) -> None:
    await served(node)
    first = await node.admit_pod(await bound(node, metax, "first", 0, "fixed-share"))
    await node.until(lambda it: confirmed(it, first))
    await node.kubelet.delete(first.uid)
    node.hides()
    await node.until(lambda it: released(it, first))

    await node.admit_pod(await bound(node, metax, "second", 0, "burst-share"))

    assert metax.policy(0) == "burst-share"


async def test_a_whole_card_is_a_slice_of_all_of_it_and_asks_for_no_policy(node: Node, metax: MetaX) -> None:
    await served(node)
    metax.be(2, "fixed-share")

    await node.admit_pod(await bound(node, metax, "whole", 2, core=100, memory=metax.memory))

    [made] = metax.slices
    assert (made.slot, made.compute, made.vram) == (2, 100, metax.memory >> 20)
    assert metax.policy(2) == "fixed-share"


async def test_a_card_that_is_full_of_slices_stays_in_service(node: Node, metax: MetaX) -> None:
    await served(node)

    pods = [await node.admit_pod(await bound(node, metax, f"one-{n}", 0, core=6)) for n in range(16)]

    await node.until(lambda it: confirmed(it, *pods))
    await node.until(lambda _: "availableDevCount" not in told(node)[0])
    assert told(node)[0]["availableCompute"] == 4
    assert len({it.minor for it in metax.slices}) == 16
    late = await node.kubelet.admit(await bound(node, metax, "late", 0))
    assert not late.admitted
    await node.admit_pod(await bound(node, metax, "elsewhere", 1))
    assert node.restarts == 0


async def test_containers_of_one_pod_have_a_slice_each(node: Node, metax: MetaX) -> None:
    await served(node)
    limits = {SGPU: 1, CORE: 20, MEMORY: 2 * GIB, "koordinator.sh/gpu.shared": 1}
    pod = Pod("both", (Container(dict(limits), "a"), Container(dict(limits), "b")))
    node.shows(pod, **written(metax, 3, 1, core=20, memory=2 * GIB))

    await node.admit_pod(pod)

    marks = [await node.start_of(pod, it) for it in "ab"]
    found = [[(it.slot, it.compute, it.vram) for it in metax.marked(mark)] for mark in marks]
    assert found == [[(3, 20, 2048)], [(1, 20, 2048)]]
    nodes = [(await gets(node, pod, it)).nodes for it in "ab"]
    assert nodes[0] != nodes[1]


async def test_a_container_with_more_than_one_partial_slice_is_refused_naming_the_limit(
    node: Node, metax: MetaX
) -> None:
    await served(node)
    pod = asking("two", count=2)
    node.shows(pod, **written(metax, 0, 1))

    verdicts = [await node.kubelet.admit(it) for it in (pod, one("unclaimed", SGPU, 2))]

    for it in verdicts:
        assert not it.admitted
        assert "the limit is one partial sGPU per container" in it.message
    assert metax.slices == []


async def test_a_slice_that_no_scheduler_chose_is_an_equal_part_of_one_card(node: Node, metax: MetaX) -> None:
    await served(node)

    await node.admit("plain", {SGPU: 1})

    [made] = metax.slices
    assert (made.compute, made.vram) == (6, (metax.memory >> 20) // 16)


@pytest.mark.parametrize("how", ["whole", "refuse"])
async def test_what_such_a_slice_is_can_be_set(node: Node, metax: MetaX, how: str) -> None:
    await served(node, unclaimed=how)

    verdict = await node.kubelet.admit(one("plain", SGPU))

    assert [it.compute for it in metax.slices] == ([100] if how == "whole" else [])
    assert verdict.admitted is (how == "whole")
    assert how == "whole" or "no scheduler says how much of a card" in verdict.message


async def test_a_slice_comes_as_device_nodes_that_no_variable_can_widen(node: Node, metax: MetaX) -> None:
    await served(node)
    pods = [await node.admit_pod(await bound(node, metax, name, 0)) for name in ("one", "other")]

    nodes = {}
    for pod in pods:
        mark = await node.start_of(pod)
        [made] = metax.marked(mark)
        it = await gets(node, pod, "main")
        assert it.nodes == {"/dev/mxcd", f"/dev/dri/renderD{made.minor}"}
        assert it.names == {f"metax-tech.com/sgpu={mark}"}
        assert set(it.env) <= {metax.visible}
        nodes[pod.name] = it.nodes
    assert nodes["one"] & nodes["other"] == {"/dev/mxcd"}


async def test_a_slice_whose_nodes_the_host_lacks_is_refused_with_path_and_setting(
    node: Node, metax: MetaX
) -> None:
    await served(node, sliceNodes=["/dev/mxsgpu{minor}"])

    verdict = await node.kubelet.admit(await bound(node, metax, "lost", 0))

    assert not verdict.admitted
    assert "/dev/mxsgpu" in verdict.message
    assert "sliceNodes" in verdict.message
    await node.until(lambda it: not in_use(it))
    assert metax.slices == []


async def test_shares_of_cards_of_two_sizes_are_parts_of_their_own(node: Node, metax: MetaX) -> None:
    metax.stub.memory(1, 32768)
    await served(node)

    for card in (0, 1):
        half = {CORE: "50", RATIO: "50"}
        gpu = [{"minor": card, "id": metax.uuids[card], "resources": half}]
        asked = Pod(
            f"half-of-{card}", (Container({SGPU: 1, CORE: 50, RATIO: 50, "koordinator.sh/gpu.shared": 1}),)
        )
        node.shows(asked, **{ALLOCATED: json.dumps({"gpu": gpu}), BOUND: "1795210468000000000"})
        await node.admit_pod(asked)

    assert sorted((it.slot, it.compute, it.vram) for it in metax.slices) == [(0, 50, 32768), (1, 50, 16384)]


async def test_the_room_of_a_slice_whose_pod_has_just_ended_is_the_next_pods(
    node: Node, metax: MetaX
) -> None:
    """A scheduler gives it away at once, and its policy with it; no grace has to pass."""
    node.pace = replace(node.pace, grace=3600.0, reconcile=3600.0)
    await served(node)
    first = await node.admit_pod(
        await bound(node, metax, "first", 0, "fixed-share", core=60, memory=40 * GIB)
    )
    await node.until(lambda it: confirmed(it, first) and owned_by(it, first))
    second = await bound(node, metax, "second", 0, "burst-share", core=40, memory=20 * GIB)
    early = await node.kubelet.admit(second)
    assert "is burst-share, and the slices" in early.message

    await node.kubelet.delete(first.uid)
    node.forgets(first)
    third = await bound(node, metax, "third", 0, "burst-share", core=60, memory=40 * GIB)
    node.forgets(second)
    await node.admit_pod(third)

    [made] = metax.slices
    assert (made.compute, made.vram, metax.policy(0)) == (60, 40960, "burst-share")
    assert made.alias == f"xpu-{await node.start_of(third)}"


@pytest.mark.parametrize("seed", range(3))
async def test_pods_of_one_second_have_their_slices_on_the_chosen_cards_in_whatever_order_they_come(
    node: Node, metax: MetaX, seed: int
) -> None:
    """No plugin is told whose an Allocate is; until its container starts a slice may lie on another card."""
    await served(node)
    sizes = {0: (60, 40), 1: (30, 70), 2: (50, 20, 30), 3: (100,)}
    chosen = [
        (asking(f"{core}-on-{card}", core, core * GIB // 2), card, core)
        for card, its in sizes.items()
        for core in its
    ]
    for pod, card, core in chosen:
        node.shows_one(pod, 7.0, written(metax, card, core=core, memory=core * GIB // 2))
    await node.kubelet.restart()
    await node.counts({SGPU: (64, 64)})

    order = random.Random(seed).sample([pod for pod, *_ in chosen], len(chosen))
    for n, pod in enumerate(order):
        await node.admit_pod(pod)
        if n % 3 == 2:  # some start before the next is admitted
            await node.start_of(pod)

    for pod, card, core in chosen:
        [made] = metax.marked(await node.start_of(pod))
        assert (pod.name, made.slot, made.compute) == (pod.name, card, core)
    assert len(metax.slices) == len(chosen)
    await node.until(lambda it: confirmed(it, *order) and not it.placement_mismatches)


# What others do to the card


async def test_slices_of_others_are_counted_and_never_touched(node: Node, metax: MetaX) -> None:
    theirs = metax.stub.make_slice(0, 4096, 30)
    other = metax.stub.make_slice(1, 128, 1, "somebody")
    await served(node)
    pod = await node.admit_pod(await bound(node, metax, "ours", 0))
    await node.until(lambda it: confirmed(it, pod))
    await node.until(lambda _: [it.get("availableCompute") for it in told(node)[:1]] == [60])
    assert [(it["totalDevCount"], it["totalCompute"]) for it in told(node)[:2]] == [(15, 70), (15, 99)]
    assert told(node)[0]["totalVRam"] == (metax.memory >> 20) - 4096
    await node.kubelet.delete(pod.uid)

    await node.until(lambda it: released(it, pod))

    assert [(it.id, it.alias) for it in metax.slices] == [(theirs.id, ""), (other.id, "somebody")]


async def test_a_slice_of_ours_that_nobody_owns_goes_and_those_in_use_stay(node: Node, metax: MetaX) -> None:
    await served(node)
    pod = await node.admit_pod(await bound(node, metax, "kept", 0))
    mark = await node.start_of(pod)

    metax.stub.make_slice(0, 128, 1, "xpu-0123456789abcdef")

    await node.until(lambda _: node.done("remove"))
    assert [it.alias for it in metax.slices] == [f"xpu-{mark}"]


async def test_a_slice_that_vanishes_is_told_and_made_again_when_its_container_starts(
    node: Node, metax: MetaX
) -> None:
    await served(node)
    pod = await node.admit_pod(await bound(node, metax, "running", 0, "burst-share", core=30))
    mark = await node.start_of(pod)
    await node.until(lambda it: confirmed(it, pod))
    other = await bound(node, metax, "next", 0, "burst-share", core=30)

    metax.lose()

    view = await node.until(lambda it: in_use(it)[0].reason)
    assert "gone from the hardware" in in_use(view)[0].reason
    assert metax.slices == []  # nothing is changed under a container that runs
    await node.admit_pod(other)
    assert len(metax.slices) == 1
    assert await node.start_of(pod) == mark
    [made] = metax.marked(mark)
    assert (made.compute, made.vram, metax.policy(0)) == (30, 1024, "burst-share")
    assert (await gets(node, pod, "main")).nodes == {"/dev/mxcd", f"/dev/dri/renderD{made.minor}"}


async def test_a_card_whose_slices_do_not_sum_is_unhealthy_and_given_to_nobody(
    node: Node, metax: MetaX
) -> None:
    await served(node)
    kept = await node.admit_pod(await bound(node, metax, "kept", 0))

    metax.stub.astray(0, 512)

    await node.counts({SGPU: (64, 48)})
    assert device(node.view, metax.uuids[0]).health.reason == "slices-do-not-sum"
    verdict = await node.kubelet.admit(await bound(node, metax, "late", 0))
    assert not verdict.admitted
    assert len(metax.slices) == 1
    metax.stub.astray(0, 0)
    await node.counts({SGPU: (64, 64)})
    assert confirmed(node.view, kept)


async def test_a_driver_that_is_loaded_anew_leaves_nobody_with_another_ones_slice(
    node: Node, metax: MetaX
) -> None:
    await served(node)
    pods = [await node.admit_pod(await bound(node, metax, name, 0)) for name in ("one", "two")]
    await node.until(lambda it: confirmed(it, *pods))
    metax.unload()
    await node.until(lambda it: it.snapshot.vendors[0].state == "unavailable")

    metax.load()

    await node.counts({SGPU: (64, 64)})
    view = await node.until(lambda it: all(one.reason for one in in_use(it)))
    assert [it.state for it in in_use(view)] == [AllocationState.DONE] * 2
    for pod in pods:
        mark = await node.start_of(pod)
        [made] = metax.marked(mark)
        assert (await gets(node, pod, "main")).nodes >= {f"/dev/dri/renderD{made.minor}"}


async def test_after_a_reboot_slices_are_made_again_before_their_containers_start_and_keep_their_names(
    node: Node, metax: MetaX
) -> None:
    await served(node)
    pods = [
        await node.admit_pod(await bound(node, metax, name, card, "fixed-share"))
        for name, card in (("one", 0), ("two", 0), ("three", 2))
    ]
    await node.until(lambda it: confirmed(it, *pods))
    before = {pod.name: await gets(node, pod, "main") for pod in pods}
    await node.stop()
    await node.kubelet.kill()
    metax.stub.reboot()
    node.reboot()

    await node.kubelet.start()
    await node.start()

    await node.counts({SGPU: (64, 64)})
    view = await node.until(lambda it: len(in_use(it)) == 3 and all(one.reason for one in in_use(it)))
    assert all("made again before the container starts" in it.reason for it in in_use(view))
    assert metax.slices == []
    for pod in reversed(pods):  # so that none has the number that it had
        mark = await node.start_of(pod)
        [made] = metax.marked(mark)
        after = await gets(node, pod, "main")
        assert after.nodes == {"/dev/mxcd", f"/dev/dri/renderD{made.minor}"}
        assert after.names == before[pod.name].names
        assert after.nodes.isdisjoint(before[pod.name].nodes - {"/dev/mxcd"})
    assert [metax.policy(it) for it in (0, 2)] == ["fixed-share"] * 2
    assert len(metax.slices) == 3


async def test_where_sysfs_can_not_be_written_no_slice_is_given_out_and_it_is_said(
    node: Node, metax: MetaX
) -> None:
    metax.stub.read_only()
    await served(node)

    verdict = await node.kubelet.admit(await bound(node, metax, "early", 0))

    assert not verdict.admitted
    assert "ead-only" in verdict.message
    await node.until(lambda it: any("sysfs is read-only" in one for one in it.troubles))
    metax.stub.writable()
    await node.admit_pod(await bound(node, metax, "late", 0))
    await node.until(lambda it: not any("sysfs" in one for one in it.troubles))


async def test_a_sick_card_makes_no_slice_and_keeps_those_it_has(node: Node, metax: MetaX) -> None:
    await served(node)
    kept = await node.admit_pod(await bound(node, metax, "kept", 1))
    await node.until(lambda it: confirmed(it, kept))

    metax.fail(1)

    await node.counts({SGPU: (64, 48)})
    assert device(node.view, metax.uuids[1]).health.state is State.UNHEALTHY
    verdict = await node.kubelet.admit(await bound(node, metax, "late", 1))
    assert not verdict.admitted
    assert owned_by(node.view, kept) == in_use(node.view)
    assert len(metax.slices) == 1


# What schedulers read


async def test_the_annotation_of_the_node_is_what_hami_reads(node: Node, metax: MetaX) -> None:
    await served(node)
    await node.admit_pod(await bound(node, metax, "one", 0, "fixed-share", core=30, memory=8 * GIB))
    await node.admit_pod(await bound(node, metax, "whole", 2, core=100, memory=metax.memory))
    metax.fail(3)
    await node.counts({SGPU: (64, 48)})

    await node.until(lambda _: [it.get("healthy", False) for it in told(node)] == [True, True, True, False])

    first, second, third, _ = told(node)
    mib = metax.memory >> 20
    assert (first["qosPolicy"], first["availableDevCount"]) == ("fixed-share", 15)
    assert (first["availableCompute"], first["availableVRam"]) == (70, mib - 8192)
    assert (first["uuid"], first["bdf"]) == (metax.uuids[0], metax.stub.bdf(0))
    assert "qosPolicy" not in second
    assert (second["totalDevCount"], second["totalCompute"], second["totalVRam"]) == (16, 100, mib)
    assert {"availableCompute", "availableVRam"}.isdisjoint(third)


async def test_a_pod_of_hami_gets_the_slice_that_it_wrote(node: Node, metax: MetaX) -> None:
    await served(node)
    pod = Pod("hamis", (Container({SGPU: 1, "metax-tech.com/vcore": 30, "metax-tech.com/vmemory": 4}),))
    wrote = [[{"uuid": metax.uuids[3], "compute": 30, "vRam": 4096}]]
    times = {"metax-tech.com/predicate-time": "1795210468000000000"}
    node.shows(pod, **{METAX_ALLOCATED: json.dumps(wrote), POLICY: "burst-share", **times})

    await node.admit_pod(pod)

    [made] = metax.slices
    assert (made.slot, made.compute, made.vram) == (3, 30, 4096)
    assert metax.policy(3) == "burst-share"


def test_the_pod_of_document_001_is_as_the_document_has_it() -> None:
    assert DOCUMENT_001 == {
        "koordinator.sh/gpu.shared": "1",
        "koordinator.sh/gpu-memory": "1Gi",
        "koordinator.sh/gpu-core": "10",
        "metax-tech.com/sgpu": "1",
    }
