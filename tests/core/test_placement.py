"""Which of the available IDs to take: never an error, never a wrong number of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.model import AdvertisedDevice, Resource
from agent.core.placement import prefer
from agent.core.topology import Topology
from agent.core.vendor import Policy

from .values import near, shared, whole

#: Answers of nvidia-device-plugin v0.20.0 on an NVML double; what it saw stands in the file.
RECORDED = json.loads((Path(__file__).parent / "data" / "nvidia-preferred-allocation.json").read_text())

SYSTEM, NODE, BRIDGE, SINGLE = 10, 20, 30, 50
LANE = 100
FLAT = Topology()


def ids(text: str) -> list[str]:
    return text.split()


def choose(
    resource: Resource, available: str, size: int, required: str = "", topology: Topology = FLAT
) -> list[str]:
    return prefer(resource, ids(available), ids(required), size, topology)


def per_card(chosen: Sequence[str]) -> Counter[str]:
    return Counter(it.partition("::")[0] for it in chosen)


# What NVIDIA's own tests say of its greedy policies: counts on each card, most first.


@dataclass(frozen=True)
class Fact:
    replicas: dict[str, int]
    policy: Policy
    size: int
    counts: list[int]


FACTS = [
    Fact({"0": 4, "1": 4}, "distributed", 2, [1, 1]),
    Fact({"0": 4, "1": 4}, "distributed", 4, [2, 2]),
    Fact({"0": 2, "1": 2, "2": 2}, "distributed", 3, [1, 1, 1]),
    Fact({"0": 4, "1": 4}, "packed", 2, [2]),
    Fact({"0": 2, "1": 2, "2": 2}, "packed", 3, [2, 1]),
    Fact({"0": 4, "1": 4}, "packed", 4, [4]),
    Fact({"0": 4, "1": 4}, "packed", 5, [4, 1]),
    Fact({"0": 2}, "distributed", 5, []),
    Fact({"0": 2}, "packed", 5, []),
]


@pytest.mark.parametrize("fact", FACTS, ids=str)
def test_replicas_spread_or_pack_as_nvidia_does(fact: Fact) -> None:
    resource = shared(fact.replicas, fact.policy)
    available = [device_id for card in resource.cards for device_id in card]

    chosen = prefer(resource, available, [], fact.size, FLAT)

    assert sorted(per_card(chosen).values(), reverse=True) == fact.counts


def test_spreading_avoids_the_card_that_is_used_already() -> None:
    chosen = choose(shared({"0": 2, "1": 2}), "0::0 0::1 1::1", 2)

    assert per_card(chosen) == {"0": 1, "1": 1}
    assert choose(shared({"0": 2, "1": 2}), "0::0 0::1 1::1", 1) == ["0::0"]


def test_packing_prefers_the_card_that_is_used_already() -> None:
    assert choose(shared({"0": 2, "1": 2}, "packed"), "0::0 0::1 1::1", 1) == ["1::1"]


def test_use_is_counted_and_not_its_share_of_the_card() -> None:
    resource = shared({"0": 8, "1": 4})

    chosen = choose(resource, "0::0 0::1 0::2 0::3 0::4 0::5 1::0 1::1", 2)

    assert per_card(chosen) == {"0": 1, "1": 1}


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


@pytest.mark.parametrize("policy", ["aligned", "distributed", "packed"])
def test_ids_that_allocate_would_refuse_are_taken_last(policy: Policy) -> None:
    topology = near({}, 3, other=SYSTEM)

    assert choose(whole("012", policy), "gone 2 1", 1, topology=topology) in (["1"], ["2"])
    assert set(choose(whole("012", policy), "gone 2", 2, topology=topology)) == {"gone", "2"}


policies = st.sampled_from(["aligned", "distributed", "packed"])
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
    possible = (
        0 < size <= len(set(available)) and len(set(required)) <= size and set(required) <= set(available)
    )

    chosen = prefer(replace(resource, policy=policy), available, required, size, topology)

    assert len(chosen) == len(set(chosen)) == (size if possible else 0)
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


# Whole cards on the machines of NVIDIA's own tests.


def volta() -> Topology:
    """DGX-1 with V100: every quad is linked, some pairs twice, and each card to its peer in the other."""
    lanes = {
        (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2,
        (2, 6): 1, (3, 7): 1, (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
    }  # fmt: skip
    return machine(8, lanes, single={(0, 1), (2, 3), (4, 5), (6, 7)})


def pascal() -> Topology:
    """DGX-1 with P100: one link for each pair of a quad, and each card to its peer in the other."""
    lanes = {pair: 1 for quad in (range(4), range(4, 8)) for pair in combinations(quad, 2)}
    lanes |= {(card, card + 4): 1 for card in range(4)}
    return machine(8, lanes, single={(0, 2), (1, 3), (4, 6), (5, 7)})


def rtx8000() -> Topology:
    """Four cards, bridged in pairs across the sockets."""
    scores = {(0, 3): SYSTEM + 2 * LANE, (1, 2): SYSTEM + 2 * LANE, (0, 1): NODE, (2, 3): NODE}
    return near(scores, 4, other=SYSTEM)


def machine(cards: int, lanes: dict[tuple[int, int], int], single: set[tuple[int, int]]) -> Topology:
    scores = {}
    for a, b in combinations(range(cards), 2):
        path = SINGLE if (a, b) in single else BRIDGE if a // 4 == b // 4 else SYSTEM
        scores[a, b] = path + LANE * lanes.get((a, b), 0)
    return near(scores, cards)


ALL = "0 1 2 3 4 5 6 7"
#: available, required, size, NVIDIA's answer
VOLTA = [
    ("0 2 4 5", "", 2, "4 5"),
    ("0 4 5 6", "", 2, "5 6"),
    ("0 3 1", "", 2, "0 3"),
    ("0 1 4", "", 2, "0 4"),
    (ALL, "4", 1, "4"),
    (ALL, "4", 2, "4 7"),
    (ALL, "4", 4, "4 5 6 7"),
    ("1 2 3 4 5 6 7", "0 1 2 3", 4, ""),
    (ALL, "0 2 4 6", 4, "0 2 4 6"),
    (ALL, "1 2 3 4 5 6", 4, ""),
    ("1 2 3 4 5", "1 2 3 4 5 6", 1, ""),
]


@pytest.mark.parametrize(("available", "required", "size", "theirs"), VOLTA)
def test_on_a_dgx1_our_cards_are_as_near_as_nvidias(
    available: str, required: str, size: int, theirs: str
) -> None:
    topology = volta()

    ours = choose(whole("01234567"), available, size, required=required, topology=topology)

    assert len(ours) == len(ids(theirs))
    assert topology.total(ours) >= topology.total(ids(theirs))
    assert set(ids(required)) <= set(ours) or not theirs


DRAWS = [
    (rtx8000, 2, "0 3 | 1 2"),
    (rtx8000, 1, "0 | 1 | 2 | 3"),
    (pascal, 2, "0 2 | 1 3 | 4 6 | 5 7"),
    (pascal, 4, "0 1 2 3 | 4 5 6 7"),
    (volta, 2, "0 3 | 1 2 | 4 7 | 5 6"),
    (volta, 4, "0 1 2 3 | 4 5 6 7"),
    (volta, 8, ALL),
]


@pytest.mark.parametrize(("make", "size", "theirs"), DRAWS)
def test_draw_after_draw_our_cards_are_as_near_as_nvidias(
    make: Callable[[], Topology], size: int, theirs: str
) -> None:
    topology = make()
    expected = [ids(part) for part in theirs.split("|")]
    free = [str(n) for n in range(size * len(expected))]
    resource = whole(free)

    drawn = []
    for _ in expected:
        drawn.append(prefer(resource, free, [], size, topology))
        free = [card for card in free if card not in drawn[-1]]

    assert sum(map(topology.total, drawn)) >= sum(map(topology.total, expected))


def test_the_best_pair_by_lanes_wins_over_the_best_path() -> None:
    topology = near({(0, 1): SINGLE, (0, 2): SYSTEM + LANE, (1, 2): SYSTEM + 2 * LANE}, 3)

    assert set(choose(whole("012"), "0 1 2", 2, topology=topology)) == {"1", "2"}


def test_among_equals_the_choice_leaves_the_others_the_most() -> None:
    linked = near({(0, 1): 210, (2, 3): 210, (4, 5): 210}, 7, other=SYSTEM)

    assert choose(whole("0123456"), "0 1 2 3 4 5 6", 1, topology=linked) == ["6"]
    assert set(choose(whole("0123456"), "1 2 3 6", 2, topology=linked)) == {"2", "3"}


def test_three_of_bridged_pairs_do_not_fail_as_they_do_in_nvidias_plugin() -> None:
    bridged = near({(n, n + 1): SYSTEM + 4 * LANE for n in (0, 2, 4, 6)}, 8, other=SYSTEM)

    chosen = choose(whole("01234567"), "0 2 4 6 7", 3, topology=bridged)

    assert {"6", "7"} < set(chosen)


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


@given(st.lists(st.integers(0, 300), min_size=28, max_size=28), st.integers(1, 8), st.sets(st.integers(0, 7)))
def test_of_eight_cards_the_chosen_set_is_the_best(scores: list[int], size: int, required: set[int]) -> None:
    topology = near(dict(zip(combinations(range(8), 2), scores, strict=True)), 8)
    must = {str(n) for n in list(required)[:size]}

    chosen = prefer(whole("01234567"), list("01234567"), sorted(must), size, topology)

    rivals = (topology.total(it) for it in combinations("01234567", size) if must <= set(it))
    assert topology.total(chosen) == max(rivals)


# Replay of what the real plugin answered.

WHOLE = [(name, case) for name in ("8 cards", "4 cards") for case in RECORDED["cases"][name]]
SHARED = [
    (policy, case)
    for policy in ("distributed", "packed")
    for case in RECORDED["cases"][f"8 cards, 4 replicas, {policy}"]
]


def recorded_machine() -> Topology:
    """Cards 2i and 2i+1 on one switch with 18 links, other pairs by socket: see "hardware" in the file."""
    scores = {}
    for a, b in combinations(range(8), 2):
        pair = SINGLE + 18 * LANE if b == a ^ 1 else NODE if a // 4 == b // 4 else SYSTEM
        scores[a, b] = pair
    return near(scores, 8)


@pytest.mark.parametrize(("name", "case"), WHOLE)
def test_whole_cards_are_as_near_as_those_that_nvidias_plugin_answered(
    name: str, case: dict[str, str | int]
) -> None:
    topology = recorded_machine()
    cards = [str(n) for n in range(int(name.split()[0]))]

    ours = choose(whole(cards), str(case["available"]), int(case["size"]), str(case["must"]), topology)

    theirs = ids(str(case["answer"]))
    assert len(ours) == len(theirs)
    assert topology.total(ours) >= topology.total(theirs)


@pytest.mark.parametrize(("policy", "case"), SHARED)
def test_replicas_fall_on_cards_as_nvidias_plugin_lets_them(
    policy: Policy, case: dict[str, str | int]
) -> None:
    resource = shared({str(n): 4 for n in range(8)}, policy)

    ours = choose(resource, str(case["available"]), int(case["size"]), str(case["must"]))

    theirs = ids(str(case["answer"]))
    assert levels(case, ours) == levels(case, theirs)
    assert case["must"] or sorted(per_card(ours).values()) == sorted(per_card(theirs).values())


def levels(case: dict[str, str | int], chosen: Sequence[str]) -> list[int]:
    """How many replicas of its card were in use when each replica was taken. Names aside: the plugin picks at
    random among equal cards, where ours keeps to those of the required IDs (packed) or away from them."""
    must = ids(str(case["must"]))
    used = Counter({str(card): 4 for card in range(8)})
    used -= per_card([it for it in ids(str(case["available"])) if it not in must])
    taken = per_card([it for it in chosen if it not in must])
    return sorted(used[card] + n for card, count in taken.items() for n in range(count))


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


@given(st.lists(st.integers(0, 300), min_size=66, max_size=66), st.integers(1, 12))
def test_of_twelve_cards_equals_are_settled_by_what_the_others_lose(scores: list[int], size: int) -> None:
    topology = near(dict(zip(combinations(range(12), 2), scores, strict=True)), 12)
    names = [str(n) for n in range(12)]

    chosen = prefer(whole(names), names, [], size, topology)

    def worth(cards: Sequence[str]) -> tuple[int, int]:
        return topology.total(cards), topology.total([it for it in names if it not in cards])

    assert worth(chosen) == max(map(worth, combinations(names, size)))


@pytest.mark.parametrize("policy", ["distributed", "packed"])
def test_a_long_list_is_chosen_from_as_a_short_one(policy: Policy) -> None:
    resource = shared({"0": 3000, "1": 3000}, policy)
    available = [device_id for card in resource.cards for device_id in card if device_id != "1::0"]

    chosen = prefer(resource, available, ["0::7"], 1000, FLAT)

    assert per_card(chosen) == ({"0": 500, "1": 500} if policy == "distributed" else {"0": 1000})
    assert chosen[0] == "0::7"
    assert chosen == prefer(resource, available[::-1], ["0::7"], 1000, FLAT)
