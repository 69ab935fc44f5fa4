"""What HAMi's scheduler promised, in its own words and in MetaX's."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import recorded_pods, strategies

from agent.core.allocation.known_pods import KnownPods
from agent.core.attribution.pod_attribution import attribute
from agent.core.attribution.waiting_pods import WaitingPods
from agent.scheduler_api import Candidate, Cards, Claim, PodContainer
from agent.schedulers.hami.pod_annotations import HAMI, METAX, METAX_ALLOCATED, hami, metax

Claims = Callable[[Candidate, str, Cards], Sequence[Claim]]
SGPU, GPU = "metax-tech.com/sgpu", "nvidia.com/gpu"
MXC = recorded_pods.devices("metax1")
CARDS = {"GPU-a": 0, "GPU-b": 1}
KEY = "hami.io/vgpu-devices-to-allocate"
DONE = "hami.io/vgpu-devices-allocated"


def pod(
    resource: str, annotations: Mapping[str, str], *containers: PodContainer, scheduler: str = ""
) -> Candidate:
    its = containers or (PodContainer("main", {resource: 1}),)
    return Candidate("uid", "default", "web", its, annotations, scheduler=scheduler)


@pytest.mark.parametrize(
    "case", [it for it in recorded_pods.cases("metax1") if it.scheduled], ids=lambda it: it.name
)
def test_what_koordinator_wrote_for_metax_is_the_same_in_both_words(case: recorded_pods.Case) -> None:
    alone = {METAX_ALLOCATED: case.annotations[METAX_ALLOCATED]}
    it = Candidate("uid", "default", case.name, case.candidate.containers, alone)

    found = metax(it, SGPU, MXC)

    said = [(one["uuid"], one["compute"], one["vRam"]) for one in json.loads(alone[METAX_ALLOCATED])[0]]
    shares = [
        (uuid, int(share["core"]), int(share.get("memory", int(share["ratio"]) * (64 << 30) // 100)) >> 20)
        for one in found
        for share in [{"core": "100", "ratio": "100", **one.parameters}]
        for uuid in one.devices
    ]
    assert shares == said
    assert [one.container for one in found] == [name for name, its in case.limits.items() if SGPU in its]


A, B = '{"uuid": "GPU-a", "compute": 10, "vRam": 1024}', '{"uuid": "GPU-b"}'
SETUP, MAIN, SIDE = (
    PodContainer("setup", {SGPU: 1}, init=True),
    PodContainer("main", {SGPU: 1}),
    PodContainer("side", {}),
)


@pytest.mark.parametrize(
    ("text", "containers", "expected"),
    [
        (f"[[{A}], [{B}]]", (SETUP, MAIN), {"setup": ("GPU-a",), "main": ("GPU-b",)}),
        (f"[[{A}], []]", (SETUP, MAIN, SIDE), {"main": ("GPU-a",)}),
        (f"[[], [{B}]]", (SIDE, MAIN), {"main": ("GPU-b",)}),
        (f"[[{A}]]", (SETUP, MAIN), {"setup": ("GPU-a",), "main": ("GPU-a",)}),
        ("[[]]", (SIDE,), {}),
    ],
    ids=["init first", "without init", "one asks for none", "one list for all", "nothing"],
)
def test_each_container_has_its_list_or_all_have_one(
    text: str, containers: tuple[PodContainer, ...], expected: dict[str, tuple[str, ...]]
) -> None:
    it = pod(SGPU, {METAX_ALLOCATED: text}, *containers)

    assert {one.container: one.devices for one in metax(it, SGPU, CARDS)} == expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", f"{METAX_ALLOCATED} is no JSON: Expecting"),
        ("{}", "no list of lists"),
        ("[1]", "no list of lists"),
        ("[[1]]", "no JSON object"),
        ('[[{"uuid": 1}]]', "no uuid"),
        ('[[{"uuid": "GPU-a", "compute": "10"}]]', "no numbers"),
        (
            '[[{"uuid": "GPU-a", "compute": 101}]]',
            f"{METAX_ALLOCATED}: 101 % and 0 MiB are no part of a card",
        ),
        ('[[{"uuid": "GPU-z"}]]', "GPU-z, which is not here"),
        ("[[], [], []]", "speaks of 3 containers"),
        (f"[[{A}, {B}]]", "names 2 cards, its containers ask for 1"),
        ("[" * 100_000, "too deep"),
    ],
)
def test_what_metaxs_scheduler_does_not_write_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        metax(pod(SGPU, {METAX_ALLOCATED: text}), SGPU, CARDS)


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({KEY: "GPU-a,NVIDIA,1024,10:;"}, [(("GPU-a",), {"core": "10", "memory": str(1 << 30)})]),
        (
            {KEY: "GPU-a,NVIDIA,1024,0:GPU-b,NVIDIA,2048,0:;"},
            [(("GPU-a", "GPU-b"), {"memory": str(1 << 30)})],
        ),
        ({DONE: "GPU-b,NVIDIA,0,0:;"}, [(("GPU-b",), {})]),
        (
            {KEY: "GPU-a,NVIDIA,1,1:;", DONE: "GPU-b,NVIDIA,1,1:;"},
            [(("GPU-a",), {"core": "1", "memory": "1048576"})],
        ),
        ({KEY: ";", DONE: "GPU-b,NVIDIA,0,0:;"}, [(("GPU-b",), {})]),
        ({"hami.io/mlu-devices-to-allocate": "MLU-1,MLU,1,1:;"}, []),
        ({}, []),
    ],
    ids=[
        "a share",
        "two cards",
        "allocated",
        "to be allocated first",
        "taken already",
        "another vendor's",
        "none",
    ],
)
def test_hamis_words_are_read(
    annotations: Mapping[str, str], expected: list[tuple[tuple[str, ...], Mapping[str, str]]]
) -> None:
    assert [(it.devices, it.parameters) for it in hami(pod(GPU, annotations), GPU, CARDS)] == expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("GPU-a,NVIDIA,1024:;", f"{KEY}: GPU-a,NVIDIA,1024 is no uuid,type,MiB,percent"),
        ("GPU-a,NVIDIA,-1,0:;", "is no uuid,type,MiB,percent"),
        ("GPU-a,NVIDIA,1,101:;", f"{KEY}: 101 % and 1 MiB are no part of a card"),
        ("GPU-a,NVIDIA,1,1:GPU-z,NVIDIA,1,1:;", "GPU-z, which is not here"),
        ("GPU-a,NVIDIA,1,1:GPU-a,NVIDIA,1,1:;", "names a card twice"),
        ("GPU-a,NVIDIA,1,1:;;", "speaks of 2 containers"),
        (";" * 1025, f"{KEY} names more than 1024 devices and containers"),
        ("GPU-a,NVIDIA,1,1:" * 1025, f"{KEY} names more than 1024 devices and containers"),
    ],
)
def test_what_hamis_scheduler_does_not_write_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        hami(pod(GPU, {KEY: text}), GPU, CARDS)


ASKED_NVIDIA = [
    ({"nvidia.com/gpumem": 1024, "nvidia.com/gpucores": 10}, {"core": "10", "memory": str(1 << 30)}),
    ({"nvidia.com/gpumem": 4096, "nvidia.com/gpucores": 50}, {"core": "10", "memory": str(1 << 30)}),
    ({"nvidia.com/gpucores": 200}, {"core": "10", "memory": str(1 << 30)}),
    ({"nvidia.com/gpumem": 1024}, {"core": "10", "memory": str(1 << 30)}),
    ({"nvidia.com/gpumem-percentage": 25}, {"core": "10", "memory": str(1 << 30), "ratio": "25"}),
    ({"nvidia.com/gpumem-percentage": 200}, {"core": "10", "memory": str(1 << 30), "ratio": "100"}),
    (
        {"nvidia.com/gpumem": 1024, "nvidia.com/gpumem-percentage": 1},
        {"core": "10", "memory": str(1 << 30)},
    ),
    ({"metax-tech.com/vcore": 1, "metax-tech.com/vmemory": 1}, {"core": "10", "memory": str(1 << 30)}),
    ({"nvidia.com/gpumem": 1023}, "gives more of a card than its container asks for: 1023 MiB"),
    ({"nvidia.com/gpucores": 9}, "gives more of a card than its container asks for: 9 % of the cores"),
]
ASKED_METAX = [
    ({"metax-tech.com/vcore": 10, "metax-tech.com/vmemory": 1}, {"core": "10", "memory": str(1 << 30)}),
    ({"metax-tech.com/vmemory": 1 << 30}, {"core": "10", "memory": str(1 << 30)}),
    ({"metax-tech.com/vmemory": (1 << 30) - 1}, "asks for: 1023 MiB"),
    ({"metax-tech.com/vcore": 9, "metax-tech.com/vmemory": 1}, "asks for: 9 % of the cores"),
    ({"nvidia.com/gpumem": 1}, {"core": "10", "memory": str(1 << 30)}),
]
WORDS = {
    "HAMi's": (hami, GPU, {KEY: "GPU-a,NVIDIA,1024,10:;"}, ASKED_NVIDIA),
    "HAMi's of MetaX": (hami, SGPU, {KEY: "GPU-a,Metax-SGPU,1024,10:;"}, ASKED_METAX),
    "MetaX's": (metax, SGPU, {METAX_ALLOCATED: f"[[{A}]]"}, ASKED_METAX),
    "MetaX's beside another": (metax, SGPU, {METAX_ALLOCATED: f"[[{A}], []]"}, ASKED_METAX),
}


@pytest.mark.parametrize(
    ("words", "limits", "expected"),
    [(name, limits, expected) for name, its in WORDS.items() for limits, expected in its[-1]],
)
def test_nothing_grants_more_than_the_container_asks_for_in_hamis_names(
    words: str, limits: Mapping[str, int], expected: Mapping[str, str] | str
) -> None:
    dialect, resource, said, _ = WORDS[words]
    main, others = PodContainer("main", {resource: 1, **limits}), (SIDE,) * words.endswith("another")
    it = pod(resource, said, main, *others)

    if isinstance(expected, str):
        with pytest.raises(ValueError, match=expected):
            dialect(it, resource, CARDS)
    else:
        (found,) = dialect(it, resource, CARDS)
        assert (found.parameters, found.remark) == (expected, "")


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"nvidia.com/gpumem": 1024, "nvidia.com/gpucores": 30}, {"core": "30", "memory": str(1 << 30)}),
        ({"nvidia.com/gpumem-percentage": 100}, {}),
        ({"nvidia.com/gpucores": 200, "nvidia.com/gpumem": 1024}, {"memory": str(1 << 30), "core": "100"}),
        ({}, {}),
    ],
    ids=["as asked", "the whole card", "more than a card", "nothing asked"],
)
def test_what_is_left_unsaid_is_as_much_as_is_asked_for(
    limits: Mapping[str, int], expected: Mapping[str, str]
) -> None:
    it = pod(GPU, {KEY: "GPU-a,NVIDIA,0,0:;"}, PodContainer("main", {GPU: 1, **limits}))

    assert [one.parameters for one in hami(it, GPU, CARDS)] == [expected]


@pytest.mark.parametrize(
    ("dialect", "said"),
    [
        (hami, {"hami.io/metax-sgpu-devices-allocated": "GPU-a,Metax-SGPU,1024,0:;"}),
        (metax, {METAX_ALLOCATED: '[[{"uuid": "GPU-a", "vRam": 1024}]]'}),
    ],
    ids=["HAMi's words", "MetaX's words"],
)
def test_cores_of_metax_that_are_left_unsaid_are_none(dialect: Claims, said: Mapping[str, str]) -> None:
    main = PodContainer("main", {SGPU: 1, "metax-tech.com/vcore": 30, "metax-tech.com/vmemory": 1})

    assert [it.parameters for it in dialect(pod(SGPU, said, main), SGPU, CARDS)] == [{"memory": str(1 << 30)}]


def test_of_a_resource_that_was_renamed_no_more_is_granted_either() -> None:
    renamed = "example.com/gpu"
    main = PodContainer("main", {renamed: 1, "nvidia.com/gpumem": 1024})

    with pytest.raises(ValueError, match="gives more of a card than its container asks for: 1024 MiB"):
        hami(pod(renamed, {KEY: "GPU-a,NVIDIA,65536,100:;"}, main), renamed, CARDS)
    assert hami(
        pod(renamed, {KEY: "GPU-a,NVIDIA,1024,10:;"}, PodContainer("main", {renamed: 1})), renamed, CARDS
    )


def test_each_of_several_cards_gives_as_much_as_is_asked_of_one() -> None:
    its = {KEY: "GPU-a,NVIDIA,1024,10:GPU-b,NVIDIA,1024,10:;"}
    it = pod(GPU, its, PodContainer("main", {GPU: 2, "nvidia.com/gpumem": 1024, "nvidia.com/gpucores": 10}))

    assert [one.parameters for one in hami(it, GPU, CARDS)] == [{"core": "10", "memory": str(1 << 30)}]


def test_a_pod_that_kubernetes_own_scheduler_bound_is_not_believed() -> None:
    for said, dialect in (({KEY: "GPU-a,NVIDIA,1,1:;"}, hami), ({METAX_ALLOCATED: f"[[{A}]]"}, metax)):
        with pytest.raises(ValueError, match="not believed"):
            dialect(pod(GPU, said, scheduler="default-scheduler"), GPU, CARDS)


json_ = st.recursive(
    st.one_of(
        st.integers(), st.sampled_from(["GPU-a", "GPU-b"]), st.text(max_size=3), st.booleans(), st.none()
    ),
    lambda it: st.lists(it, max_size=3) | st.dictionaries(st.sampled_from(["uuid", "compute", "vRam"]), it),
).map(json.dumps)
words = st.lists(st.sampled_from(["GPU-a", "GPU-b", ",NVIDIA", ",1", ",", ":", ";", "x"]), max_size=12).map(
    "".join
)


@given(st.one_of(json_, strategies.hostile_texts), st.one_of(words, strategies.hostile_texts))
def test_no_annotation_crashes_or_names_a_card_that_it_does_not_hold(first: str, second: str) -> None:
    it = pod(GPU, {METAX_ALLOCATED: first, KEY: second})

    found = attribute(GPU, 1, {"GPU-a"}, WaitingPods(KnownPods.of((it,)), (METAX, HAMI), CARDS)).claim

    assert found is None or "GPU-a" in first + second
