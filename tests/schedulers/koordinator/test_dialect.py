"""What koord-scheduler promised, as it wrote it, and whatever else anybody may write there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from support import recorded_pods, strategies

from agent.core.allocation.known_pods import KnownPods
from agent.core.attribution.next_request import next_request
from agent.core.attribution.pod_attribution import attribute
from agent.core.attribution.waiting_pods import WaitingPods
from agent.scheduler_api import Candidate, PodContainer
from agent.schedulers.common.pod_request import requested, requested_by
from agent.schedulers.koordinator.allocated_annotation import ALLOCATED, allocated
from agent.schedulers.koordinator.dialect import KOORDINATOR, claims

GPU, TRIGGER = "nvidia.com/gpu", "example.com/share"
NVIDIA = recorded_pods.devices("nv1")
CORE, MEMORY = "koordinator.sh/gpu-core", "koordinator.sh/gpu-memory"
RATIO, SHARED = "koordinator.sh/gpu-memory-ratio", "koordinator.sh/gpu.shared"


def uuid(minor: int) -> str:
    return f"GPU-00000000-0000-0000-0000-{minor:012d}"


def written(*minors: int, **more: Any) -> dict[str, str]:
    """The annotation for these cards, each whole."""
    resources = more.pop("resources", {CORE: "100", RATIO: "100"})
    gpu = [{"minor": it, "id": uuid(it), "resources": resources, **more} for it in minors]
    return {ALLOCATED: json.dumps({"gpu": gpu})}


def pod(*containers: PodContainer, annotations: Mapping[str, str], **more: Any) -> Candidate:
    return Candidate("uid", "default", "web", containers, annotations, **more)


def whole(name: str, count: int = 1, **more: bool) -> PodContainer:
    return PodContainer(name, {GPU: count}, **more)


def promised(it: Candidate, resource: str = GPU) -> dict[str, list[int | None]]:
    """Container to the minors of its cards."""
    return {one.container: [NVIDIA[uuid] for uuid in one.devices] for one in claims(it, resource, NVIDIA)}


# As it was recorded


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("n-whole1", {"a": [0]}),
        ("n-whole2", {"a": [2, 3]}),
        ("n-two-ctrs", {"a": [6], "b": [7]}),
        *(
            (name, {}) for name in ("n-core-ratio", "n-core-mem", "n-shared2", "n-mem")
        ),  # ask koordinator alone
        *((name, {}) for name in ("n-hint", "n-hami", "n-too-many")),  # refused: nothing was written
    ],
)
def test_each_container_is_promised_the_cards_that_the_scheduler_chose(
    name: str, expected: dict[str, list[int]]
) -> None:
    (case,) = (it for it in recorded_pods.cases("nv1") if it.name == name)

    assert promised(case.candidate) == expected
    assert [it.parameters for it in claims(case.candidate, GPU, NVIDIA)] == [{} for _ in expected]


@pytest.mark.parametrize(
    "case", [it for it in recorded_pods.cases("metax1") if it.scheduled], ids=lambda it: it.name
)
def test_shares_of_another_vendors_cards_are_read_alike(case: recorded_pods.Case) -> None:
    found = claims(case.candidate, "metax-tech.com/sgpu", recorded_pods.devices("metax1"))

    asking = {
        name: its["metax-tech.com/sgpu"] for name, its in case.limits.items() if "metax-tech.com/sgpu" in its
    }
    assert {it.container: len(it.devices) for it in found} == asking
    said = json.loads(case.annotations["metax-tech.com/gpu-devices-allocated"])[0]
    assert [uuid for it in found for uuid in it.devices] == [it["uuid"] for it in said]
    for it in found:
        share = {"core": "100", "ratio": "100", **it.parameters}
        memory = int(share.get("memory", int(share["ratio"]) * (64 << 30) // 100))
        assert (int(share["core"]), memory >> 20) == (said[0]["compute"], said[0]["vRam"])


def test_an_average_is_granted_and_said() -> None:
    (case,) = (it for it in recorded_pods.cases("metax1") if it.name == "m-two-ctrs")

    first, second = claims(case.candidate, "metax-tech.com/sgpu", recorded_pods.devices("metax1"))

    share = {"core": "15", "memory": str(2 << 30)}
    assert (first.parameters, second.parameters) == (share, share)
    assert first.remark == (
        "container a asks for 10 % of the cores and 1Gi of a card and gets 15 % of the cores and 2Gi: "
        "the scheduler grants each container the average of its pod"
    )
    assert "container b asks for 20 % of the cores and 3Gi" in second.remark


def test_the_share_of_a_container_alone_is_no_average() -> None:
    said = {"gpu": [{"minor": 1, "id": uuid(1), "resources": {CORE: "10", RATIO: "50"}}]}

    (found,) = claims(pod(SHARE, annotations={ALLOCATED: json.dumps(said)}), TRIGGER, NVIDIA)

    assert found.remark == (
        "container main asks for 50 % of the cores and 50 % of the memory of a card and gets "
        "10 % of the cores and 50 % of the memory: that is what the pod's annotation says"
    )


def test_a_share_that_is_as_asked_for_is_not_remarked() -> None:
    cases = [it for it in recorded_pods.cases("metax1") if it.scheduled and it.name != "m-two-ctrs"]

    found = [
        one
        for it in cases
        for one in claims(it.candidate, "metax-tech.com/sgpu", recorded_pods.devices("metax1"))
    ]

    assert found
    assert {it.remark for it in found} == {""}


# Splitting


@pytest.mark.parametrize(
    ("containers", "expected"),
    [
        ([whole("a", 2), whole("b")], {"a": [4, 5], "b": [6]}),
        (
            [whole("setup", 3, init=True), whole("a", 2), whole("b")],
            {"setup": [4, 5, 6], "a": [4, 5], "b": [6]},
        ),
        (
            [whole("proxy", init=True, restartable=True), whole("setup", 2, init=True), whole("a", 2)],
            {"proxy": [4], "setup": [5, 6], "a": [5, 6]},
        ),
        ([PodContainer("side", {}), whole("a", 3)], {"a": [4, 5, 6]}),
    ],
    ids=["in order", "an init container hands on", "a sidecar keeps", "who asks for nothing gets nothing"],
)
def test_the_pods_cards_are_split_over_its_containers(
    containers: list[PodContainer], expected: dict[str, list[int]]
) -> None:
    assert promised(pod(*containers, annotations=written(4, 5, 6))) == expected


@pytest.mark.parametrize(
    ("limits", "count"),
    [
        ({GPU: 3}, 3),
        ({SHARED: 2, CORE: 100, RATIO: 100}, 2),
        ({CORE: 200, RATIO: 200}, 2),
        ({CORE: 50, MEMORY: 1 << 30}, 1),
        ({MEMORY: 16 << 30}, 1),
        ({"koordinator.sh/gpu": 400}, 4),
        ({"koordinator.sh/gpu": 50}, 1),
        ({"cpu": 3}, 0),
        ({TRIGGER: 4}, 0),
    ],
)
def test_the_scheduler_counts_cards_so(limits: dict[str, int], count: int) -> None:
    assert requested(limits).cards == count


# Trust

SHARE = PodContainer("main", {TRIGGER: 1, CORE: 50, RATIO: 50})
ONE = [{"minor": 1, "id": uuid(1), "resources": {}}]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", f"{ALLOCATED} is no JSON: Expecting"),
        ("[]", f"{ALLOCATED}: no JSON object"),
        ('{"gpu": 1}', "gpu is no list"),
        ('{"gpu": [1]}', "a card is no JSON object"),
        ('{"gpu": [{"id": "x"}]}', "minor None is no number"),
        ('{"gpu": [{"minor": true}]}', "minor True is no number"),
        ('{"gpu": [{"minor": -1}]}', "minor -1 is no number"),
        ('{"gpu": [{"minor": 1, "id": 7}]}', "id of minor 1 is no text"),
        ('{"gpu": [{"minor": 1, "resources": 7}]}', "resources of minor 1 are no JSON object"),
        (
            json.dumps({"gpu": [{"minor": 1, "resources": {CORE: "101"}}]}),
            "gpu-core of minor 1 is '101', awaited is a percentage, 1 to 100",
        ),
        (
            json.dumps({"gpu": [{"minor": 1, "resources": {MEMORY: "-1Gi"}}]}),
            "gpu-memory of minor 1 is '-1Gi'",
        ),
        (
            json.dumps({"gpu": [{"minor": 1, "resources": {MEMORY: "64GB"}}]}),
            "gpu-memory of minor 1 is '64GB', awaited is a number of bytes, such as 8Gi",
        ),
        (json.dumps({"gpu": [{"minor": 1}, {"minor": 1}]}), "a minor is named twice"),
        (json.dumps({"gpu": [{"minor": 1, "id": "x"}, {"minor": 2, "id": "x"}]}), "an id is named twice"),
        ('{"gpu": [], "gpu": [{"minor": 1}]}', "'gpu' stands there twice"),
        (json.dumps({"gpu": [{"minor": n} for n in range(65)]}), "gpu is no list of up to 64"),
        (json.dumps({"gpu": [*ONE, {"minor": 2, "id": uuid(2)}]}), "names 2 cards, its containers ask for 1"),
        (
            json.dumps({"gpu": [{"minor": 1, "id": "GPU-of-another-node"}]}),
            "GPU-of-another-node, which is not here",
        ),
        (json.dumps({"gpu": [{"minor": 17}]}), "names 17, which is not here"),
        ("[" * 100_000, "too deep"),
    ],
)
def test_what_no_scheduler_writes_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        claims(pod(SHARE, annotations={ALLOCATED: text}), TRIGGER, NVIDIA)


def test_a_pod_that_kubernetes_own_scheduler_bound_is_not_believed() -> None:
    it = pod(whole("main"), annotations=written(1), scheduler="default-scheduler")

    with pytest.raises(ValueError, match="not believed"):
        promised(it)

    assert promised(replace(it, scheduler="koord-scheduler")) == {"main": [1]}


def test_a_pod_that_a_lock_of_the_node_names_is_believed_whoever_it_says_has_bound_it() -> None:
    """koord-scheduler may run under the name of Kubernetes' own; only schedulers write on the Node."""
    it = pod(whole("main"), annotations=written(1), scheduler="default-scheduler")
    waiting = WaitingPods(KnownPods.of((it,)), (KOORDINATOR,), NVIDIA)

    doubted = attribute(GPU, 1, {uuid(1)}, waiting)
    found = attribute(GPU, 1, {uuid(1)}, structs.replace(waiting, locked={("default", "web")}))

    assert doubted.claim is None
    assert "is not believed of a pod of default-scheduler" in doubted.why_uncertain
    assert found.claim is not None
    assert found.claim.devices == (uuid(1),)
    assert attribute(GPU, 1, {uuid(1)}, structs.replace(waiting, locked={("other", "web")})).claim is None


