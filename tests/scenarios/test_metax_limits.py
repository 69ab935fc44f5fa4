"""MetaX's slices of pods for which no scheduler chose: as their own limits and annotation say, or refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from played_koordinator.scheduler import Asking
from support.waiting import eventually

from agent.schedulers.koordinator.allocated_annotation import ALLOCATED
from agent.testing.node_kubelet import Container, Pod

from .conftest import ONLY_METAX
from .koordination import NODE, Koordinator
from .metax import DOCUMENT_001, POLICY, SGPU, MetaX, gets
from .node import PATIENCE, Node, confirmed, in_use, one
from .test_metax import CORE, GIB, MEMORY, RATIO, asking, bound, served, written
from .test_notices import Told

pytestmark = ONLY_METAX


@pytest.fixture
def metax(node: Node) -> MetaX:
    assert isinstance(node.cards, MetaX)
    node.cards.mode = "sgpu"
    return node.cards


@pytest.fixture
async def told() -> AsyncIterator[Told]:
    told = Told()
    yield told
    await told.stop()


def made(metax: MetaX) -> list[tuple[int, int, int, str]]:
    """The slices: slot, percent, MiB, and the policy of the card."""
    return [(it.slot, it.compute, it.vram, metax.policy(it.slot)) for it in metax.slices]


def shown(node: Node, name: str, policy: str = "", core: int = 10, memory: int = GIB) -> Pod:
    """A pod of no scheduler that chooses, which the agent hears of."""
    pod = asking(name, core, memory)
    node.shows(pod, **({POLICY: policy} if policy else {}))
    return pod


# What a slice is


async def test_document_001s_pod_word_for_word_gets_what_it_asks_for_without_a_scheduler(
    koordinator: Koordinator, metax: MetaX
) -> None:
    await koordinator.starts({SGPU: 64})
    total = Asking("", (DOCUMENT_001,)).total
    pod = Pod("test-metax-sGPU", (Container(total, "demo-sleep"),))
    limits = {"resources": {"limits": dict(DOCUMENT_001), "requests": dict(DOCUMENT_001)}}
    uid = await koordinator.api.creates(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": pod.name.lower(),
                "namespace": pod.namespace,
                "uid": pod.uid,
                "annotations": {POLICY: "fixed-share"},
            },
            # As the API server fills it in.
            "spec": {
                "nodeName": NODE,
                "schedulerName": "default-scheduler",
                "containers": [{"name": "demo-sleep", "image": "ubuntu:22.04", **limits}],
            },
            "status": {"phase": "Pending"},
        }
    )
    pod = Pod(pod.name.lower(), pod.containers, uid=uid)

    await koordinator.node.admit_pod(pod)

    assert [it[1:] for it in made(metax)] == [(10, 1024, "fixed-share")]
    [slice_] = metax.slices
    got = await gets(koordinator.node, pod, "demo-sleep")
    assert got.nodes == {"/dev/mxcd", f"/dev/dri/renderD{slice_.minor}"}


@pytest.mark.parametrize("qos", ["best-effort", "fixed-share", "burst-share"])
async def test_the_policy_is_the_one_that_the_pod_names(node: Node, metax: MetaX, qos: str) -> None:
    await served(node)

    await node.admit_pod(shown(node, "web", qos))

    assert [it[1:] for it in made(metax)] == [(10, 1024, qos)]


async def test_a_policy_that_there_is_not_is_refused_with_the_three_though_no_scheduler_chose(
    node: Node, metax: MetaX
) -> None:
    await served(node)

    verdict = await node.kubelet.admit(shown(node, "odd", "fixed"))

    assert not verdict.admitted
    assert "is 'fixed'; there are best-effort, fixed-share, burst-share" in verdict.message
    assert (metax.slices, in_use(node.view)) == ([], [])


@pytest.mark.parametrize("how", ["share", "whole", "refuse"])
async def test_unclaimed_is_of_pods_alone_that_name_no_amount(node: Node, metax: MetaX, how: str) -> None:
    await served(node, unclaimed=how)
    plain = one("plain", SGPU)
    node.shows(plain, **{POLICY: "burst-share"})

    verdict = await node.kubelet.admit(plain)
    await node.admit_pod(shown(node, "web", "burst-share"))

    expected = {"share": [(6, 4096)], "whole": [(100, metax.memory >> 20)], "refuse": []}[how]
    assert verdict.admitted is (how != "refuse")
    assert sorted(it[1:3] for it in made(metax)) == sorted([*expected, (10, 1024)])


async def test_an_annotation_that_makes_no_sense_leaves_the_pod_what_it_asks_for_and_is_told(
    node: Node, metax: MetaX
) -> None:
    await served(node)
    pod = asking("web")
    node.shows(pod, **{ALLOCATED: "{{", POLICY: "fixed-share"})

    await node.admit_pod(pod)

    assert [it[1:] for it in made(metax)] == [(10, 1024, "fixed-share")]
    [unheeded] = (await node.until(lambda it: it.placement_mismatches)).placement_mismatches
    assert "asks for 10 % of the cores and 1Gi of a card, and gets that amount on any card" in unheeded.why


async def test_several_whole_cards_are_those_that_nobody_has_anything_of(node: Node, metax: MetaX) -> None:
    await served(node)
    await node.admit_pod(await bound(node, metax, "one", 1))
    pod = Pod("two", (Container({SGPU: 2, CORE: 200, RATIO: 200}),))
    node.shows(pod)

    await node.admit_pod(pod)

    mib = metax.memory >> 20
    whole = [(it.slot, it.vram) for it in metax.slices if it.compute == 100]
    assert len(whole) == 2
    assert {vram for _, vram in whole} == {mib}
    assert 1 not in {slot for slot, _ in whole}


# On which card


async def fills(node: Node, metax: MetaX, *cards: int, core: int = 50, policy: str = "") -> None:
    """Have a scheduler's pod take so much of each of these cards, and nearly all memory."""
    memory = metax.memory * 15 // 16
    for card in cards:
        await node.admit_pod(await bound(node, metax, f"big-{card}", card, policy, core, memory))


