"""Rules of the groups that links make of cards."""

from __future__ import annotations

import json
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import hostile_texts

from agent.scheduler_api.node_report import LinkedCards
from agent.schedulers.koordinator.gpu_partitions import annotation, groups, is_by_hand, parsed
from agent.vendor_api.agent import Device, Link

from .managed_fields import LIST, device, entry

Pairs = dict[tuple[int, int], int]


def linked(pairs: Pairs, size: int, *, numa: bool = False) -> dict[int, Device]:
    """Cards with lanes between them, which the lower one reports alone."""
    return {
        card: Device(
            str(card),
            card,
            numa=card % 2 if numa else None,
            links=tuple(Link(str(peer), lanes) for (it, peer), lanes in pairs.items() if it == card),
        )
        for card in range(size)
    }


def minors(devices: dict[int, Device]) -> list[tuple[int, ...]]:
    return [it.minors for it in groups(devices, "metax")]


def mesh(size: int, lanes: int = 18) -> Pairs:
    return dict.fromkeys(combinations(range(size), 2), lanes)


PAIRS: Pairs = {(0, 1): 4, (2, 3): 4}
QUADS: Pairs = {
    **dict.fromkeys(combinations(range(4), 2), 1),
    **dict.fromkeys(combinations(range(4, 8), 2), 1),
}
#: The hybrid cube of a DGX-1: each card has one or two lanes to four others.
CUBE: Pairs = {
    **{(0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2, (2, 6): 1},
    **{(3, 7): 1, (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2},
}
RING: Pairs = {(0, 1): 1, (1, 2): 1, (2, 3): 1, (0, 3): 1}

TWOS, FOURS = [(0, 1), (2, 3), (4, 5), (6, 7)], [(0, 1, 2, 3), (4, 5, 6, 7)]


@pytest.mark.parametrize(
    ("pairs", "size", "expected"),
    [
        ({}, 4, []),
        ({(0, 1): 0}, 2, []),
        (PAIRS, 4, [(0, 1), (2, 3)]),
        (mesh(8), 8, [*TWOS, *FOURS, tuple(range(8))]),
        (mesh(4), 4, [(0, 1), (2, 3), (0, 1, 2, 3)]),
        (mesh(6), 6, [(0, 1, 2), (3, 4, 5), (0, 1, 2, 3, 4, 5)]),
        (mesh(3), 3, [(0, 1, 2)]),
        ({**mesh(4, 1), **PAIRS}, 4, [(0, 1), (2, 3), (0, 1, 2, 3)]),
        (QUADS, 8, [*TWOS, *FOURS]),
        (CUBE, 8, [(0, 3), (1, 2), (4, 7), (5, 6), *FOURS]),
        (RING, 4, [(0, 1), (2, 3)]),
    ],
    ids=["none", "no lanes", "pairs", "switch", "four", "six", "three", "tiers", "quads", "cube", "ring"],
)
def test_cards_that_are_linked_each_with_each_are_a_group(
    pairs: Pairs, size: int, expected: list[tuple[int, ...]]
) -> None:
    assert minors(linked(pairs, size)) == expected


def test_halves_behind_a_switch_are_of_one_numa_node() -> None:
    assert minors(linked(mesh(4), 4, numa=True)) == [(0, 2), (1, 3), (0, 1, 2, 3)]


def test_the_groups_of_eight_behind_a_switch_are_those_that_the_scheduler_has_for_hopper() -> None:
    """Its GPUPartitionIndexOfNVIDIAHopper (allocator_gpu_helper.go), but for the single cards."""
    table = json.loads(annotation(groups(linked(mesh(8), 8), "nvidia")))

    assert {size: [it["minors"] for it in its] for size, its in table.items()} == {
        "2": [list(it) for it in TWOS],
        "4": [list(it) for it in FOURS],
        "8": [list(range(8))],
    }
    assert {it["gpuLinkType"] for its in table.values() for it in its} == {"NVLink"}


def test_a_link_to_a_device_that_is_no_card_counts_for_nothing() -> None:
    devices = {0: Device("a", 0, links=(Link("b", 4), Link("a", 4), Link("c", 4))), 1: Device("b", 1)}

    assert minors(devices) == [(0, 1)]


def test_of_two_sides_that_differ_the_one_that_knows_more_lanes_counts() -> None:
    links = {"a": {"b": 2, "c": 1}, "b": {"a": 0, "c": 1}, "c": {"a": 1, "b": 1}}
    devices = {
        minor: Device(uuid, minor, links=tuple(Link(peer, count) for peer, count in links[uuid].items()))
        for minor, uuid in enumerate("abc")
    }

    assert minors(devices) == [(0, 1), (0, 1, 2)]


def test_many_cards_with_many_kinds_of_links_are_no_endless_list() -> None:
    """Each pair another number of lanes, which is the worst there is."""
    pairs = {pair: number + 1 for number, pair in enumerate(combinations(range(63), 2))}

    assert 0 < len(minors(linked(pairs, 63))) <= 8 * 31


lanes = st.dictionaries(
    st.tuples(st.integers(0, 7), st.integers(0, 7)).filter(lambda it: it[0] < it[1]), st.integers(0, 4)
)


@given(lanes)
def test_every_group_is_linked_each_with_each_and_told_once(pairs: Pairs) -> None:
    found = minors(linked(pairs, 8))

    assert all(pairs.get(pair, 0) > 0 for group in found for pair in combinations(group, 2))
    assert len(found) == len(set(found))


@given(lanes)
def test_what_the_annotation_says_is_what_was_meant(pairs: Pairs) -> None:
    found = groups(linked(pairs, 8), "metax")

    assert parsed(annotation(found)) == found


@given(hostile_texts | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_an_annotation_that_makes_no_sense_says_nothing(text: str) -> None:
    assert parsed(text) == ()


def test_an_annotation_that_is_too_deep_to_be_read_says_nothing() -> None:
    assert parsed("[" * 100_000) == ()


def test_of_an_annotation_what_is_not_understood_is_left_out() -> None:
    text = '{"2":[{"minors":[1,0]},{"minors":["a"]},{"minors":[true,2]},7,{"gpuLinkType":"x"}],"3":7}'

    assert parsed(text) == (LinkedCards((0, 1), ""),)


GROUPS: dict[str, Any] = {
    "f:metadata": {"f:annotations": {".": {}, "f:scheduling.koordinator.sh/gpu-partitions": {}}}
}


@pytest.mark.parametrize(
    ("there", "by_hand"),
    [
        (device(entry("kubectl-edit", GROUPS), entry("xpu-agent", LIST)), True),
        (device(entry("argocd", GROUPS, operation="Apply"), entry("xpu-agent", GROUPS)), True),
        (device(entry("xpu-agent", {**LIST, **GROUPS})), False),
        # It makes them of what our file says.
        (device(entry("koordlet", GROUPS), entry("xpu-agent", LIST)), False),
        (device(entry("kubectl-edit", {"f:metadata": {"f:annotations": {"f:theirs": {}}}})), False),
        ({"metadata": {}}, False),
        (None, False),
    ],
)
def test_groups_of_cards_are_an_operator_s_where_another_manager_wrote_them(
    there: dict[str, Any] | None, by_hand: bool
) -> None:
    assert is_by_hand(there) == by_hand