def test_a_claim_says_in_whose_words_it_was_made() -> None:
    it = pod(whole("main"), annotations=written(1))

    found = attribute(GPU, 1, {uuid(1)}, WaitingPods(KnownPods.of((it,)), (KOORDINATOR,), NVIDIA)).claim

    assert found is not None
    assert found.dialect == "koordinator"


def test_a_container_that_asks_for_no_card_is_promised_none() -> None:
    it = pod(PodContainer("main", {TRIGGER: 1}), whole("gpu"), annotations=written(1))

    assert promised(it, TRIGGER) == {}


def test_a_card_without_an_id_is_that_of_its_minor() -> None:
    text = json.dumps({"gpu": [{"minor": 5, "resources": {CORE: "100", RATIO: "100"}}]})

    assert promised(pod(whole("main"), annotations={ALLOCATED: text})) == {"main": [5]}


def test_an_id_counts_more_than_a_minor_that_has_moved() -> None:
    text = json.dumps({"gpu": [{"minor": 5, "id": uuid(2)}]})

    assert promised(pod(whole("main"), annotations={ALLOCATED: text})) == {"main": [2]}


def test_other_devices_than_gpus_are_not_spoken_of() -> None:
    text = json.dumps({"rdma": [{"minor": 0, "id": "0000:09:00.0"}]})

    assert claims(pod(whole("main"), annotations={ALLOCATED: text}), GPU, NVIDIA) == ()


