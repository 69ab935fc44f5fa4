"""Which cards have room for how many."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.allocation.room_on_cards import free_by_card, has_room, is_as_counted, other_cards_with_room
from agent.core.model import Allocation, Owner, Resource
from agent.vendor_api.agent import Policy, Sharing
from core.scenes import held
from core.values import GPU, shared, taking, whole

CARDS = ("a", "b", "c")
PAIR = shared({"a": 2, "b": 2})
TRIO = shared(dict.fromkeys(CARDS, 2))
#: Several containers of which have something one after another.
ONE_POD = Owner("uid-pod", "main", "default", "pod")


def memory(sizes: dict[str, int], policy: Policy = "packed") -> Resource:
    """Cards whose memory is counted in units of 1 GiB."""
    its = shared(sizes, policy)
    return replace(its, rule=replace(its.rule, sharing=Sharing("memory", unit="1")))


def together(replicas: dict[str, int], policy: Policy = "packed") -> Resource:
    """Replicas of which a container gets those of one card."""
    its = shared(replicas, policy)
    return replace(its, rule=replace(its.rule, sharing=Sharing("replicas", 4, span_cards=False)))


def sick(resource: Resource, uuid: str) -> Resource:
    """The resource where a card is given to no new pod."""
    cards = tuple(replace(card, healthy=card.uuid != uuid) for card in resource.cards)
    return replace(resource, cards=cards)


def on(uuid: str, *ids: str, **fields: str) -> Allocation:
    """An allocation that lies on a card, whatever its IDs say."""
    its = held("-".join(ids), *ids, resource=GPU, on=(uuid,), **fields)
    return its if {*its.devices} != {uuid} else replace(its, diverged=())


IDS = st.lists(st.sampled_from([one for card in TRIO.cards for one in card]), unique=True)


# Which cards have room


@pytest.mark.parametrize(
    ("resource", "in_use", "free"),
    [
        pytest.param(PAIR, [], {"a": 2, "b": 2}, id="nothing is in use"),
        pytest.param(PAIR, [on("a", "a::0")], {"a": 1, "b": 2}, id="one share"),
        pytest.param(PAIR, [on("b", "a::0")], {"a": 2, "b": 1}, id="a share on another card than its ID's"),
        pytest.param(
            PAIR, [held("web", "a::0", "b::0", resource=GPU)], {"a": 1, "b": 1}, id="a share of each of two"
        ),
        pytest.param(
            PAIR,
            [held("web", "a::0", "a::1", resource=GPU, on=("b", "a"))],
            {"a": 1, "b": 1},
            id="two on two other cards",
        ),
        pytest.param(PAIR, [held("web", "a::0")], {"a": 2, "b": 2}, id="another resource's"),
        pytest.param(sick(PAIR, "a"), [on("b", "b::0")], {"b": 1}, id="a card that no new pod gets"),
        pytest.param(memory({"a": 4, "b": 6}), [on("a", "a::0", "a::1")], {"a": 2, "b": 6}, id="memory"),
        pytest.param(
            memory({"a": 4}),
            [replace(it, owner=ONE_POD) for it in (on("a", "a::0", "a::1", "a::2"), on("a", "a::0", "a::1"))],
            {"a": 1},
            id="what an init container hands on",
        ),
        pytest.param(
            PAIR,
            [replace(on("a", "a::0"), id=it, owner=ONE_POD, partitions=(it,)) for it in ("s0", "s1")],
            {"a": 0, "b": 2},
            id="hardware that was made for each of two containers",
        ),
    ],
)
def test_a_card_has_room_for_what_does_not_lie_on_it(
    resource: Resource, in_use: list[Allocation], free: dict[str, int]
) -> None:
    assert free_by_card(resource, taking(in_use)) == free


def test_a_pod_that_has_a_card_finds_room_there_though_no_new_pod_does() -> None:
    assert free_by_card(sick(PAIR, "a"), taking([on("a", "a::0")]), sick=True) == {"a": 1, "b": 2}
    assert has_room(sick(PAIR, "a"), ["a"], 1, taking([on("a", "a::0")]), sick=True)
    assert not has_room(sick(PAIR, "a"), ["a"], 1, taking([on("a", "a::0")]))


@pytest.mark.parametrize(
    ("resource", "free"),
    [
        pytest.param(PAIR, 2, id="replicas"),
        pytest.param(memory({"a": 2}), 2, id="memory"),
        pytest.param(whole(["a"]), 1, id="a whole card"),
    ],
)
def test_a_card_has_as_much_as_it_is_cut_into_whatever_ids_are_kept(resource: Resource, free: int) -> None:
    first = replace(resource.cards[0], kept=("old",))

    assert free_by_card(replace(resource, cards=(first,)), taking([])) == {"a": free}


@pytest.mark.parametrize(
    ("resource", "cards", "count", "expected"),
    [
        pytest.param(PAIR, ["a"], 2, True, id="as many as are free"),
        pytest.param(PAIR, ["a"], 3, False, id="one more"),
        pytest.param(PAIR, ["a", "b"], 4, True, id="on two cards"),
        pytest.param(PAIR, ["b", "a"], 1, False, id="more cards than shares"),
        pytest.param(PAIR, ["c"], 1, False, id="a card of another resource"),
        pytest.param(together({"a": 2, "b": 2}), ["a", "b"], 2, False, id="on two cards what lies on one"),
        pytest.param(together({"a": 2, "b": 2}), ["a", "a"], 2, True, id="on one card, named twice"),
    ],
)
def test_cards_have_room_for_as_many_shares_as_are_free_on_each(
    resource: Resource, cards: list[str], count: int, expected: bool
) -> None:
    assert has_room(resource, cards, count, taking([])) is expected


def test_the_first_of_unequal_cards_takes_the_share_that_does_not_divide() -> None:
    in_use = [on("b", "b::0")]

    assert has_room(PAIR, ["a", "b"], 3, taking(in_use))
    assert not has_room(PAIR, ["b", "a"], 3, taking(in_use))


@pytest.mark.parametrize(
    ("resource", "ids", "others", "expected"),
    [
        pytest.param(PAIR, ["a::0"], [], True, id="nothing else"),
        pytest.param(PAIR, ["a::1"], [on("a", "a::0"), on("a", "b::0")], False, id="filled by another's ID"),
        pytest.param(PAIR, ["b::1"], [on("a", "a::0"), on("a", "b::0")], True, id="left by its own ID"),
        pytest.param(PAIR, ["a::1"], [on("a", "a::0", "a::1")], True, id="no ID lies elsewhere: as counted"),
        pytest.param(whole("ab"), ["a"], [on("a", "b")], True, id="no share"),
        pytest.param(memory({"a": 2, "b": 2}), ["a::1"], [on("a", "a::0", "a::1")], False, id="memory"),
        pytest.param(memory({"a": 2, "b": 2}), ["a::0", "b::0"], [], False, id="memory of two cards"),
        pytest.param(together({"a": 2, "b": 2}), ["a::0", "b::0"], [], False, id="replicas of two cards"),
        pytest.param(sick(memory({"a": 2}), "a"), ["a::0"], [], True, id="a card that no new pod gets"),
    ],
)
def test_the_kubelet_counts_right_unless_shares_lie_on_other_cards_than_their_ids(
    resource: Resource, ids: list[str], others: list[Allocation], expected: bool
) -> None:
    assert is_as_counted(resource, ids, taking(others)) is expected


@pytest.mark.parametrize(
    ("resource", "count", "others", "expected"),
    [
        pytest.param(PAIR, 1, [on("a", "a::0")], ("b",), id="the freest card"),
        pytest.param(PAIR, 2, [on("a", "a::0")], ("b",), id="one card for all"),
        pytest.param(PAIR, 3, [on("a", "a::0")], ("b", "b", "a"), id="a card for each share"),
        pytest.param(PAIR, 4, [on("a", "a::0")], (), id="nowhere"),
        pytest.param(sick(PAIR, "b"), 2, [on("a", "a::0")], (), id="not on a card that no new pod gets"),
        pytest.param(memory({"a": 4, "b": 6}), 3, [], ("a",), id="memory where it fits best"),
        pytest.param(memory({"a": 4, "b": 6}), 5, [], ("b",), id="memory where it fits"),
        pytest.param(memory({"a": 4, "b": 6}), 7, [], (), id="memory on one card alone"),
        pytest.param(memory({"a": 4, "b": 6}, "distributed"), 3, [], ("b",), id="where pods are spread"),
        pytest.param(together({"a": 2, "b": 2}), 3, [], (), id="replicas that are kept together"),
    ],
)
def test_what_does_not_fit_goes_where_there_is_room(
    resource: Resource, count: int, others: list[Allocation], expected: tuple[str, ...]
) -> None:
    assert other_cards_with_room(resource, count, taking(others)) == expected


LYING = st.lists(
    st.tuples(st.sampled_from([one for card in TRIO.cards for one in card]), st.sampled_from(CARDS)),
    unique_by=lambda it: it[0],
)


@given(LYING, st.integers(1, 7), st.booleans())
def test_room_is_found_where_there_is_some_and_never_more_than_a_card_has(
    lying: list[tuple[str, str]], count: int, is_alone: bool
) -> None:
    resource = together(dict.fromkeys(CARDS, 2)) if is_alone else TRIO
    in_use = [on(card, one) for one, card in lying]
    used = Counter(card for _, card in lying)
    left = {card: 2 - used[card] for card in CARDS}

    found = other_cards_with_room(resource, count, taking(in_use))

    assert free_by_card(resource, taking(in_use)) == left
    if found:
        wanted = Counter([found[n % len(found)] for n in range(count)])
        assert all(wanted[card] <= left[card] for card in wanted)
        assert has_room(resource, found, count, taking(in_use))
    elif is_alone:
        assert max(left.values()) < count
    else:
        assert sum(max(it, 0) for it in left.values()) < count


@given(LYING, st.lists(st.sampled_from(CARDS), min_size=1, max_size=4), st.integers(1, 7))
def test_cards_that_have_room_stay_within_their_number_once_it_is_taking(
    lying: list[tuple[str, str]], cards: list[str], count: int
) -> None:
    in_use = [on(card, one) for one, card in lying]
    ids = [f"x::{n}" for n in range(count)]

    if has_room(TRIO, cards, count, taking(in_use)):
        after = free_by_card(TRIO, taking([*in_use, held("new", *ids, resource=GPU, on=cards)]))
        assert all(after[card] >= 0 for card in cards)
