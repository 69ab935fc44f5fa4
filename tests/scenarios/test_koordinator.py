"""The scheduler's choice is honoured: Koordinator's pods end on the cards that it wrote on them."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

import anyio
import pytest
from msgspec import structs
from played_koordinator.scheduler import BOUND
from support import recorded_pods
from support.read_annotations import READS
from support.waiting import eventually

from agent.cluster.pods import candidate
from agent.core.allocation.known_pods import KnownPods
from agent.core.model import Allocation, AllocationSource, FirstList
from agent.core.publishing.agent_status import AgentStatus
from agent.schedulers.common.node_lock import LOCKS
from agent.schedulers.hami.pod_annotations import METAX_ALLOCATED
from agent.schedulers.koordinator.allocated_annotation import ALLOCATED
from agent.testing.node_kubelet import Container, Pod

from .conftest import EVERY_RELEASE, NVIDIA_OR_SIMULATED, ONLY_NVIDIA
from .node import PATIENCE, Node, confirmed, device, in_use, one, owned_by, released, shared, whole

GPU, TOKEN = "nvidia.com/gpu", "example.com/token"
CORE, MEMORY, RATIO, SHARED = (
    f"koordinator.sh/{it}" for it in ("gpu-core", "gpu-memory", "gpu-memory-ratio", "gpu.shared")
)
HALF, THIRD = ({CORE: percent, RATIO: percent, SHARED: 1} for percent in (50, 33))


def written(node: Node, *cards: int, bound: int = 0, percent: int = 100) -> dict[str, str]:
    """What the scheduler writes for these cards."""
    resources = {CORE: str(percent), RATIO: str(percent)}
    gpu = [{"minor": it, "id": node.cards.uuids[it], "resources": resources} for it in cards]
    return {ALLOCATED: json.dumps({"gpu": gpu}), BOUND: str(1795210468 * 10**9 + bound)}


def uuids(node: Node, *cards: int) -> set[str]:
    return {node.cards.uuids[it] for it in cards}


def limits_of(case: recorded_pods.Case) -> tuple[Container, ...]:
    return tuple(Container(dict(its), name) for name, its in case.limits.items())


@pytest.mark.parametrize("count", [8])
@ONLY_NVIDIA
async def test_the_recorded_pods_of_koordinator_end_on_the_cards_that_it_wrote(node: Node) -> None:
    await node.start(whole(GPU, placement="auto"))
    await node.counts({GPU: (8, 8)})
    asking: dict[str, Mapping[str, set[str]]] = {}
    for case in recorded_pods.cases("nv1"):
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


@NVIDIA_OR_SIMULATED
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


async def test_a_resource_whose_cards_schedulers_choose_is_registered_once_the_pods_are_known(
    node: Node,
) -> None:
    """Others do not wait for them."""
    node.knows_pods, node.pace = False, structs.replace(node.pace, pods_known=3600.0)
    await node.start(whole(GPU, [0, 1], placement="auto"), whole(TOKEN, [2, 3]))
    await node.counts({TOKEN: (2, 2)})
    assert GPU not in await node.kubelet.capacity()
    pod = one("chosen", GPU)
    node.shows(pod, **written(node, 1))

    node.agent.pod_state.follow_to(1)
    await node.counts({GPU: (2, 2)})
    await node.admit_pod(pod)

    assert await node.cards_of(pod) == uuids(node, 1)


async def test_pods_that_are_never_known_hold_up_a_registration_for_a_while_alone(node: Node) -> None:
    node.knows_pods, node.pace = False, structs.replace(node.pace, pods_known=0.1)

    await node.start(whole(GPU, placement="auto"))

    await node.counts({GPU: (4, 4)})


@EVERY_RELEASE
async def test_pods_that_a_kubelet_finds_as_it_begins_end_on_their_cards_in_whatever_order_they_were_bound(
    node: Node,
) -> None:
    await node.start(whole(GPU, placement="auto"))
    await node.counts({GPU: (4, 4)})
    pods = [one(f"pod-{n}", GPU) for n in range(4)]
    for n, pod in enumerate(pods):
        node.shows_one(pod, n, written(node, n), appeared=9 - n)

    await node.kubelet.restart()
    await node.counts({GPU: (4, 4)})
    for pod in pods:  # by their age
        await node.admit_pod(pod)

    assert [await node.cards_of(pod) for pod in pods] == [uuids(node, n) for n in range(4)]


async def test_pods_that_are_bound_before_a_kubelet_that_begins_lists_them_end_on_their_cards(
    node: Node,
) -> None:
    node.pace = structs.replace(node.pace, lists_after=2.0)
    await node.start(whole(GPU, placement="auto"))
    await node.counts({GPU: (4, 4)})
    pods = [one(f"pod-{n}", GPU) for n in range(4)]

    with anyio.fail_after(PATIENCE):
        while not await are_found_though_bound_after_a_restart(node, pods):
            node.hides()  # the machine was slow: the pods came after the list, so another kubelet begins
    for pod in pods:  # by their age
        await node.admit_pod(pod)

    assert [await node.cards_of(pod) for pod in pods] == [uuids(node, n) for n in range(4)]


async def are_found_though_bound_after_a_restart(node: Node, pods: list[Pod]) -> bool:
    """Restart the kubelet, show the pods once it serves, and return whether its first list has them."""
    await node.kubelet.restart()
    await node.counts({GPU: (4, 4)})
    for n, pod in enumerate(pods):
        node.shows_one(pod, n, written(node, n), appeared=9 - n)
    began_ns = (await anyio.Path(node.kubelet.plugin_dir / "kubelet.sock").stat()).st_ctime_ns
    first = node.agent.pod_state.first
    await eventually(lambda: first.value is not None and first.value.began_ns == began_ns)
    return first.value == FirstList(began_ns, tuple(sorted(pod.uid for pod in pods)))


async def test_pods_that_came_after_the_kubelets_list_keep_their_order_though_the_agent_was_away(
    node: Node,
) -> None:
    """They were bound in the second of the list: the agent that starts then cannot tell by their times."""
    await node.start(whole(GPU, placement="auto"))
    await node.counts({GPU: (4, 4)})
    began = node.agent.pod_state.first.value
    await node.kubelet.restart()
    first = await eventually(lambda: (now := node.agent.pod_state.first.value) != began and now)
    await node.saved(str(first.began_ns))
    await node.stop()
    pods = [one(f"pod-{n}", GPU) for n in range(4)]
    for n, pod in enumerate(pods):
        node.shows_one(pod, 9 - n, written(node, n), appeared=n + 1, bound=first.began_ns // 10**9)

    await node.start(whole(GPU, placement="auto"))
    await node.counts({GPU: (4, 4)})
    for pod in pods:  # as they came
        await node.admit_pod(pod)

    assert [await node.cards_of(pod) for pod in pods] == [uuids(node, n) for n in range(4)]


@pytest.mark.parametrize("seed", range(3))
async def test_pods_of_one_second_get_no_more_of_a_card_than_all_of_it_in_whatever_order_they_come(
    node: Node, seed: int
) -> None:
    """Each that has another card than its own is told; who is refused has no room whoever it is."""
    await node.start(shared(TOKEN, 4, placement="auto"))
    await node.counts({TOKEN: (16, 16)})
    sizes = {0: (60, 40), 1: (30, 70), 2: (50, 20, 30), 3: (50, 50)}
    asked = {f"{core}-on-{card}": (card, core) for card, its in sizes.items() for core in its}
    pods = [Pod(name, (Container({TOKEN: 1, CORE: core, RATIO: core}),)) for name, (_, core) in asked.items()]
    for pod in pods:
        card, core = asked[pod.name]
        node.shows_one(pod, 7.0, written(node, card, percent=core))
    await node.kubelet.restart()
    await node.counts({TOKEN: (16, 16)})

    admitted: list[Pod] = []
    refused: list[Pod] = []
    for pod in random.Random(seed).sample(pods, len(pods)):
        verdict = await node.kubelet.admit(pod)
        (admitted if verdict.admitted else refused).append(pod)
        assert verdict.admitted or "have no room" in verdict.message or "memory left" in verdict.message

    has = {pod.name: await node.cards_of(pod) for pod in admitted}
    for uuid in node.cards.uuids:
        assert sum(asked[name][1] for name, cards in has.items() if uuid in cards) <= 100
    assert admitted
    moved = {name for name, cards in has.items() if cards != uuids(node, asked[name][0])}
    await node.until(lambda it: {one.pod.name for one in it.placement_mismatches if one.moved} == moved)


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


async def test_shares_are_on_the_card_that_the_scheduler_chose(node: Node) -> None:
    await node.start(shared(TOKEN, 4, placement="claim", policy="distributed"))
    await node.counts({TOKEN: (16, 16)})
    pods = [Pod(f"share-{n}", (Container({TOKEN: 1, **THIRD}),)) for n in range(3)]
    for n, pod in enumerate(pods):
        node.shows(pod, **written(node, 2, bound=n, percent=33))

    for pod in pods:
        await node.admit_pod(pod)

    assert [await node.cards_of(pod) for pod in pods] == [uuids(node, 2)] * 3
    view = await node.until(lambda it: len(in_use(it)) == 3 and all(one.claim for one in in_use(it)))
    assert {one.claim.parameters["core"] for one in in_use(view) if one.claim} == {"33"}


async def test_what_a_scheduler_promises_of_a_card_beyond_all_of_it_is_refused(node: Node) -> None:
    """Though the kubelet counts IDs for it."""
    await node.start(shared(TOKEN, 4, placement="auto"))
    await node.counts({TOKEN: (16, 16)})
    pods = [Pod(f"share-{n}", (Container({TOKEN: 1, **HALF}),)) for n in range(3)]
    for n, pod in enumerate(pods):
        node.shows(pod, **written(node, 2, bound=n, percent=50))

    verdicts = [await node.kubelet.admit(pod) for pod in pods]

    assert [it.admitted for it in verdicts] == [True, True, False]
    assert "which has 0 % of its cores and 0 % of its memory left" in verdicts[2].message


async def test_a_refusal_says_how_much_of_a_percent_a_card_lacks(node: Node) -> None:
    """koord-scheduler counts bytes as whole percent, rounded down, beside pods that ask for percent."""
    await node.start(shared(TOKEN, 4, placement="auto"))
    await node.counts({TOKEN: (16, 16)})
    card = device(node.view, node.cards.uuids[2])
    amount = card.device.memory // 2 + card.device.memory // 400
    in_bytes = Pod("in-bytes", (Container({TOKEN: 1, CORE: 10, MEMORY: amount}),))
    said = {CORE: "10", MEMORY: str(amount), RATIO: "50"}
    gpu = [{"minor": 2, "id": card.uuid, "resources": said}]
    node.shows(in_bytes, **{ALLOCATED: json.dumps({"gpu": gpu}), BOUND: "1"})
    in_percent = Pod("in-percent", (Container({TOKEN: 1, **HALF}),))
    node.shows(in_percent, **written(node, 2, bound=1, percent=50))

    verdicts = [await node.kubelet.admit(it) for it in (in_bytes, in_percent)]

    assert [it.admitted for it in verdicts] == [True, False]
    assert "which has 90 % of its cores and 49.7 % of its memory left" in verdicts[1].message


async def test_pods_fill_a_card_as_far_as_they_were_promised_it_whatever_ids_it_has(node: Node) -> None:
    await node.start(shared(TOKEN, 2, placement="auto"))
    await node.counts({TOKEN: (8, 8)})
    pods = [Pod(f"share-{n}", (Container({TOKEN: 1, **THIRD}),)) for n in range(3)]
    for n, pod in enumerate(pods):
        node.shows(pod, **written(node, 2, bound=n, percent=33))

    for pod in pods:
        await node.admit_pod(pod)

    assert [await node.cards_of(pod) for pod in pods] == [uuids(node, 2)] * 3


async def test_the_containers_of_a_pod_have_each_the_share_that_was_chosen_for_it(node: Node) -> None:
    await node.start(shared(TOKEN, 4, placement="auto"))
    await node.counts({TOKEN: (16, 16)})
    pod = Pod("both", (Container({TOKEN: 4, **HALF}, "a"), Container({TOKEN: 1, **HALF}, "b")))
    node.shows(pod, **written(node, 2, 3, percent=50))

    await node.admit_pod(pod)

    assert await node.cards_of(pod, "a") == uuids(node, 2)
    assert await node.cards_of(pod, "b") == uuids(node, 3)


async def test_containers_that_ask_for_parts_of_one_card_share_it(node: Node) -> None:
    await node.start(shared(TOKEN, 4, placement="claim"))
    await node.counts({TOKEN: (16, 16)})
    parts = {name: {CORE: percent, RATIO: percent} for name, percent in (("a", 70), ("b", 30))}
    pod = Pod("both", tuple(Container({TOKEN: 1, **its}, name) for name, its in parts.items()))
    node.shows(pod, **written(node, 2, percent=100))

    await node.admit_pod(pod)

    view = await node.until(lambda it: confirmed(it, pod) and all(one.claim for one in in_use(it)))
    claims = {it.claim.container: it.claim.parameters["core"] for it in in_use(view) if it.claim}
    assert claims == {"a": "70", "b": "30"}
    assert await node.cards_of(pod, "a") == await node.cards_of(pod, "b") == uuids(node, 2)


async def test_who_is_granted_more_than_it_asks_for_is_refused_with_the_reason(node: Node) -> None:
    await node.start(shared(TOKEN, 4, placement="claim"))
    await node.counts({TOKEN: (16, 16)})
    pod = Pod("greedy", (Container({TOKEN: 1, **HALF}),))
    node.shows(pod, **written(node, 2, percent=100))

    verdict = await node.kubelet.admit(pod)

    assert not verdict.admitted
    assert "gives 100 of koordinator.sh/gpu-core, its containers ask for 50" in verdict.message


async def test_where_a_scheduler_must_choose_a_pod_without_a_choice_is_refused_with_the_reason(
    node: Node,
) -> None:
    await node.start(whole(GPU, placement="claim"))
    await node.counts({GPU: (4, 4)})

    verdict = await node.refused("nobodys", {GPU: 1})

    assert "no scheduler has chosen a card for this pod" in verdict.message


async def test_where_a_scheduler_must_choose_its_word_is_waited_for(node: Node) -> None:
    await node.start(whole(GPU, placement="claim"))
    await node.counts({GPU: (4, 4)})
    pod = one("heard-of-late", GPU)

    async with anyio.create_task_group() as group:
        group.start_soon(node.admit_pod, pod)
        await node.until(lambda it: it.counters.get(("plugin_preferred", (("resource", GPU),)), 0))
        node.shows(pod, **written(node, 3))

    assert await node.cards_of(pod) == uuids(node, 3)


SGPU = "metax-tech.com/sgpu"
WORDS = {
    "koordinator": (ALLOCATED, BOUND),
    "metax": (METAX_ALLOCATED, BOUND),
}


@pytest.mark.parametrize("words", WORDS)
async def test_recorded_shares_of_metax_cards_end_where_the_scheduler_put_them(
    node: Node, words: str
) -> None:
    await node.start(shared(SGPU, 16, placement="claim"))
    await node.counts({SGPU: (64, 64)})
    here = dict(zip(recorded_pods.devices("metax1"), node.cards.uuids, strict=True))
    ended: dict[str, list[set[str]]] = {}
    for case in (it for it in recorded_pods.cases("metax1") if it.scheduled):
        pod = Pod(case.name, limits_of(case))
        said = {key: case.annotations[key] for key in WORDS[words]}
        for there, uuid in here.items():
            said = {key: text.replace(there, uuid) for key, text in said.items()}
        node.shows(pod, **said)
        await node.admit_pod(pod)
        ended[case.name] = [
            await node.cards_of(pod, name) for name, its in case.limits.items() if SGPU in its
        ]

    assert ended == {
        "m-doc001": [uuids(node, 0)],
        "m-best": [uuids(node, 1)],
        "m-burst": [uuids(node, 0)],
        "m-ratio": [uuids(node, 0)],
        "m-full": [uuids(node, 2)],
        "m-two-ctrs": [uuids(node, 3), uuids(node, 1)],
        "m-sidecar": [uuids(node, 1)],
    }


async def test_a_pod_of_hami_ends_on_the_card_that_it_wrote(node: Node) -> None:
    await node.start(shared(TOKEN, 4, placement="auto"))
    await node.counts({TOKEN: (16, 16)})
    pod = Pod("hamis", (Container({TOKEN: 1}),))
    node.shows(pod, **{"hami.io/vgpu-devices-to-allocate": f"{node.cards.uuids[3]},NVIDIA,1024,30:;"})

    await node.admit_pod(pod)

    assert await node.cards_of(pod) == uuids(node, 3)


@ONLY_NVIDIA
async def test_a_share_comes_with_the_limits_that_hami_core_reads(node: Node) -> None:
    rules = [shared(f"{GPU}.shared", 4, placement="claim")]
    own = node.cards.settings
    node.configure(
        nvidia={
            "enabled": True,
            **own,
            "settings": {**own["settings"], "hamiCoreDirectory": "/usr/local/vgpu"},
            "resources": rules,
        }
    )
    await node.start()
    await node.counts({f"{GPU}.shared": (16, 16)})
    (case,) = (it for it in recorded_pods.cases("nv1") if it.name == "n-core-mem")
    pod = Pod(case.name, (Container({**case.limits["a"], f"{GPU}.shared": 1}),))
    node.shows(pod, **case.annotations)

    await node.admit_pod(pod)

    options = await node.kubelet.run_options(pod.uid, "main")
    assert options.env["NVIDIA_VISIBLE_DEVICES"] == node.cards.uuids[1]
    assert options.env["CUDA_DEVICE_MEMORY_LIMIT"] == str(10 << 30)
    assert options.env["CUDA_DEVICE_SM_LIMIT"] == "30"
    assert options.env["LD_PRELOAD"] == "/usr/local/vgpu/libvgpu.so"


# Cards of pods that never ask us


def of_koordinator_alone(name: str) -> Pod:
    return Pod(name, (Container({CORE: 50, RATIO: 50}),))


def used_by(view: AgentStatus, pod: Pod) -> list[Allocation]:
    return [
        it for it in in_use(view) if it.source is AllocationSource.ANNOTATION and it in owned_by(view, pod)
    ]


@pytest.mark.parametrize("count", [8])
@ONLY_NVIDIA
async def test_the_recorded_pods_that_ask_koordinator_alone_are_in_the_ledger_with_their_cards(
    node: Node,
) -> None:
    await node.start(whole(GPU, placement="auto"))
    await node.counts({GPU: (8, 8)})
    pods = {it.name: Pod(it.name, limits_of(it)) for it in recorded_pods.cases("nv1")}
    for case in recorded_pods.cases("nv1"):
        node.shows(pods[case.name], **case.annotations)

    view = await node.until(lambda it: len(in_use(it)) == 4)

    assert {name: set(used_by(view, pod)[0].devices) for name, pod in pods.items() if used_by(view, pod)} == {
        "n-core-ratio": uuids(node, 1),
        "n-core-mem": uuids(node, 1),
        "n-mem": uuids(node, 1),
        "n-shared2": uuids(node, 4, 5),
    }
    await node.counts({GPU: (8, 5)})


async def test_a_card_that_a_scheduler_gave_away_itself_is_given_whole_to_nobody(node: Node) -> None:
    await node.start(whole(GPU, placement="auto"))
    await node.counts({GPU: (4, 4)})
    share = of_koordinator_alone("share")
    node.shows(share, **written(node, 2, percent=50))
    await node.counts({GPU: (4, 3)})

    pods = [await node.admit(f"whole-{n}", {GPU: 1}) for n in range(3)]

    assert set().union(*[await node.cards_of(pod) for pod in pods]) == uuids(node, 0, 1, 3)
    verdict = await node.refused("one-too-many", {GPU: 1})
    assert GPU in verdict.message
    assert used_by(node.view, share)[0].owner is not None


async def test_a_card_comes_back_when_the_scheduler_s_pod_is_gone_and_not_before(node: Node) -> None:
    await node.start(whole(GPU, placement="auto"))
    await node.counts({GPU: (4, 4)})
    share, other = of_koordinator_alone("share"), of_koordinator_alone("other")
    node.shows(share, **written(node, 2, percent=50))
    node.shows(other)
    await node.counts({GPU: (4, 3)})
    await node.saved(share.uid)
    await node.stop()
    node.hides()
    await node.start()
    await node.counts({GPU: (4, 3)})  # nobody has said yet which pods there are

    node.shows(other)

    await node.counts({GPU: (4, 4)})
    assert used_by(node.view, share) == []


async def test_what_the_kubelet_does_not_know_of_is_not_over_for_that(node: Node) -> None:
    await node.start(whole(GPU, placement="auto"))
    await node.counts({GPU: (4, 4)})
    share = of_koordinator_alone("share")
    node.shows(share, **written(node, 2, percent=50))
    await node.counts({GPU: (4, 3)})
    before = used_by(node.view, share)
    passing = await node.admit("passing", {GPU: 1})
    await node.until(lambda it: confirmed(it, passing))

    await node.kubelet.delete(passing.uid)

    view = await node.until(lambda it: released(it, passing))  # who is released here is as old as the share
    assert used_by(view, share) == before
    assert not [it for it in owned_by(view, share) if it not in before]


async def test_where_no_scheduler_is_heeded_no_annotation_takes_a_card(node: Node) -> None:
    await node.start(whole(GPU))
    await node.counts({GPU: (4, 4)})
    node.shows(of_koordinator_alone("share"), **written(node, 2, percent=50))

    pods = [await node.admit(f"whole-{n}", {GPU: 1}) for n in range(4)]

    assert set().union(*[await node.cards_of(pod) for pod in pods]) == set(node.cards.uuids)
    assert not [it for it in node.view.allocations if it.source is AllocationSource.ANNOTATION]


@pytest.mark.parametrize("started", ["2001-01-01T00:00:00Z", "2999-01-01T00:00:00Z"])
async def test_a_pod_that_ran_before_a_boot_of_which_nobody_knows_gets_its_card_again(
    node: Node, started: str
) -> None:
    await node.start(whole(GPU, placement="claim"))
    await node.counts({GPU: (4, 4)})
    asks = {GPU: 1, "koordinator.sh/gpu-core": 100, "koordinator.sh/gpu-memory-ratio": 100}
    pod, card = Pod("kept", (Container(asks, "main"),)), node.cards.uuids[2]
    limits = {name: str(count) for name, count in asks.items()}
    annotations = {ALLOCATED: json.dumps({"gpu": [{"minor": 2, "id": card}]})}
    shown = candidate(
        {
            "metadata": {
                "uid": pod.uid,
                "namespace": pod.namespace,
                "name": pod.name,
                "annotations": annotations,
            },
            "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
            "status": {
                "phase": "Running",
                "containerStatuses": [{"name": "main", "state": {"running": {"startedAt": started}}}],
            },
        },
        READS,
    )
    assert shown is not None
    node.agent.pods.set(KnownPods.of((shown,)))

    verdict = await node.kubelet.admit(pod)

    assert verdict.admitted is (started < "2026")
    if verdict.admitted:
        assert await node.cards_of(pod) == {card}


# Locks on the node


def locked(pod: Pod) -> dict[str, str]:
    """What a scheduler writes on the Node before it binds the pod."""
    return {LOCKS[0]: f"{datetime.now(UTC).isoformat()},{pod.namespace},{pod.name}"}


async def test_a_lock_says_whose_turn_it_is_and_is_over_once_that_pod_has_its_cards(node: Node) -> None:
    await node.start(whole(GPU, placement="auto"))
    await node.counts({GPU: (4, 4)})
    early, late = one("early", GPU), one("late", GPU)
    node.shows(early, **written(node, 0, bound=1))
    node.shows(late, **written(node, 1, bound=2))
    node.agent.pod_state.locks.annotations.set(locked(late))
    assert not node.agent.pod_state.locks.over.value

    await node.admit_pod(late)

    assert await node.cards_of(late) == uuids(node, 1)
    await node.until(
        lambda _: [*node.agent.pod_state.locks.over.value.values()] == ["its pod has its devices"]
    )


async def test_a_lock_whose_pod_was_refused_is_over_as_soon_as_the_pod_has_failed(node: Node) -> None:
    await node.start(whole(GPU, placement="claim"))
    await node.counts({GPU: (4, 4)})
    pod = one("refused", GPU)
    node.shows(pod)
    node.agent.pod_state.locks.annotations.set(locked(pod))
    assert not (await node.kubelet.admit(pod)).admitted

    node.agent.pods.set(
        KnownPods.of(tuple(replace(it, over=True, ended=True) for it in node.agent.pods.value))
    )

    await node.until(lambda _: [*node.agent.pod_state.locks.over.value.values()] == ["its pod is over"])
