"""Which cards gpu-manager's evaluators take, with a tree that is never changed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.allocation.tree_choice import CardRoom, fragment, link, share, whole_cards
from core.matrices import EIGHT, ONE, SEVEN, SIX, THREE, grouped, tree_of

#: Placements of the original code; how they were made stands in the file.
CASES: Sequence[Mapping[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "data/gpu-manager-placement.json").read_text()
)["cases"]
BLOCKS = 64


def rooms(text: str, occupied: Sequence[Sequence[int]]) -> list[CardRoom]:
    """What is left of each card: of 100 cores and 64 blocks. `occupied`: the card, its cores, its blocks."""
    left = dict.fromkeys(range(len(tree_of(text).cards)), (100, BLOCKS))
    for card, cores, blocks in occupied:
        had, memory = left[card]
        left[card] = (0, 0) if cores >= 100 else (max(0, had - cores), max(0, memory - blocks))
    return [CardRoom(str(card), card, *amounts) for card, amounts in left.items()]


def answer(text: str, occupied: Sequence[Sequence[int]], mode: str, cores: int, blocks: int = 0) -> list[int]:
    if mode == "share":
        chosen = share(rooms(text, occupied), cores, blocks)
        return [] if chosen is None else [int(chosen)]
    tree = tree_of(text)
    used = {str(card) for card, *_ in occupied}
    evaluate = link if mode == "link" else fragment
    return [int(it) for it in evaluate(tree, [it for it in tree.cards if it not in used], cores // 100)]


def test_six_hundred_placements_are_those_of_the_original_code() -> None:
    wrong = [
        case
        for case in CASES
        if answer(case["txt"], case["occ"], case["mode"], case["cores"], case["mem"]) != case["want"]
    ]

    assert not wrong
    assert len(CASES) == 600


@pytest.mark.parametrize(
    ("text", "occupied", "mode", "cores", "blocks", "expected"),
    [
        # The original's own tests: link_test.go, fragment_test.go, share_test.go.
        (SIX, [], "link", 300, 0, [0, 1, 2]),
        (SIX, [(2, 100, 0)], "link", 200, 0, [0, 1]),
        (SIX, [], "fragment", 200, 0, [4, 5]),
        (SIX, [(4, 100, 0)], "fragment", 100, 0, [5]),
        (ONE, [], "fragment", 100, 0, [0]),
        (SIX, [], "share", 50, 0, [0]),
        (SIX, [(0, 50, 0)], "share", 60, 0, [1]),
        # Measured on the original code.
        (SIX, [], "link", 200, 0, [0, 1]),
        (SIX, [], "link", 400, 0, [0, 1, 2, 3]),
        (SIX, [], "link", 500, 0, [0, 1, 2, 3, 4]),
        (SIX, [], "link", 600, 0, [0, 1, 2, 3, 4, 5]),
        (SIX, [], "link", 700, 0, []),
        (SIX, [], "fragment", 100, 0, [4]),
        (SIX, [(4, 50, 0)], "fragment", 100, 0, [5]),
        (SIX, [(0, 100, 0), (2, 100, 0), (4, 100, 0)], "link", 200, 0, [1, 3]),
        (SIX, [(0, 100, 0), (2, 100, 0), (4, 100, 0)], "fragment", 100, 0, [5]),
        (SIX, [(0, 90, 0), (1, 50, 0)], "share", 20, 0, [1]),
        (SIX, [(0, 50, 60), (1, 50, 1)], "share", 20, 10, [1]),
        (SIX, [(card, 100, 0) for card in range(6)], "share", 1, 0, []),
        (SEVEN, [], "fragment", 100, 0, [0]),
        (SEVEN, [], "link", 200, 0, [0, 1]),
        (SEVEN, [], "link", 400, 0, [3, 4, 5, 6]),
        (SEVEN, [], "link", 500, 0, [0, 1, 2, 3, 4]),
        (SEVEN, [(0, 30, 0)], "fragment", 100, 0, [1]),
        (SEVEN, [(0, 30, 0)], "link", 200, 0, [1, 2]),
        (ONE, [(0, 10, 0)], "fragment", 100, 0, []),
        (ONE, [(0, 60, 0)], "share", 50, 0, []),
        (EIGHT, [], "link", 200, 0, [0, 1]),
        (EIGHT, [], "link", 300, 0, [0, 1, 2]),
        (EIGHT, [], "link", 400, 0, [0, 1, 2, 3]),
        (EIGHT, [], "link", 500, 0, [0, 1, 2, 3, 4]),
        (EIGHT, [(0, 100, 0)], "link", 200, 0, [2, 3]),
        (EIGHT, [(0, 100, 0)], "link", 300, 0, [1, 2, 3]),
        (EIGHT, [(0, 100, 0)], "link", 400, 0, [4, 5, 6, 7]),
        (EIGHT, [(0, 100, 0)], "fragment", 100, 0, [1]),
        (EIGHT, [(1, 30, 0), (6, 30, 0)], "link", 200, 0, [2, 3]),
        (EIGHT, [(1, 30, 0), (6, 30, 0)], "link", 300, 0, [0, 2, 3]),
        (EIGHT, [(1, 30, 0), (6, 30, 0)], "link", 400, 0, [0, 2, 3, 4]),
        (EIGHT, [(1, 30, 0), (6, 30, 0)], "fragment", 100, 0, [0]),
        (EIGHT, [(card, 100, 0) for card in (0, 2, 4, 6)], "link", 200, 0, [1, 3]),
        (EIGHT, [(card, 100, 0) for card in (0, 2, 4, 6)], "link", 300, 0, [1, 3, 5]),
        (EIGHT, [(card, 100, 0) for card in (0, 2, 4, 6)], "fragment", 100, 0, [1]),
        (EIGHT, [(5, 70, 4), (2, 40, 8)], "share", 30, 0, [5]),
        (EIGHT, [(5, 70, 4), (2, 40, 8)], "share", 31, 0, [2]),
        (EIGHT, [(5, 70, 4), (2, 40, 8)], "share", 61, 0, [0]),
        (EIGHT, [(5, 70, 62), (2, 40, 8)], "share", 30, 4, [2]),
        (EIGHT, [(5, 50, 62), (2, 50, 8)], "share", 30, 2, [5]),
        (THREE, [], "fragment", 100, 0, [1]),
        (THREE, [], "link", 200, 0, [1, 2]),
    ],
)  # fmt: skip
def test_the_tables_of_the_original_hold(
    text: str, occupied: Sequence[Sequence[int]], mode: str, cores: int, blocks: int, expected: list[int]
) -> None:
    assert answer(text, occupied, mode, cores, blocks) == expected


def test_pods_that_come_and_go_get_the_cards_of_the_original_allocator() -> None:
    """Its allocator_test.go, with cards of four blocks."""
    pods: dict[str, list[tuple[int, int, int]]] = {"cards of four blocks": [(it, 0, 60) for it in range(6)]}

    def ask(pod: str, cores: int, blocks: int) -> list[int]:
        mode = "share" if cores < 100 else "fragment" if cores == 100 else "link"
        used = [it for its in pods.values() for it in its if mode == "share" or it[1]]
        chosen = answer(SIX, used, mode, cores, blocks)
        pods.setdefault(pod, []).extend((card, min(cores, 100), blocks) for card in chosen)
        return chosen

    assert ask("one", 300, 3) == [0, 1, 2]
    assert ask("two", 100, 1) + ask("two", 100, 1) == [3, 4]
    assert ask("three", 100, 1) == [5]
    del pods["two"]
    assert [ask("four", 50, 1), ask("five", 60, 1), ask("six", 50, 1)] == [[3], [4], [3]]
    del pods["five"]
    assert ask("seven", 100, 1) == [4]
    assert ask("eight", 100, 1) == ask("eight", 1, 1) == []


def test_one_card_comes_out_of_the_smallest_group_and_more_cards_are_near_to_each_other() -> None:
    tree = tree_of(SIX)

    assert whole_cards(tree, tree.cards, 1) == ("4",)
    assert whole_cards(tree, tree.cards, 2) == ("0", "1")


def test_required_cards_are_kept_and_the_others_are_near_to_them() -> None:
    tree = tree_of(EIGHT)

    assert whole_cards(tree, {"0", "1", "4", "7"}, 2, ["5"]) == ("5", "4")
    assert whole_cards(tree, {"0", "7"}, 1, ["5"]) == ("5",)
    assert whole_cards(tree, {"0", "7"}, 1, ["5", "6"]) == ()
    assert whole_cards(tree, {"0", "7"}, 4, ["5"]) == ()


def test_more_cards_than_thirty_two_are_told_apart() -> None:
    """The original counts cards in 32 bits."""
    tree = tree_of(grouped(("PIX", "yz"), size=36))

    assert link(tree, tree.cards, 2) == ("34", "35")
    assert fragment(tree, tree.cards, 1) == ("34",)
    assert len(link(tree, tree.cards, 36)) == 36


def test_without_known_links_the_lowest_free_cards_are_taken() -> None:
    tree = tree_of(grouped(size=4))

    assert link(tree, {"1", "2", "3"}, 2) == ("1", "2")
    assert fragment(tree, {"2", "3"}, 1) == ("2",)


matrices = st.sampled_from([SIX, EIGHT, SEVEN, THREE, ONE, grouped(size=5), grouped(("PIX", "13"), size=5)])
card_sets = st.sets(st.sampled_from("01234567"))


@given(matrices, card_sets, card_sets, st.integers(-1, 9), st.sampled_from([link, fragment, whole_cards]))
def test_chosen_cards_are_free_distinct_as_many_as_asked_for_and_all_where_so_many_are_free(
    text: str, free: set[str], required: set[str], count: int, evaluate: Any
) -> None:
    tree = tree_of(text)
    required &= set(tree.cards)
    known = (free & set(tree.cards)) | required

    chosen = evaluate(tree, free, count, required)

    possible = len(required) <= count <= len(known) and count > 0
    assert len(chosen) == len(set(chosen)) == (count if possible else 0)
    assert set(chosen) <= known
    assert not possible or required <= set(chosen)
    assert chosen == evaluate(tree, sorted(free, reverse=True), count, sorted(required))


@given(
    st.lists(st.tuples(st.integers(0, 100), st.integers(0, BLOCKS)), max_size=8),
    st.integers(0, 100),
    st.integers(0, BLOCKS),
)
def test_a_share_lies_where_both_amounts_fit_whatever_the_order_of_the_cards(
    left: list[tuple[int, int]], cores: int, blocks: int
) -> None:
    cards = [CardRoom(str(card), card, *amounts) for card, amounts in enumerate(left)]
    fitting = {it.uuid: (it.cores, it.memory) for it in cards if it.cores >= cores and it.memory >= blocks}

    chosen = share(cards, cores, blocks)

    assert (chosen in fitting) if fitting else chosen is None
    assert chosen is None or fitting[chosen] == min(fitting.values())
    assert chosen == share(cards[::-1], cores, blocks)
