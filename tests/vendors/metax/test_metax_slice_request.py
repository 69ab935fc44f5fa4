"""What slices a request is."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext

import pytest

from agent.daemon.scheduler_parts import with_named_parts
from agent.scheduler_api import Part
from agent.vendor_api.agent import Request, RequestRefused
from agent.vendors.metax.agent.slice_room import part
from agent.vendors.metax.plugin import register_backend
from agent.vendors.metax.shared.qos_policy import SCHED_CLASSES, Qos, fitting, policy
from agent.vendors.metax.shared.slice_request import Slice, Unclaimed, slices

GIB = 1 << 30
CARD = 64 * GIB


def of(
    parameters: Mapping[str, str],
    ids: int = 1,
    cards: int | None = None,
    how: Unclaimed = "share",
    size: int = CARD,
) -> tuple[Slice, ...]:
    request = Request("a", "metax-tech.com/sgpu", tuple(f"card0::{n}" for n in range(ids)), parameters)
    return slices(request, {f"card{n}": size for n in range(ids if cards is None else cards)}, how)


@pytest.mark.parametrize(
    ("parameters", "memory", "compute"),
    [
        pytest.param({"core": "10", "memory": str(GIB), "ratio": "1"}, 1024, 10, id="as document 001 asks"),
        pytest.param({"core": "25", "memory": str(16 * GIB), "ratio": "25"}, 16384, 25, id="by a ratio"),
        pytest.param({"core": "10", "memory": str(GIB - 1)}, 896, 10, id="down to a step"),
        pytest.param({"core": "10", "memory": "1"}, 128, 10, id="never less than a step"),
        pytest.param({"core": "10", "ratio": "50"}, 32768, 10, id="a ratio alone is of the card"),
        pytest.param({"core": "50"}, 32768, 50, id="no memory is the part that the compute is"),
        pytest.param({"memory": str(32 * GIB)}, 32768, 1, id="who counts no compute gets the least"),
        pytest.param({"core": "100", "memory": str(2 * CARD)}, 65536, 100, id="whole is what there is"),
        pytest.param({"ratio": "100"}, 65536, 100, id="all of the memory alone is whole"),
        pytest.param({"core": "10", "memory": str(2 * CARD), "ratio": "100"}, 65536, 10, id="all is all"),
        pytest.param({"core": "100"}, 65536, 100, id="whole"),
        pytest.param({"core": "100", "memory": str(GIB)}, 1024, 100, id="never more memory than promised"),
    ],
)
def test_a_claim_says_how_much_of_a_card_its_slice_is(
    parameters: Mapping[str, str], memory: int, compute: int
) -> None:
    (made,) = of(parameters)
    assert (made.card, made.memory, made.compute) == ("card0", memory, compute)


def test_a_card_whose_memory_is_no_multiple_of_a_step_gives_its_whole_steps() -> None:
    (made,) = of({"core": "100"}, size=64 * GIB - 1)
    assert made.memory == 65408


@pytest.mark.parametrize(("how", "memory", "compute"), [("share", 4096, 6), ("whole", 65536, 100)])
def test_who_has_no_claim_gets_what_the_setting_says(how: Unclaimed, memory: int, compute: int) -> None:
    (made,) = of({}, how=how)
    assert (made.memory, made.compute) == (memory, compute)


@pytest.mark.parametrize(
    ("how", "ids", "becomes"),
    [
        ("share", 1, "gets a sixteenth of a card"),
        ("whole", 1, "gets a whole card"),
        ("refuse", 1, "is refused"),
        ("share", 2, "is refused"),
        ("whole", 2, "is refused"),
    ],
)
def test_what_becomes_of_who_has_no_claim_is_said_as_it_is(how: Unclaimed, ids: int, becomes: str) -> None:
    vendor = register_backend({"mode": "sgpu", "unclaimed": how})
    assert vendor.offers.without_choice is not None
    assert vendor.offers.without_choice(ids) == becomes
    with pytest.raises(RequestRefused) if becomes == "is refused" else nullcontext():
        of({}, ids, how=how)


def test_in_other_modes_the_kubelet_chooses_for_who_has_no_claim() -> None:
    assert register_backend({"unclaimed": "refuse"}).offers.without_choice is None


def test_a_policy_alone_is_no_claim_of_an_amount() -> None:
    assert of({"qos": "fixed-share"}) == (Slice("card0", 4096, 6, Qos.FIXED_SHARE),)


@pytest.mark.parametrize(
    ("parameters", "ids", "cards", "how", "says"),
    [
        ({}, 1, 1, "refuse", "no scheduler says how much"),
        ({}, 2, 1, "share", "one partial sGPU per container"),
        ({}, 2, 2, "whole", "one partial sGPU per container"),
        ({"core": "10"}, 2, 2, "share", "one partial sGPU per container"),
        ({"core": "100"}, 1, 2, "share", "ask for as many as cards"),
        ({"core": "100"}, 2, 1, "share", "ask for as many as cards"),
        (
            {"core": "10", "memory": str(2 * CARD)},
            1,
            1,
            "share",
            "131072 MiB are promised of card0, which has 65536",
        ),
        (
            {"core": "10", "qos": "gold"},
            1,
            1,
            "share",
            "'gold'; there are best-effort, fixed-share, burst-share",
        ),
        (
            {"core": "10", "qos": "any"},
            1,
            1,
            "share",
            "'any'; there are best-effort, fixed-share, burst-share",
        ),
        ({"refused": "two say two things"}, 1, 1, "share", "two say two things"),
    ],
)
def test_what_is_no_slice_is_refused_with_what_would_work(
    parameters: Mapping[str, str], ids: int, cards: int, how: Unclaimed, says: str
) -> None:
    with pytest.raises(RequestRefused, match=says):
        of(parameters, ids, cards, how)


def test_several_whole_cards_are_a_slice_each() -> None:
    made = of({"core": "100", "memory": str(CARD), "ratio": "100"}, ids=2)
    assert [(it.card, it.memory, it.whole) for it in made] == [("card0", 65536, True), ("card1", 65536, True)]


@pytest.mark.parametrize(
    ("said", "means"), [("", Qos.BEST_EFFORT), *((str(it), it) for it in Qos)], ids=["none", *Qos]
)
def test_a_slice_has_the_policy_that_its_pod_names(said: str, means: Qos) -> None:
    (made,) = of({"core": "10", "qos": said})
    assert (made.qos, policy(said)) == (means, means)


@pytest.mark.parametrize(
    "said",
    [
        pytest.param({"core": "100", "qos": "fixed-share"}, id="all of the compute"),
        pytest.param({"core": "10", "any-qos": "true"}, id="any policy"),
    ],
)
def test_a_share_that_needs_no_policy_names_none(said: dict[str, str]) -> None:
    assert [it.qos for it in of(said)] == [None]


def test_a_card_without_slices_takes_any_policy_and_keeps_the_one_that_it_has() -> None:
    assert fitting(Qos.FIXED_SHARE, None, "card0") is Qos.FIXED_SHARE
    assert fitting(Qos.FIXED_SHARE, Qos.FIXED_SHARE, "card0") is None
    assert fitting(None, Qos.FIXED_SHARE, "card0") is None


def test_another_policy_than_that_of_the_cards_slices_is_refused_with_both() -> None:
    with pytest.raises(RequestRefused, match="is burst-share, and the slices on card0 are fixed-share"):
        fitting(Qos.BURST_SHARE, Qos.FIXED_SHARE, "card0")


def test_the_classes_are_those_of_the_library() -> None:
    assert SCHED_CLASSES == {Qos.BEST_EFFORT: 0, Qos.FIXED_SHARE: 1, Qos.BURST_SHARE: 2}


@pytest.mark.parametrize(
    ("parameters", "size", "expected"),
    [
        pytest.param({"core": "10", "memory": str(16 * GIB)}, CARD, Part(0.1, 0.25), id="what is named"),
        pytest.param({"core": "10", "ratio": "50"}, CARD, Part(0.1, 0.5), id="a ratio"),
        pytest.param({"core": "100", "qos": ""}, CARD, Part(1, 1), id="a whole card"),
        pytest.param({"memory": "1"}, CARD, Part(0.01, 1 / 512), id="never less than a slice can be"),
        pytest.param({"core": "10", "memory": str(2 * CARD)}, CARD, Part(0.1, 1), id="more than there is"),
        pytest.param({"core": "10"}, 0, Part(0.1, 0), id="a card whose size is unknown"),
        pytest.param({"qos": "fixed-share"}, CARD, None, id="no amount"),
        pytest.param({"core": "some"}, CARD, None, id="no number"),
    ],
)
def test_a_claim_takes_of_a_card_what_its_slice_does(
    parameters: Mapping[str, str], size: int, expected: Part | None
) -> None:
    assert part(parameters, size) == expected


@pytest.mark.parametrize(("how", "expected"), [("share", None), ("refuse", None), ("whole", Part(1, 1))])
def test_a_claim_that_names_no_amount_takes_of_a_card_what_is_set(
    how: Unclaimed, expected: Part | None
) -> None:
    limits = with_named_parts(register_backend({"mode": "sgpu", "unclaimed": how})).pod_limits

    assert limits is not None
    assert limits.measure is not None
    assert limits.measure({"qos": "best-effort"}, CARD) == expected