# Whatever anybody writes

numbers = st.one_of(st.integers(), st.integers(0, 9), st.booleans(), st.floats(allow_nan=False), st.none())
amounts = st.one_of(
    st.sampled_from(["50", "100", "1Gi", "41758208Ki", "1e3", "500m", "-1"]), st.text(max_size=5), numbers
)
grants = st.fixed_dictionaries(
    {},
    optional={
        "minor": numbers,
        "id": st.one_of(st.sampled_from([*NVIDIA]), st.text(max_size=8), numbers),
        "resources": st.one_of(
            st.dictionaries(st.sampled_from([CORE, MEMORY, RATIO, "x"]), amounts), numbers
        ),
        "extension": st.one_of(st.none(), st.dictionaries(st.text(max_size=3), numbers)),
    },
)
good = st.lists(st.integers(0, 7), unique=True, max_size=4).map(lambda its: written(*its)[ALLOCATED])
texts = st.one_of(
    good,
    st.lists(grants, max_size=4).map(lambda its: json.dumps({"gpu": its})),
    st.recursive(
        numbers | st.text(max_size=5), lambda it: st.lists(it) | st.dictionaries(st.text(max_size=4), it)
    ).map(json.dumps),
    strategies.hostile_texts,
)
containers = st.builds(
    lambda name, limits, init, restartable: PodContainer(name, limits, init, restartable and init),
    st.sampled_from(["a", "b", "c"]),
    st.dictionaries(
        st.sampled_from([GPU, TRIGGER, CORE, RATIO, SHARED, MEMORY]), st.integers(1, 300), max_size=4
    ),
    st.booleans(),
    st.booleans(),
)