async def test_the_card_is_one_that_has_as_much_left_whatever_the_kubelet_counts(
    node: Node, metax: MetaX
) -> None:
    await served(node)
    await fills(node, metax, 0, 1, 3)

    await node.admit_pod(shown(node, "web", memory=8 * GIB))

    assert (2, 10, 8192, "best-effort") in made(metax)


async def test_the_card_is_one_whose_policy_the_pod_names(node: Node, metax: MetaX) -> None:
    await served(node)
    for card in (0, 1, 3):
        await node.admit_pod(await bound(node, metax, f"there-{card}", card, "best-effort"))

    await node.admit_pod(shown(node, "web", "fixed-share"))

    assert (2, 10, 1024, "fixed-share") in made(metax)


async def test_what_a_scheduler_promised_to_a_pod_that_comes_later_is_left_to_it(
    node: Node, metax: MetaX
) -> None:
    await served(node)
    await fills(node, metax, 0, 1, 2)
    pod = shown(node, "web", core=60)
    late = await bound(node, metax, "late", 3, core=60)

    verdict = await node.kubelet.admit(pod)
    await node.admit_pod(late)

    assert not verdict.admitted
    assert [it[1:3] for it in made(metax) if it[0] == 3] == [(60, 1024)]


async def test_where_no_card_has_room_a_known_pod_is_refused_with_figures(node: Node, metax: MetaX) -> None:
    """The scheduler of Kubernetes sums over the node: 64 IDs, and 200 percent are left of it."""
    await served(node)
    await fills(node, metax, 0, 1, 2, 3)

    verdict = await node.kubelet.admit(shown(node, "web", core=60, memory=GIB))

    assert not verdict.admitted
    said = "1024 MiB and 60 percent as best-effort are asked for, and no card has as much left"
    assert said in verdict.message
    assert f"{metax.uuids[0]} has 4096 MiB and 50 percent left, with slices of best-effort" in verdict.message
    assert len(metax.slices) == 4


