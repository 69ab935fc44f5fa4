"""What a pod asks of cards beside what it was granted: never more, and as the scheduler counts it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from played_koordinator.scheduler import Asking, Scheduler
from played_koordinator.wishes import Unschedulable

from agent.scheduler_api import Candidate, Claim, PodContainer
from agent.schedulers.common.pod_request import requested_by
from agent.schedulers.common.resource_names import CORE, GPU, MEMORY, RATIO, SHARED, quantity
from agent.schedulers.hami.pod_annotations import METAX_ALLOCATED, hami, metax
from agent.schedulers.koordinator.allocated_annotation import ALLOCATED
from agent.schedulers.koordinator.dialect import claims

TOKEN, PLUGIN = "example.com/share", "nvidia.com/gpu"
CARDS = {f"GPU-{it}": it for it in range(6)}
GIB = 1 << 30
SIZE = 80 * GIB
#: What HAMi's scheduler wrote.
HAMI = "hami.io/vgpu-devices-to-allocate"


def grant(
    minor: int, core: int | None = None, memory: str = "", ratio: int | None = None
) -> dict[str, object]:
    said = {CORE: core, MEMORY: memory or None, RATIO: ratio}
    resources = {name: str(it) for name, it in said.items() if it is not None}
    return {"minor": minor, "id": f"GPU-{minor}", "resources": resources}


def pod(*its: PodContainer | Mapping[str, int], grants: list[dict[str, object]] | None = None) -> Candidate:
    containers = tuple(
        it if isinstance(it, PodContainer) else PodContainer("abc"[n], {TOKEN: 1, **it})
        for n, it in enumerate(its)
    )
    written = {} if grants is None else {ALLOCATED: json.dumps({"gpu": grants})}
    return Candidate("uid", "default", "web", containers, written)


TENTH = {CORE: 10, MEMORY: GIB}


@pytest.mark.parametrize(
    ("limits", "granted", "why"),
    [
        (TENTH, grant(1, 100, "1Gi", 1), "gives 100 of koordinator.sh/gpu-core, its containers ask for 10"),
        (TENTH, grant(1, 10, "80Gi", 100), "of koordinator.sh/gpu-memory, its containers ask for 1073741824"),
        (TENTH, grant(1, 0, "1Gi", 1), "gives 0 of koordinator.sh/gpu-core, its containers ask for 10"),
        (TENTH, grant(1, 10, "0", 1), "gives 0 of koordinator.sh/gpu-memory"),
        ({CORE: 10, RATIO: 10}, grant(1, 10, "8Gi", 11), "gives 11 of koordinator.sh/gpu-memory-ratio"),
        ({CORE: 10, RATIO: 10}, grant(1, 10, "8Gi", 0), "gives 0 of koordinator.sh/gpu-memory-ratio"),
        ({GPU: 30}, grant(1, 30, "", 31), "gives 31 of koordinator.sh/gpu-memory-ratio"),
        ({CORE: 50}, grant(1, 50), "asks for neither koordinator.sh/gpu-memory nor"),
        ({SHARED: 1}, grant(1, 50), "asks for neither koordinator.sh/gpu-memory nor"),
    ],
)
def test_more_than_was_asked_for_or_nothing_of_it_is_no_schedulers_word(
    limits: Mapping[str, int], granted: dict[str, object], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        claims(pod(limits, grants=[granted]), TOKEN, CARDS)


@pytest.mark.parametrize(
    ("limits", "granted", "parameters"),
    [
        (TENTH, grant(1, 10, "1Gi", 1), {"core": "10", "memory": str(GIB)}),
        (TENTH, grant(1, 10, "1Gi", 100), {"core": "10", "memory": str(GIB)}),
        ({CORE: 100, MEMORY: SIZE}, grant(1, 100, "80Gi", 100), {"core": "100", "memory": str(SIZE)}),
        ({CORE: 10, RATIO: 20}, grant(1, 10, "80Gi", 20), {"core": "10", "ratio": "20"}),
        ({CORE: 10, RATIO: 20}, grant(1), {"core": "10", "ratio": "20"}),
        (TENTH, grant(1), {"core": "10", "memory": str(GIB)}),
        ({MEMORY: GIB}, grant(1, 100, "1Gi", 1), {"memory": str(GIB)}),
        ({RATIO: 100}, grant(1, None, "80Gi", 100), {}),
        ({CORE: 100, RATIO: 100}, grant(1, 100, "80Gi", 100), {}),
        ({PLUGIN: 1}, grant(1, 100, "80Gi", 100), {}),
        ({PLUGIN: 1}, grant(1), {}),
    ],
    ids=[
        "bytes",
        "bytes, whose percent is not theirs",
        "all bytes",
        "percent, whose bytes are not theirs",
        "nothing is said",
        "nothing is said of bytes",
        "cores that nobody asked for",
        "all memory",
        "a whole card",
        "a device plugin's card",
        "a device plugin's card of which nothing is said",
    ],
)
def test_a_share_is_said_as_it_was_asked_for_and_no_grant_lifts_its_limits(
    limits: Mapping[str, int], granted: dict[str, object], parameters: Mapping[str, str]
) -> None:
    [found] = claims(pod(limits, grants=[granted]), TOKEN, CARDS)

    assert found.parameters == parameters


def test_what_is_left_unsaid_of_several_cards_is_divided_as_the_scheduler_does() -> None:
    [found] = claims(pod({CORE: 90, RATIO: 61, SHARED: 2}, grants=[grant(1), grant(2)]), TOKEN, CARDS)

    assert found.parameters == {"core": "45", "ratio": "30"}


@pytest.mark.parametrize(
    "written",
    [
        {METAX_ALLOCATED: '[[{"uuid": "GPU-1", "compute": 100, "vRam": 81920}]]'},
        {METAX_ALLOCATED: '[[], [{"uuid": "GPU-1", "compute": 10, "vRam": 81920}]]'},
        {HAMI: "GPU-1,NVIDIA,81920,10:;"},
    ],
    ids=["MetaX's", "MetaX's, for each container", "HAMi's"],
)
def test_no_other_dialect_gives_more_than_was_asked_for_in_koordinators_words(
    written: dict[str, str],
) -> None:
    setup = PodContainer("setup", {}, init=True)
    its = (setup, PodContainer("a", {TOKEN: 1, **TENTH}))
    it = Candidate("uid", "default", "web", its if "[]" in str(written) else its[1:], written)

    with pytest.raises(ValueError, match="its containers ask for"):
        (metax if METAX_ALLOCATED in written else hami)(it, TOKEN, CARDS)


@pytest.mark.parametrize(
    "written",
    [{METAX_ALLOCATED: '[[{"uuid": "GPU-1"}]]'}, {HAMI: "GPU-1,NVIDIA,0,0:;"}],
    ids=["MetaX's", "HAMi's"],
)
def test_what_another_dialect_leaves_unsaid_is_limited_as_it_was_asked_for(written: dict[str, str]) -> None:
    it = Candidate("uid", "default", "web", (PodContainer("a", {TOKEN: 1, **TENTH}),), written)

    [found] = (metax if METAX_ALLOCATED in written else hami)(it, TOKEN, CARDS)

    assert found.parameters == {"core": "10", "memory": str(GIB)}


HALF = {CORE: 50, RATIO: 50}


def by_container(found: list[Claim]) -> dict[str, tuple[tuple[str, ...], Mapping[str, str]]]:
    return {it.container: (it.devices, it.parameters) for it in found}


def test_containers_that_ask_for_parts_of_one_card_share_it_each_with_its_own_part() -> None:
    it = pod({CORE: 70, RATIO: 80}, {CORE: 30, RATIO: 20}, grants=[grant(4, 100, "80Gi", 100)])

    assert by_container([*claims(it, TOKEN, CARDS)]) == {
        "a": (("GPU-4",), {"core": "70", "ratio": "80"}),
        "b": (("GPU-4",), {"core": "30", "ratio": "20"}),
    }
    assert not any(one.remark for one in claims(it, TOKEN, CARDS))


def test_parts_that_do_not_fit_beside_each_other_go_to_another_card() -> None:
    whole = {CORE: 100, RATIO: 100}
    it = pod(HALF, whole, HALF, grants=[grant(2, 100, "", 100), grant(3, 100, "", 100)])

    assert by_container([*claims(it, TOKEN, CARDS)]) == {
        "a": (("GPU-2",), {"core": "50", "ratio": "50"}),
        "b": (("GPU-3",), {}),
        "c": (("GPU-2",), {"core": "50", "ratio": "50"}),
    }


@pytest.mark.parametrize(
    ("first", "then", "parts"),
    [
        ({CORE: 40, RATIO: 40}, [{CORE: 20, RATIO: 20}], [("40", "40"), ("20", "20")]),
        ({CORE: 20, RATIO: 20}, [{CORE: 40, RATIO: 40}], [("20", "20"), ("40", "40")]),
        (
            {CORE: 50, RATIO: 50, SHARED: 2},
            [{CORE: 10, RATIO: 10}, {CORE: 20, RATIO: 20}],
            [("25", "25"), ("15", "15"), ("15", "15")],
        ),
    ],
    ids=["more at first", "less at first", "two after it, on the average"],
)
def test_each_container_has_what_its_time_asks_for_and_not_what_the_hungriest_does(
    first: Mapping[str, int], then: Sequence[Mapping[str, int]], parts: Sequence[tuple[str, str]]
) -> None:
    """The scheduler grants the pod the most that it needs at any time."""
    its = [PodContainer("setup", {TOKEN: first.get(SHARED, 1), SHARED: 1, **first}, init=True)]
    its += [PodContainer(f"c{n}", {TOKEN: 1, SHARED: 1, **one}) for n, one in enumerate(then)]
    cards = max(first.get(SHARED, 1), len(then))
    percent = max(first[CORE], sum(one[CORE] for one in then)) // cards
    grants = [grant(minor, percent, "", percent) for minor in range(1, cards + 1)]

    found = claims(pod(*its, grants=grants), TOKEN, CARDS)

    assert [(it.parameters["core"], it.parameters["ratio"]) for it in found] == list(parts)


def test_an_init_container_leaves_its_part_to_those_after_it() -> None:
    setup = PodContainer("setup", {TOKEN: 1, **HALF}, init=True)
    proxy = PodContainer("proxy", {TOKEN: 1, CORE: 40, RATIO: 40}, init=True, restartable=True)
    it = pod(
        proxy, setup, PodContainer("main", {TOKEN: 1, CORE: 60, RATIO: 60}), grants=[grant(1, 100, "", 100)]
    )

    assert {one: its[0] for one, its in by_container([*claims(it, TOKEN, CARDS)]).items()} == {
        "proxy": ("GPU-1",),
        "setup": ("GPU-1",),
        "main": ("GPU-1",),
    }


def test_parts_that_fit_on_no_card_are_refused() -> None:
    uneven = ({CORE: 60, RATIO: 60}, {CORE: 60, RATIO: 60}, {CORE: 80, RATIO: 80})
    it = pod(*uneven, grants=[grant(2, 100, "", 100), grant(3, 100, "", 100)])

    with pytest.raises(ValueError, match="leaves too little of its cards for container c"):
        claims(it, TOKEN, CARDS)


def test_a_part_of_which_nothing_is_left_is_refused() -> None:
    its = ({CORE: 1, RATIO: 200}, {CORE: 100, RATIO: 50}, {CORE: 99, RATIO: 50})
    it = pod(*its, grants=[grant(1), grant(2), grant(3)])

    with pytest.raises(ValueError, match=r"gives 0 of koordinator.sh/gpu-core"):
        claims(it, TOKEN, CARDS)


def test_a_card_that_is_named_by_id_and_by_minor_is_named_twice() -> None:
    named: list[dict[str, object]] = [{"minor": 5, "id": "GPU-2"}, {"minor": 2}]

    with pytest.raises(ValueError, match="names a card twice"):
        claims(pod({PLUGIN: 2}, grants=named), TOKEN, CARDS)


# Beside the scheduler

amounts = st.one_of(
    st.fixed_dictionaries({CORE: st.integers(1, 100), RATIO: st.integers(1, 100)}),
    st.fixed_dictionaries({RATIO: st.sampled_from([10, 50, 100, 200])}),
    st.fixed_dictionaries({CORE: st.integers(1, 100), MEMORY: st.integers(1, 40).map(GIB.__mul__)}),
    st.fixed_dictionaries({MEMORY: st.integers(1, 40).map(GIB.__mul__)}),
    st.fixed_dictionaries({GPU: st.sampled_from([10, 50, 100, 300])}),
    st.fixed_dictionaries({PLUGIN: st.integers(1, 3)}),
)


@st.composite
def limits(draw: st.DrawFn) -> list[dict[str, int]]:
    """Of the containers of a pod: all ask in one way, as schedulers want it."""
    first = draw(amounts)
    its = [first, *draw(st.lists(amounts.filter(lambda it: it.keys() == first.keys()), max_size=2))]
    if draw(st.booleans()) and GPU not in first and PLUGIN not in first:
        count = draw(st.integers(1, 2))
        its = [{**{name: it * count for name, it in one.items()}, SHARED: count} for one in its]
    return its


@given(limits())
def test_what_the_scheduler_grants_is_believed_and_is_all_that_containers_get(
    its: list[dict[str, int]],
) -> None:
    texts = tuple(
        {name: quantity(it) if name == MEMORY else str(it) for name, it in one.items()} for one in its
    )
    cards = [
        {
            "type": "gpu",
            "id": uuid,
            "minor": minor,
            "health": True,
            "resources": {CORE: "100", MEMORY: quantity(SIZE), RATIO: "100"},
        }
        for uuid, minor in CARDS.items()
    ]
    everything = dict.fromkeys((CORE, MEMORY, RATIO, SHARED, GPU, PLUGIN), 1 << 60)
    try:
        bound = Scheduler().bind(
            Asking("web", texts), {"metadata": {}, "spec": {"devices": cards}}, (), allocatable=everything
        )
    except Unschedulable:
        assume(False)
        return
    said = json.loads(bound.annotations[ALLOCATED])["gpu"]
    containers = tuple(PodContainer("abc"[n], {TOKEN: 1, **one}) for n, one in enumerate(its))
    it = Candidate("uid", "default", "web", containers, bound.annotations)

    assert requested_by(it).cards == len(said)
    try:
        found = claims(it, TOKEN, CARDS)
    except ValueError:
        assert SHARED not in its[0]  # parts of cards that are not cut so
        return
    assert len(found) == len(its)
    for card in said:
        shares = [one.parameters for one in found if card["id"] in one.devices]
        assert sum(_percent(one, "core") for one in shares) <= int(card["resources"].get(CORE, 100))
        assert len(shares) <= 1 or sum(_percent(one, "ratio") for one in shares) <= 100


def _percent(share: Mapping[str, str], key: str) -> int:
    return int(share.get(key, 0)) if share else 100
