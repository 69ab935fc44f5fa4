"""Which of the available IDs to take: never an error, never a wrong number of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.core.allocation.best_free_ids import prefer
from agent.core.devices.topology import Topology
from agent.core.model import AdvertisedDevice, Resource
from agent.vendor_api.agent import BY_TREE, Device, Policy, Sharing
from core.matrices import SEVEN, SIX, machine
from core.values import near, shared, whole

SYSTEM, NODE, SINGLE = 10, 20, 50
LANE = 100
FLAT = Topology()
#: Every score that a pair of cards can have.
SCORES = st.builds(
    lambda path, lanes: path + LANE * lanes, st.sampled_from(range(10, 70, 10)), st.integers(0, 3)
)


def ids(text: str) -> list[str]:
    return text.split()


def choose(
    resource: Resource, available: str, size: int, required: str = "", topology: Topology = FLAT
) -> list[str]:
    return prefer(resource, ids(available), ids(required), size, topology)


def per_card(chosen: Sequence[str]) -> Counter[str]:
    return Counter(it.partition("::")[0] for it in chosen)


def test_spreading_avoids_the_card_that_is_used_already() -> None:
    chosen = choose(shared({"0": 2, "1": 2}), "0::0 0::1 1::1", 2)

    assert per_card(chosen) == {"0": 1, "1": 1}
    assert choose(shared({"0": 2, "1": 2}), "0::0 0::1 1::1", 1) == ["0::0"]


def test_packing_prefers_the_card_that_is_used_already() -> None:
    assert choose(shared({"0": 2, "1": 2}, "packed"), "0::0 0::1 1::1", 1) == ["1::1"]


def test_what_allocate_would_refuse_is_taken_last() -> None:
    """An ID of a cordoned card is free for the kubelet a moment before it is for us."""
    first, second = shared({"0": 2, "1": 2}).cards
    it = replace(shared({}), cards=(replace(first, healthy=False), second))

    assert choose(it, "0::0 1::0 1::1", 2) == ["1::0", "1::1"]
    assert choose(it, "0::0 1::0 1::1", 3) == ["1::0", "1::1", "0::0"]


def test_replicas_that_are_kept_together_are_of_the_card_where_they_fit_best_or_of_none() -> None:
    it = shared({"0": 4, "1": 4})
    it = replace(it, rule=replace(it.rule, sharing=Sharing("replicas", 4, span_cards=False)), policy="packed")

    assert choose(it, "0::0 0::1 0::2 1::0 1::1", 2) == ["1::0", "1::1"]
    assert choose(it, "0::0 0::1 0::2 1::0 1::1", 3, required="0::2") == ["0::2", "0::0", "0::1"]
    assert choose(it, "0::0 0::1 1::0 1::1", 3) == []
    assert choose(it, "0::0 0::1 1::0 1::1", 2, required="0::0 1::0") == []


def test_lower_replicas_are_taken_first() -> None:
    assert choose(shared({"0": 12}), " ".join(f"0::{n}" for n in reversed(range(12))), 3) == ids(
        "0::0 0::1 0::2"
    )


def test_required_ids_come_first_and_count_as_use() -> None:
    chosen = choose(shared({"0": 2, "1": 2}), "0::0 0::1 1::0 1::1", 2, required="0::1")

    assert chosen == ["0::1", "1::0"]


@pytest.mark.parametrize(
    ("available", "required", "size"),
    [
        ("", "", 1),
        ("0", "", 2),
        ("0 0 0", "", 2),
        ("0 1", "2", 1),
        ("0 1 2", "0 1", 1),
        ("0 1", "", 0),
        ("0 1", "", -3),
        ("0 1", "", 10**30),
        ("0 1", "0 1 2", 3),
    ],
)
def test_where_no_choice_can_be_made_the_answer_is_empty(available: str, required: str, size: int) -> None:
    assert choose(whole("0123"), available, size, required=required) == []


@pytest.mark.parametrize("policy", get_args(Policy))
def test_ids_that_allocate_would_refuse_are_taken_last(policy: Policy) -> None:
    topology = near({}, 3, other=SYSTEM)

    assert choose(whole("012", policy), "gone 2 1", 1, topology=topology) in (["1"], ["2"])
    assert set(choose(whole("012", policy), "gone 2", 2, topology=topology)) == {"gone", "2"}


policies = st.sampled_from(get_args(Policy))
some_ids = st.sampled_from(
    [f"{card}::{n}" for card in "0123" for n in range(3)]
    + ["0", "1", "2", "3", "4", "", "::", "x", "0::9", "3-1"]
)


@given(
    st.sampled_from([whole("0123"), shared({"0": 3, "1": 3, "2": 1}), shared({"0": 1, "1": 1}), whole("")]),
    policies,
    st.lists(some_ids, max_size=14),
    st.lists(some_ids, max_size=4),
    st.integers(-2, 16),
    st.sampled_from([FLAT, near({(0, 1): 210, (2, 3): 50}, 4, other=SYSTEM)]),
    st.booleans(),
)
def test_any_policy_takes_size_distinct_free_ids_with_the_required_ones_or_none(
    resource: Resource,
    policy: Policy,
    available: list[str],
    required: list[str],
    size: int,
    topology: Topology,
    consistent: bool,
) -> None:
    if consistent:
        available += required
    wanted = max(size, len(set(required))) if policy != "aligned" else size
    possible = (
        0 < size <= len(set(available)) and len(set(required)) <= wanted and set(required) <= set(available)
    )

    chosen = prefer(replace(resource, policy=policy), available, required, size, topology)

    assert len(chosen) == len(set(chosen)) == (wanted if possible else 0)
    assert set(chosen) <= set(available)
    assert not possible or set(required) <= set(chosen)
    assert chosen == prefer(replace(resource, policy=policy), available[::-1], required, size, topology)


def test_ids_kept_from_a_former_plan_count_for_their_card() -> None:
    resource = shared({"0": 2, "1": 2}, "packed")
    first = AdvertisedDevice("0", resource.cards[0].ids, healthy=True, kept=("0",))
    resource = replace(resource, cards=(first, resource.cards[1]))

    chosen = choose(resource, "0 0::0 0::1 1::1", 2)

    assert chosen[0] == "1::1"
    assert per_card(chosen) == {"1": 1, "0": 1}


# Whole cards.


def test_of_equal_cards_the_first_of_the_resource_is_taken() -> None:
    assert choose(whole("210"), "0 1 2", 2) == ["2", "1"]
    assert choose(whole("210", "distributed"), "0 1 2", 2) == ["2", "1"]


def test_slices_of_one_card_are_taken_together_and_from_the_card_with_the_fewest_left() -> None:
    slices = {name: Device(name, 0, parent=name[0]) for name in ("g1", "h1", "h2", "i1", "i2", "i3")}
    resource, topology = whole(slices), Topology(slices)

    assert prefer(resource, list(slices), [], 1, topology) == ["g1"]
    assert prefer(resource, list(slices), [], 2, topology) == ["h1", "h2"]
    assert prefer(resource, list(slices), [], 3, topology) == ["i1", "i2", "i3"]


def test_the_best_pair_by_lanes_wins_over_the_best_path() -> None:
    topology = near({(0, 1): SINGLE, (0, 2): SYSTEM + LANE, (1, 2): SYSTEM + 2 * LANE}, 3)

    assert set(choose(whole("012"), "0 1 2", 2, topology=topology)) == {"1", "2"}


def test_three_cards_that_are_linked_win_over_the_widest_pair_and_another_card() -> None:
    """A set that grows card by card ends with the pair: few sets are compared one by one."""
    topology = near({(0, 2): SYSTEM + 2 * LANE, **dict.fromkeys(((1, 4), (1, 5), (4, 5)), SYSTEM + LANE)}, 6)

    assert set(choose(whole("012345"), "0 1 2 3 4 5", 3, topology=topology)) == {"1", "4", "5"}


def test_among_equals_the_choice_leaves_the_others_the_most() -> None:
    linked = near({(0, 1): 210, (2, 3): 210, (4, 5): 210}, 7, other=SYSTEM)

    assert choose(whole("0123456"), "0 1 2 3 4 5 6", 1, topology=linked) == ["6"]
    assert set(choose(whole("0123456"), "1 2 3 6", 2, topology=linked)) == {"2", "3"}


@pytest.mark.parametrize("size", [1, 2, 4, 8, 15, 16])
def test_sixteen_cards_find_the_linked_group(size: int) -> None:
    """Two boards of eight, pairs (i, i ^ 1) with 18 lanes; NVIDIA's plugin needs seconds for size 4."""
    lanes = {(a, b): 18 for a, b in combinations(range(16), 2) if b == a ^ 1}
    topology = near(
        {
            (a, b): (NODE if a // 8 == b // 8 else SYSTEM) + LANE * lanes.get((a, b), 0)
            for a, b in combinations(range(16), 2)
        },
        16,
    )
    names = [str(n) for n in range(16)]

    chosen = prefer(whole(names), names, [], size, topology)

    whole_pairs = sum(str(int(card) ^ 1) in chosen for card in chosen) // 2
    assert whole_pairs == size // 2
    assert size > 8 or len({int(card) // 8 for card in chosen}) == 1


@pytest.mark.parametrize("group", [2, 4, 8])
@settings(max_examples=20)
@given(st.sets(st.integers(0, 15), min_size=13, max_size=13), st.integers(5, 8), st.booleans())
def test_among_linked_groups_the_best_set_is_found_without_comparing_all(
    group: int, free: set[int], size: int, held: bool
) -> None:
    """Groups of cards on two boards, some cards in use: more sets than are compared one by one."""
    topology = near(
        {
            (a, b): (NODE if a // 8 == b // 8 else SYSTEM) + (4 * LANE if a // group == b // group else 0)
            for a, b in combinations(range(16), 2)
        },
        16,
    )
    names = [str(card) for card in sorted(free)]
    must = names[:1] if held else []

    chosen = prefer(whole(names), names, must, size, topology)

    rivals = (topology.total(it) for it in combinations(names, size) if set(must) <= set(it))
    assert topology.total(chosen) == max(rivals)


@given(st.lists(SCORES, min_size=28, max_size=28), st.integers(1, 8), st.sets(st.integers(0, 7)))
def test_of_eight_cards_the_chosen_set_is_the_best(scores: list[int], size: int, required: set[int]) -> None:
    topology = near(dict(zip(combinations(range(8), 2), scores, strict=True)), 8)
    must = {str(n) for n in list(required)[:size]}

    chosen = prefer(whole("01234567"), list("01234567"), sorted(must), size, topology)

    rivals = (topology.total(it) for it in combinations("01234567", size) if must <= set(it))
    assert topology.total(chosen) == max(rivals)


@pytest.mark.parametrize(("size", "boards"), [(2, 1), (8, 1), (12, 2), (32, 4), (60, 8)])
def test_of_sixty_four_cards_whole_boards_are_taken(size: int, boards: int) -> None:
    """Eight linked boards of eight, whose cards stand far apart in the list."""
    linked = {(a, b): SYSTEM + LANE for a, b in combinations(range(64), 2) if a % 8 == b % 8}
    names = [str(n) for n in range(64)]

    chosen = prefer(whole(names), names, [], size, near(linked, 64, other=SYSTEM))

    assert len({int(card) % 8 for card in chosen}) == boards


def test_of_many_cards_those_near_the_required_one_are_taken() -> None:
    linked = {(a, b): SYSTEM + LANE for a, b in combinations(range(64), 2) if a % 8 == b % 8}
    names = [str(n) for n in range(64)]

    chosen = prefer(whole(names), names, ["13"], 8, near(linked, 64, other=SYSTEM))

    assert {int(card) % 8 for card in chosen} == {13 % 8}


@given(st.lists(SCORES, min_size=66, max_size=66), st.integers(1, 12))
def test_of_twelve_cards_equals_are_settled_by_what_the_others_lose(scores: list[int], size: int) -> None:
    topology = near(dict(zip(combinations(range(12), 2), scores, strict=True)), 12)
    names = [str(n) for n in range(12)]

    chosen = prefer(whole(names), names, [], size, topology)

    def worth(cards: Sequence[str]) -> tuple[int, int]:
        return topology.total(cards), topology.total([it for it in names if it not in cards])

    assert worth(chosen) == max(map(worth, combinations(names, size)))


# By the tree of the cards.


def test_by_the_tree_one_card_comes_out_of_the_smallest_group_and_more_are_near_to_each_other() -> None:
    six, topology = whole("012345", BY_TREE), machine(SIX)

    assert choose(six, "0 1 2 3 4 5", 1, topology=topology) == ["4"]
    assert choose(six, "0 1 2 3 5", 1, topology=topology) == ["5"]
    assert choose(six, "0 1 3 4 5", 2, topology=topology) == ["0", "1"]
    assert choose(whole("0123456", BY_TREE), "6 5 4 3 2 1 0", 4, topology=machine(SEVEN)) == [
        "3",
        "4",
        "5",
        "6",
    ]


def test_by_the_tree_required_cards_stay_and_the_others_are_near_to_them() -> None:
    six, topology = whole("012345", BY_TREE), machine(SIX)

    assert choose(six, "0 1 2 3 4 5", 2, required="3", topology=topology) == ["3", "2"]
    assert choose(six, "0 1 3 4 5", 2, required="3", topology=topology) == ["3", "0"]
    assert choose(six, "0 1 3 5", 1, required="3", topology=topology) == ["3"]


def test_by_the_tree_a_card_in_use_still_holds_its_group_together() -> None:
    """Without card 4 in the tree, card 5 would hang beside the groups and be passed by."""
    assert choose(whole("012345", BY_TREE), "0 1 2 3 5", 1, topology=machine(SIX)) == ["5"]


def test_by_the_tree_shares_come_from_the_fullest_card_that_has_enough() -> None:
    three = shared({"0": 4, "1": 4, "2": 4}, BY_TREE)

    assert choose(three, "0::0 0::1 0::2 1::2 1::3 2::3", 1) == ["2::3"]
    assert choose(three, "0::0 0::1 0::2 1::2 1::3 2::3", 2) == ["1::2", "1::3"]
    assert choose(three, "0::0 0::1 0::2 1::2 1::3 2::3", 2, required="0::1") == ["0::1", "0::0"]


def test_by_the_tree_shares_that_no_card_has_come_from_several() -> None:
    assert per_card(choose(shared({"0": 2, "1": 2}, BY_TREE), "0::0 0::1 1::0", 3)) == {"0": 2, "1": 1}
    assert choose(shared({"0": 1, "1": 1}, BY_TREE), "0::0 1::0", 1, topology=machine(SIX)) == ["0::0"]


@pytest.mark.parametrize("policy", ["distributed", "packed"])
def test_a_long_list_is_chosen_from_as_a_short_one(policy: Policy) -> None:
    resource = shared({"0": 3000, "1": 3000}, policy)
    available = [device_id for card in resource.cards for device_id in card if device_id != "1::0"]

    chosen = prefer(resource, available, ["0::7"], 1000, FLAT)

    assert per_card(chosen) == ({"0": 500, "1": 500} if policy == "distributed" else {"0": 1000})
    assert chosen[0] == "0::7"
    assert chosen == prefer(resource, available[::-1], ["0::7"], 1000, FLAT)


def test_the_ids_of_a_card_are_built_once_for_all_choices() -> None:
    """A choice of one ID reads the IDs of all cards."""
    [card] = shared({"0": 300}).cards

    assert all(one is again for one, again in zip(card, card, strict=True))