@settings(max_examples=max(500, settings().max_examples))
@given(st.lists(containers, max_size=3, unique_by=lambda it: it.name), texts)
def test_no_annotation_crashes_or_promises_a_card_twice(its: list[PodContainer], text: str) -> None:
    it = pod(*its, annotations={ALLOCATED: text})

    found = attribute(GPU, 1, {uuid(0)}, WaitingPods(KnownPods.of((it,)), (KOORDINATOR,), NVIDIA))
    aim = next_request(GPU, 1, (), NVIDIA, WaitingPods(KnownPods.of((it,)), (KOORDINATOR,), NVIDIA))

    assert set(aim.cards) <= set(NVIDIA)
    if found.claim is not None:
        assert found.claim.devices == (uuid(0),)
        assert uuid(0) in {one.uuid or uuid(one.minor) for one in allocated(text)}
    try:
        promises = claims(it, GPU, NVIDIA)
    except ValueError:
        return
    steady = {one.name for one in its if not one.init or one.restartable}
    named = [(one, claim) for claim in promises if claim.container in steady for one in claim.devices]
    for card in {one for one, _ in named}:
        shares = [claim.parameters for one, claim in named if one == card]
        percents = [int(one.get("ratio", 100 if not one else 0)) for one in shares]
        assert len(shares) == 1 or sum(percents) <= 100
        assert len(shares) == 1 or sum(int(one.get("core", 100 if not one else 0)) for one in shares) <= 100
    assert all("0" not in one.parameters.values() for one in promises)
    wanted = requested_by(it)
    for key, most in (("core", wanted.core), ("memory", wanted.memory), ("ratio", wanted.ratio)):
        assert most is None or sum(int(claim.parameters.get(key, 0)) for _, claim in named) <= most