async def test_no_pod_is_refused_for_what_another_one_asks_for(node: Node, metax: MetaX) -> None:
    """Whose Allocate it is nobody is told: the one that is known to come first may be the other one."""
    await served(node)
    await fills(node, metax, 0, 1, 2, 3)
    first, second = shown(node, "first", core=60), shown(node, "second", core=20)

    await node.admit_pod(second)

    await node.start_of(second)
    assert sorted(it[1:3] for it in made(metax) if it[1] != 50) == [(20, 1024)]
    verdict = await node.kubelet.admit(first)
    assert not verdict.admitted
    assert "60 percent" in verdict.message


# What the kubelet's checkpoint corrects


async def unknown(node: Node, pod: Pod) -> Pod:
    """Have a pod admitted of which the API server has told nothing yet."""
    return await node.admit_pod(pod)


async def test_a_pod_that_shows_after_its_allocate_gets_what_it_asks_for_on_the_same_card(
    node: Node, metax: MetaX
) -> None:
    await served(node)
    pod = await unknown(node, asking("late"))
    [(slot, *before, _)] = made(metax)
    assert before == [6, 4096]

    node.shows(pod, **{POLICY: "fixed-share"})
    mark = await node.start_of(pod)

    assert made(metax) == [(slot, 10, 1024, "fixed-share")]
    assert [it.alias for it in metax.slices] == [f"xpu-{mark}"]


async def test_where_no_pod_is_known_the_card_with_most_left_is_taken(node: Node, metax: MetaX) -> None:
    await served(node)
    await fills(node, metax, 0, 1, 3, core=10)

    pod = await unknown(node, asking("late", core=80, memory=40 * GIB))
    node.shows(pod)
    await node.start_of(pod)

    assert (2, 80, 40960, "best-effort") in made(metax)


async def test_pods_that_the_kubelet_takes_in_another_order_start_with_what_each_asks_for(
    node: Node, metax: MetaX
) -> None:
    await served(node)
    small, large, plain = shown(node, "small"), shown(node, "large", core=50, memory=20 * GIB), one("p", SGPU)
    node.shows(plain)

    for pod in (plain, large, small):
        await node.admit_pod(pod)

    found = {}
    for pod in (plain, large, small):
        mark = await node.start_of(pod)
        found[pod.name] = [(it.compute, it.vram) for it in metax.marked(mark)]
    assert found == {"small": [(10, 1024)], "large": [(50, 20480)], "p": [(6, 4096)]}
    assert len(metax.slices) == 3


async def test_a_container_whose_card_has_no_room_is_not_started_and_an_event_says_to_delete_its_pod(
    node: Node, metax: MetaX, told: Told
) -> None:
    await served(node)
    await fills(node, metax, 0, 1, 2, 3)
    await told.listen(node)
    pod = await unknown(node, asking("late", core=60))
    node.shows(pod)

    why = await node.not_started(pod)

    assert "60 percent of" in why
    assert "50 percent of it are free" in why
    event = await told.first("StartRefused")
    assert event.pod is not None
    assert (event.pod.name, event.pod.uid, event.kind) == ("late", pod.uid, "Warning")
    assert "50 percent of it are free" in event.message
    assert "delete the pod" in event.message
    assert [it for it in made(metax) if it[1] != 50] == []


async def test_while_its_pods_limits_can_not_be_read_a_container_is_not_started(
    node: Node, metax: MetaX
) -> None:
    await served(node)
    pod = await unknown(node, asking("late"))

    why = await node.not_started(pod)
    node.shows(pod)
    await node.start_of(pod)

    assert "the limits of container main are not known" in why
    assert [it[1:3] for it in made(metax)] == [(10, 1024)]


@pytest.mark.parametrize("named", [True, False], ids=["amounts", "none"])
async def test_a_container_starts_again_while_no_pod_can_be_read(
    node: Node, metax: MetaX, named: bool
) -> None:
    """What it asked for is written down."""
    await served(node)
    pod = asking("web") if named else one("web", SGPU)
    node.shows(pod)
    await node.admit_pod(pod)
    mark = await node.start_of(pod)
    await node.until(lambda it: confirmed(it, pod))
    before = metax.slices

    node.hides()

    assert await node.start_of(pod) == mark
    assert metax.slices == before


