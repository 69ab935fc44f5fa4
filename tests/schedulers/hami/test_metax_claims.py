"""What schedulers promise of MetaX's cards, as the real koord-scheduler and HAMi write it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest
from support import recorded_pods

from agent.daemon.scheduler_plugins import registered
from agent.scheduler_api import Candidate, Claim, PodContainer
from agent.schedulers.common.shares import AVERAGE
from agent.schedulers.hami.metax_claims import (
    ANY_QOS,
    APP_CLASS,
    BEST_EFFORT,
    CORE,
    MEMORY,
    MIB,
    POLICY,
    QOS,
    REFUSED,
    WHOLE,
    metax_sgpu,
)
from agent.schedulers.hami.pod_annotations import METAX_ALLOCATED
from agent.schedulers.koordinator.allocated_annotation import ALLOCATED
from agent.vendor_api.agent import Request, RequestRefused
from agent.vendors.metax.shared import slice_request
from agent.vendors.metax.shared.qos_policy import ANNOTATION, DEFAULT
from agent.vendors.metax.shared.slice_request import slices

SGPU = "metax-tech.com/sgpu"
CARDS = recorded_pods.devices("metax1")
CASES = {it.name: it for it in recorded_pods.cases("metax1")}
GIB = 1 << 30

DIALECT = metax_sgpu({"compared": "koordinator"}, registered())


def test_the_vendor_s_and_the_scheduler_s_words_are_the_same() -> None:
    said = (POLICY, BEST_EFFORT, CORE, MEMORY, QOS, ANY_QOS, REFUSED, WHOLE, MIB)
    its = slice_request

    assert said[:2] == (ANNOTATION, str(DEFAULT))
    assert said[2:] == (its.CORE, its.MEMORY, its.QOS, its.ANY_QOS, its.REFUSED, its.WHOLE, its.MIB)


def test_without_koordinator_metax_s_annotation_alone_is_heard() -> None:
    alone, text = metax_sgpu({}, ()), json.dumps([[{"uuid": next(iter(CARDS))}]])
    pod = Candidate("u", "ns", "pod", (PodContainer("main", {SGPU: 1}),), {METAX_ALLOCATED: text})

    assert [it.devices for it in alone.claims(pod, SGPU, CARDS)] == [(next(iter(CARDS)),)]


def claims(pod: Candidate) -> dict[str, Claim]:
    return {it.container: it for it in DIALECT.claims(pod, SGPU, CARDS)}


def made(claim: Claim) -> tuple[str, int, int, str]:
    """The slice: minor of its card, MiB, percent and policy."""
    request = Request("a", SGPU, tuple(f"{it}::0" for it in claim.devices), claim.parameters)
    (one,) = slices(request, dict.fromkeys(claim.devices, 64 * GIB))
    return f"{CARDS[one.card]}", one.memory, one.compute, str(one.qos)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("m-doc001", {"a": ("0", 1024, 10, "fixed-share")}),
        ("m-best", {"a": ("1", 1024, 5, "best-effort")}),
        ("m-burst", {"a": ("0", 20480, 60, "burst-share")}),
        ("m-ratio", {"a": ("0", 16384, 25, "best-effort")}),
        ("m-full", {"a": ("2", 65536, 100, "None")}),
        ("m-two-ctrs", {"a": ("3", 2048, 15, "best-effort"), "b": ("1", 2048, 15, "best-effort")}),
        ("m-sidecar", {"a": ("1", 1024, 10, "best-effort")}),
        ("m-memonly", {}),
        ("m-full2", {}),
    ],
)
def test_what_koord_scheduler_wrote_becomes_the_slices_that_it_meant(
    name: str, expected: Mapping[str, tuple[str, int, int, str]]
) -> None:
    assert {key: made(it) for key, it in claims(CASES[name].candidate).items()} == expected


def test_every_recorded_pod_is_tested() -> None:
    assert CASES.keys() == {
        *("m-doc001", "m-best", "m-burst", "m-ratio", "m-full", "m-two-ctrs", "m-sidecar"),
        *("m-memonly", "m-full2"),
    }


def test_containers_that_get_the_average_of_their_pod_are_told() -> None:
    its = claims(CASES["m-two-ctrs"].candidate)
    assert [AVERAGE in it.remark for it in its.values()] == [True, True]


@pytest.mark.parametrize("left_out", [ALLOCATED, METAX_ALLOCATED])
def test_one_of_koord_schedulers_two_annotations_says_as_much_as_both(left_out: str) -> None:
    for case in CASES.values():
        pod = case.candidate
        less = {key: it for key, it in pod.annotations.items() if key != left_out}
        assert claims(replace(pod, annotations=less)) == claims(pod)


@pytest.mark.parametrize("size", [10**9, 1500 * 10**6, 1_000_000_007, GIB, GIB + 1, GIB - 1])
def test_memory_that_is_no_whole_number_of_mib_is_the_same_promise_in_bytes_and_in_mib(size: int) -> None:
    pod = CASES["m-doc001"].candidate
    limits = {"koordinator.sh/gpu-memory": size}
    gpu = json.loads(pod.annotations[ALLOCATED])
    gpu["gpu"][0]["resources"]["koordinator.sh/gpu-memory"] = str(size)
    gpu["gpu"][0]["resources"].pop("koordinator.sh/gpu-memory-ratio", None)
    metax = json.loads(pod.annotations[METAX_ALLOCATED])
    metax[0][0]["vRam"] = size >> 20
    said = {ALLOCATED: json.dumps(gpu), METAX_ALLOCATED: json.dumps(metax)}
    its = tuple(replace(it, limits={**it.limits, **limits}) for it in pod.containers)

    (claim,) = claims(replace(pod, containers=its, annotations={**pod.annotations, **said})).values()

    assert made(claim)[1] == size // (128 << 20) * 128


def otherwise(pod: Candidate, **more: str) -> Candidate:
    return replace(pod, annotations={**pod.annotations, **more})


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ('[[{"uuid":"GPU-00000003-metax","compute":10,"vRam":1024}]]', "promise different things"),
        ('[[{"uuid":"GPU-00000000-metax","compute":9,"vRam":1024}]]', "promise different things"),
        ('[[{"uuid":"GPU-00000000-metax","compute":10,"vRam":512}]]', "promise different things"),
        ("[[]]", "promise different things"),
        ("no json", "is no JSON"),
        ("1" * 5_000, f"{METAX_ALLOCATED} is no JSON"),
        ('[[{"uuid":"GPU-of-another-node","compute":10,"vRam":1024}]]', "is not here"),
    ],
)
def test_annotations_that_do_not_agree_refuse_the_pod(other: str, says: str) -> None:
    its = claims(otherwise(CASES["m-doc001"].candidate, **{METAX_ALLOCATED: other}))
    with pytest.raises(RequestRefused, match=says):
        made(its["a"])


def test_a_policy_that_there_is_not_refuses_the_pod_and_keeps_its_claim() -> None:
    its = claims(otherwise(CASES["m-doc001"].candidate, **{ANNOTATION: "gold" * 100}))
    assert its["a"].devices == ("GPU-00000000-metax",)
    assert len(its["a"].parameters["qos"]) < 100
    with pytest.raises(RequestRefused, match="there are best-effort, fixed-share, burst-share") as refused:
        made(its["a"])
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize("text", ["any", "any-qos", "true", "None"])
@pytest.mark.parametrize("app", ["online", "offline"])
def test_no_policy_that_a_pod_can_write_stands_for_any(text: str, app: str) -> None:
    card = {"uuid": "GPU-00000001-metax", "compute": 10, "vRam": 2048}
    (claim,) = claims(of_hami([card], **{APP_CLASS: app, ANNOTATION: text})).values()
    with pytest.raises(RequestRefused, match="there are best-effort, fixed-share, burst-share"):
        made(claim)


@pytest.mark.parametrize("text", ["no json", "{}", '[["GPU-00000000-metax"]]'])
def test_annotations_that_make_no_sense_at_all_make_no_claim(text: str) -> None:
    pod = Candidate("uid", "default", "web", (PodContainer("a", {SGPU: 1}),), {METAX_ALLOCATED: text})
    with pytest.raises(ValueError, match=METAX_ALLOCATED):
        claims(pod)


def of_hami(*lists: list[Mapping[str, object]], **annotations: str) -> Candidate:
    """A pod with a container for each list, as HAMi writes it."""
    containers = tuple(PodContainer(f"c{n}", {SGPU: len(its)} if its else {}) for n, its in enumerate(lists))
    said = {
        METAX_ALLOCATED: json.dumps(lists),
        "metax-tech.com/predicate-time": "1795210449908120761",
        **annotations,
    }
    return Candidate("uid", "default", "web", containers, said)


def test_hami_says_for_each_container_what_it_gets() -> None:
    one = {"uuid": "GPU-00000002-metax", "compute": 30, "vRam": 4096}
    other = {"uuid": "GPU-00000003-metax", "compute": 20, "vRam": 2048}
    pod = of_hami([one], [], [other], **{ANNOTATION: "fixed-share"})
    assert {key: made(it) for key, it in claims(pod).items()} == {
        "c0": ("2", 4096, 30, "fixed-share"),
        "c2": ("3", 2048, 20, "fixed-share"),
    }


def test_hamis_own_words_alone_are_heard_with_the_policy_too() -> None:
    said = {
        "hami.io/metax-sgpu-devices-allocated": "GPU-00000001-metax,Metax-SGPU,2048,20:;",
        ANNOTATION: "burst-share",
    }
    pod = Candidate("uid", "default", "web", (PodContainer("a", {SGPU: 1}),), said)
    assert {key: made(it) for key, it in claims(pod).items()} == {"a": ("1", 2048, 20, "burst-share")}


@pytest.mark.parametrize("text", ["MetaX's words", "HAMi's words"])
def test_an_online_pod_of_hami_takes_no_compute_of_which_hami_counts_none(text: str) -> None:
    words = {
        "MetaX's words": {METAX_ALLOCATED: '[[{"uuid":"GPU-00000001-metax","vRam":4096}]]'},
        "HAMi's words": {"hami.io/metax-sgpu-devices-allocated": "GPU-00000001-metax,Metax-SGPU,4096,0:;"},
    }
    limits = {SGPU: 1, "metax-tech.com/vcore": 30, "metax-tech.com/vmemory": 4}
    said = {**words[text], APP_CLASS: "online"}
    pod = Candidate("uid", "default", "web", (PodContainer("a", limits),), said)
    assert {key: made(it) for key, it in claims(pod).items()} == {"a": ("1", 4096, 1, "None")}


def test_an_online_pod_of_hami_takes_any_policy_and_hears_that_nobody_is_suspended_for_it() -> None:
    card = {"uuid": "GPU-00000001-metax", "vRam": 2048}
    (claim,) = claims(of_hami([card], **{APP_CLASS: "online"})).values()
    assert made(claim) == ("1", 2048, 1, "None")
    assert "no pod that is offline is suspended" in claim.remark
