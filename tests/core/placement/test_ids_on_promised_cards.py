"""How a scheduler's choice of cards becomes IDs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.allocation.known_pods import KnownPods
from agent.core.attribution.waiting_pods import WaitingPods
from agent.core.devices.topology import Topology
from agent.core.model import Resource
from agent.core.placement.ids_on_promised_cards import chosen_ids
from agent.scheduler_api import Candidate
from core.scenes import CHOSEN, bound
from core.values import GPU, shared, whole

CARDS = ("a", "b", "c")
TRIO = shared(dict.fromkeys(CARDS, 2))


def steer(
    resource: Resource,
    available: str,
    size: int,
    *pods: Candidate,
    required: str = "",
    whole_of: dict[str, str] | None = None,
) -> list[str]:
    cards = {card.uuid: n for n, card in enumerate(resource.cards)}
    waiting = WaitingPods(KnownPods.of(pods), [CHOSEN], cards, holders=whole_of or {})
    return chosen_ids(resource, available.split(), required.split(), size, Topology(), waiting)


def pod(name: str, *cards: str, count: int = 1, **fields: float) -> Candidate:
    return bound(name, *cards, resource=GPU, count=count, **fields)


# Which IDs


@pytest.mark.parametrize(
    ("available", "size", "pods", "required", "expected"),
    [
        pytest.param("a b c", 1, [pod("web", "b")], "", ["b"], id="its card"),
        pytest.param("a b c", 2, [pod("web", "c", "b", count=2)], "", ["c", "b"], id="its cards, as chosen"),
        pytest.param("a b", 1, [pod("web", "b"), pod("job")], "", ["b"], id="not the first free card"),
        pytest.param("a b", 1, [pod("two", "a", "b", count=2)], "", ["a"], id="no card is left unpromised"),
        pytest.param("a b c", 1, [pod("two", "a", "b", count=2)], "", ["c"], id="not a promised card"),
        pytest.param("a b c", 1, [pod("two", "a", "b", count=2)], "b", ["b"], id="a required promised card"),
        pytest.param("a b", 2, [pod("web", "b", "a", count=2)], "a", ["a", "b"], id="it has one already"),
        pytest.param("a", 1, [pod("web", "b")], "", ["a"], id="its card is not to be had"),
        pytest.param("a b", 3, [pod("web", "b", count=3)], "", [], id="more than there are"),
        pytest.param("a x", 2, [pod("web", "a", "b", count=2)], "", ["a", "x"], id="an ID that is not known"),
        pytest.param("a b c", 1, [pod("web", "a", "b")], "a b", [], id="more are required than asked for"),
        pytest.param(
            "a b c",
            2,
            [pod("web", "a", "b", count=3)],
            "b",
            ["b", "c"],
            id="no more promised cards than required",
        ),
        pytest.param("a b c", 1, [], "", ["a"], id="no pod waits"),
    ],
)
def test_whole_cards_are_those_of_the_pod_that_asks_next(
    available: str, size: int, pods: Sequence[Candidate], required: str, expected: list[str]
) -> None:
    assert steer(whole(CARDS), available, size, *pods, required=required) == expected


@pytest.mark.parametrize(
    ("available", "size", "required", "expected"),
    [
        pytest.param("a::0 a::1 b::0 b::1", 3, "", ["b::0", "a::0", "b::1"], id="the first card has more"),
        pytest.param("a::0 a::1 b::0 b::1", 2, "", ["b::0", "a::0"], id="one each"),
        pytest.param("a::0 a::1 b::0 b::1", 2, "a::1", ["a::1", "b::0"], id="beside a required one"),
        pytest.param("a::0 b::0", 2, "a::0 a::1", [], id="a required one that is not free"),
        pytest.param("a::0 a::1 c::0", 3, "", ["a::0", "a::1", "c::0"], id="a card without a free share"),
        pytest.param(
            "a::0 a::1 b::0 c::0", 3, "c::0", ["c::0", "a::0", "b::0"], id="a required one of another card"
        ),
    ],
)
def test_shares_are_spread_evenly_over_the_cards_that_were_chosen(
    available: str, size: int, required: str, expected: list[str]
) -> None:
    chosen = steer(TRIO, available, size, pod("web", "b", "a", count=size), required=required)

    assert chosen == expected


def test_a_pod_whose_card_an_equal_pod_has_is_steered_to_that_pods_card() -> None:
    """The kubelet took two pods in another order than they were bound."""
    early, late = pod("early", "a", created=1.0), pod("late", "b", created=2.0)

    assert steer(whole(CARDS), "b c", 1, early, late, whole_of={"a": "uid-late"}) == ["b"]


POD = st.builds(
    lambda name, cards, count: pod(name, *cards, count=count),
    st.sampled_from(["web", "job", "pair"]),
    st.lists(st.sampled_from(CARDS), max_size=2, unique=True),
    st.integers(1, 3),
)
IDS = st.lists(st.sampled_from([one for card in TRIO.cards for one in card]), unique=True)


@given(st.lists(POD, max_size=3, unique_by=lambda it: it.uid), IDS, st.integers(1, 4), st.data())
def test_steering_takes_size_distinct_free_ids_with_the_required_ones_or_none(
    pods: list[Candidate], available: list[str], size: int, data: st.DataObject
) -> None:
    required = data.draw(st.lists(st.sampled_from(available), unique=True) if available else st.just([]))

    chosen = steer(TRIO, " ".join(available), size, *pods, required=" ".join(required))

    assert len(chosen) == len({*chosen})
    assert {*chosen} <= {*available}
    if chosen:
        assert {*required} <= {*chosen}
        assert len(chosen) == max(size, len(required))


#: IDs of ranges, of former plans, of other plugins, and of no card.
MIXED = st.lists(st.sampled_from(["a::0", "a::1", "a::2", "a", "b::0", "b::1", "a-0", "a-7", "c", "x", ""]))


@given(MIXED, st.lists(MIXED, min_size=3, max_size=3))
def test_the_cards_of_all_available_ids_are_those_of_each_id(ids: list[str], kept: list[list[str]]) -> None:
    """Also where two cards list the same ID, as cards with a new minor number do."""
    cards = (
        replace(card, kept=tuple(more), names=(card.uuid,))
        for card, more in zip(TRIO.cards, kept, strict=True)
    )
    resource = replace(TRIO, cards=(*cards, *whole("c").cards))

    assert resource.uuids_of(ids) == {one: card.uuid for one in ids if (card := resource.card_of(one))}


@given(st.lists(st.sampled_from(CARDS), min_size=1, max_size=3, unique=True), st.integers(1, 6), IDS)
def test_steering_takes_shares_of_chosen_cards_alone_where_they_have_as_many_each(
    cards: list[str], size: int, available: list[str]
) -> None:
    free = Counter(it.partition("::")[0] for it in available)
    each, more = divmod(size, len(cards))
    has_as_many = all(free[card] >= each + (n < more) for n, card in enumerate(cards))

    chosen = steer(TRIO, " ".join(available), size, pod("web", *cards, count=size))

    if each and has_as_many:
        assert Counter(it.partition("::")[0] for it in chosen) == {
            card: each + (n < more) for n, card in enumerate(cards)
        }


LYING = st.lists(
    st.tuples(st.sampled_from([one for card in TRIO.cards for one in card]), st.sampled_from(CARDS)),
    unique_by=lambda it: it[0],
)