async def test_a_pod_that_was_moved_from_its_chosen_card_has_what_it_asks_for_there(
    node: Node, metax: MetaX
) -> None:
    """Its scheduler's word comes after its Allocate, and the chosen card has no room by then."""
    await served(node)
    pod = await unknown(node, asking("late", core=30))
    [(slot, *_)] = made(metax)
    chosen = (slot + 1) % 4
    await fills(node, metax, chosen, core=80)
    node.shows(pod, **written(metax, chosen, core=30))

    await node.start_of(pod)

    assert [it[:3] for it in made(metax) if it[0] != chosen] == [(slot, 30, 1024)]
    view = await node.until(lambda it: it.placement_mismatches)
    assert f"the scheduler chose card {metax.uuids[chosen]}" in view.placement_mismatches[0].why


async def test_a_pod_whose_schedulers_word_comes_after_its_allocate_starts_on_the_chosen_card(
    node: Node, metax: MetaX
) -> None:
    await served(node)
    pod = await unknown(node, asking("late", core=30))
    [(slot, *_)] = made(metax)
    node.shows(pod, **written(metax, (slot + 1) % 4, core=30))

    await node.start_of(pod)

    assert [it[:3] for it in made(metax)] == [((slot + 1) % 4, 30, 1024)]
    await node.until(lambda it: confirmed(it, pod) and not it.placement_mismatches)


async def test_what_a_pod_asks_for_itself_and_what_was_promised_of_its_card_are_never_more_than_the_card(
    node: Node, metax: MetaX
) -> None:
    await served(node)
    await fills(node, metax, 0, 1, 2)
    await node.admit_pod(shown(node, "web", core=60))
    [(_, *own)] = [it[:3] for it in made(metax) if it[0] == 3]

    over = await bound(node, metax, "over", 3, core=50)
    verdict = await node.kubelet.admit(over)
    node.forgets(over)
    await node.admit_pod(await bound(node, metax, "beside", 3, core=40))

    assert own == [60, 1024]
    assert not verdict.admitted
    assert "which has 40 % of its cores" in verdict.message
    assert sorted(it[1:3] for it in made(metax) if it[0] == 3) == [(40, 1024), (60, 1024)]


async def test_an_agent_that_comes_anew_knows_what_a_pod_asked_for(node: Node, metax: MetaX) -> None:
    await served(node)
    pod = shown(node, "web", "fixed-share")
    await node.admit_pod(pod)
    await node.until(lambda it: confirmed(it, pod))
    await node.stop()
    (node.state / "checkpoint.json").unlink()

    await node.start()
    await node.counts({SGPU: (64, 64)})
    view = await node.until(lambda it: in_use(it) and in_use(it)[0].claim)

    claim: Any = in_use(view)[0].claim
    assert (claim.pod, claim.dialect) == ("web", "metax-limits")
    await node.start_of(pod)
    assert [it[1:] for it in made(metax)] == [(10, 1024, "fixed-share")]


async def test_a_pod_of_hamis_without_its_word_gets_what_it_asks_for(node: Node, metax: MetaX) -> None:
    await served(node)
    pod = Pod("hamis", (Container({SGPU: 1, "metax-tech.com/vcore": 30, "metax-tech.com/vmemory": 4}),))
    node.shows(pod)

    await node.admit_pod(pod)

    assert [it[1:3] for it in made(metax)] == [(30, 4096)]


async def test_what_pods_that_end_leave_is_had_by_who_comes(node: Node, metax: MetaX) -> None:
    await served(node)
    await fills(node, metax, 1, 2, 3)
    pod = await node.admit_pod(shown(node, "first", "fixed-share", core=60))
    await node.until(lambda it: confirmed(it, pod))
    await node.kubelet.delete(pod.uid)
    node.forgets(pod)

    await node.admit_pod(shown(node, "second", "burst-share", core=60))

    assert [it[1:] for it in made(metax) if it[0] == 0] == [(60, 1024, "burst-share")]
    await eventually(lambda: len(metax.slices) == 4, PATIENCE)


def test_the_amounts_of_the_document_are_those_that_are_tried() -> None:
    total = Asking("", (DOCUMENT_001,)).total
    assert (total[CORE], total[MEMORY], total[SGPU]) == (10, GIB, 1)
