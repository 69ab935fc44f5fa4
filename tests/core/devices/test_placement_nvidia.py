"""What NVIDIA's plugin answers to GetPreferredAllocation; ours is as good or better by its own score.

Where another set is chosen the score table of the failure, or "why" in the data, says what is better in it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from agent.core.allocation.best_free_ids import prefer
from agent.core.devices.topology import DISTANCE_SCORE, LANE_SCORE, Topology
from agent.vendor_api.agent import Device, Distance, Fault, Policy
from core.values import near, shared, whole

Row = Mapping[str, Any]

DATA = Path(__file__).parents[1] / "data"
#: Facts of NVIDIA's own tests; the file names them.
FACTS = json.loads((DATA / "nvidia-placement.json").read_text())
#: Answers of nvidia-device-plugin v0.20.0 on an NVML double; what it saw stands in the file.
RECORDED = json.loads((DATA / "nvidia-preferred-allocation.json").read_text())

SYSTEM = DISTANCE_SCORE[Distance.SYSTEM]
NODE = DISTANCE_SCORE[Distance.NUMA_NODE]
SWITCH = DISTANCE_SCORE[Distance.SWITCH]


def ids(text: str) -> list[str]:
    return text.split()


def parts(text: str) -> list[list[str]]:
    return [ids(part) for part in text.split("|")]


def numbered(cards: int) -> list[str]:
    return [str(card) for card in range(cards)]


def per_card(chosen: Sequence[str]) -> Counter[str]:
    return Counter(it.partition("::")[0] for it in chosen)


def machine(name: str) -> Topology:
    """A machine of go-gpuallocator's tests."""
    it = FACTS["machines"][name]
    paths = {pair: DISTANCE_SCORE[Distance(path)] for path, pairs in it["paths"].items() for pair in pairs}
    scores = {
        (a, b): paths.get(f"{a}-{b}", SYSTEM) + LANE_SCORE * it["lanes"].get(f"{a}-{b}", 0)
        for a, b in combinations(range(it["cards"]), 2)
    }
    return near(scores, it["cards"])


def table(topology: Topology, free: Sequence[str], **answers: Sequence[str]) -> str:
    """Who chose what, its score, and the score of what is left."""
    lines = [f"of {' '.join(free)}:"]
    for who, cards in answers.items():
        left = topology.total(it for it in free if it not in cards)
        lines.append(f"{who:>6} {' '.join(sorted(cards)):<20} scores {topology.total(cards)}, left {left}")
    return "\n".join(lines)


def assert_as_near(
    topology: Topology, free: Sequence[str], ours: Sequence[str], theirs: Sequence[str]
) -> None:
    """As many cards as theirs, and as near to each other."""
    assert len(ours) == len(theirs)
    assert topology.total(ours) >= topology.total(theirs), table(topology, free, ours=ours, theirs=theirs)


# Whole cards: the tables of go-gpuallocator's best-effort policy.


@pytest.mark.parametrize("row", FACTS["preferred"], ids=lambda row: row["what"])
def test_on_a_dgx1_the_cards_are_those_of_nvidias_table_or_nearer_ones(row: Row) -> None:
    topology = machine("DGX-1 Volta")
    free, theirs = ids(row["available"]), ids(row["answer"])

    ours = prefer(whole("01234567"), free, ids(row["must"]), row["size"], topology)

    assert set(ours) == set(ids(row.get("ours", row["answer"]))), table(
        topology, free, ours=ours, theirs=theirs
    )
    assert_as_near(topology, free, ours, theirs)
    assert "why" not in row or topology.total(ours) > topology.total(theirs)


def drawn(topology: Topology, size: int, times: int) -> list[list[str]]:
    """The sets of one request after the other, until no card is left, and once more."""
    free, sets = list(topology.devices), []
    for _ in range(times):
        sets.append(prefer(whole(topology.devices), free, [], size, topology))
        free = [card for card in free if card not in sets[-1]]
    return sets


@pytest.mark.parametrize("row", FACTS["draws"], ids=lambda row: f"{row['machine']}, {row['size']}")
def test_draw_after_draw_the_cards_are_those_of_nvidias_tests_or_leave_more(row: Row) -> None:
    topology = machine(row["machine"])
    theirs = parts(row["answers"])

    ours = drawn(topology, row["size"], len(theirs))

    assert [set(it) for it in ours] == [set(it) for it in parts(row.get("ours", row["answers"]))]
    assert sum(map(topology.total, ours)) == sum(map(topology.total, theirs))


@pytest.mark.parametrize("name", FACTS["machines"])
def test_of_single_cards_that_are_drawn_ours_leave_the_nearer_ones_each_time(name: str) -> None:
    topology = machine(name)
    cards = list(topology.devices)

    ours = [card for [card] in drawn(topology, 1, len(cards))]

    for taken in range(len(cards)):
        left = [it for it in cards if it not in ours[:taken]]
        assert topology.total(left) >= topology.total(cards[taken:]), f"after {taken} draws: {ours}"


# Replicas: the facts of the plugin's allocate_test.go.


@pytest.mark.parametrize("row", FACTS["replicas"], ids=str)
def test_replicas_spread_or_pack_as_in_nvidias_tests(row: Row) -> None:
    resource = shared(dict.fromkeys(numbered(row["cards"]), int(row["replicas"])), row["policy"])
    everything = [device_id for card in resource.cards for device_id in card]

    chosen = prefer(
        resource,
        everything if row["available"] == "all" else ids(row["available"]),
        [],
        row["size"],
        Topology(),
    )

    assert sorted(per_card(chosen).values(), reverse=True) == row["counts"]


@pytest.mark.parametrize("policy", ["distributed", "packed"])
def test_cards_with_as_many_replicas_in_use_rank_equal_however_many_they_have(policy: Policy) -> None:
    resource = shared({"0": 8, "1": 4}, policy)
    two_of_each_in_use = ids("0::0 0::1 0::2 0::3 0::4 0::5 1::0 1::1")

    first = prefer(resource, two_of_each_in_use, [], 1, Topology())
    turned = replace(resource, cards=resource.cards[::-1])

    assert first == ["0::0"]
    assert prefer(turned, two_of_each_in_use, [], 1, Topology()) == ["1::0"]


def test_more_required_replicas_than_asked_for_are_the_answer() -> None:
    resource = shared({"0": 4, "1": 4})

    assert prefer(resource, ids("0::0 0::1 1::0"), ids("1::0 0::0"), 1, Topology()) == ids("1::0 0::0")


# Replay of what the real plugin answered.

WHOLE = [(int(name[0]), row) for name in ("8 cards", "4 cards") for row in RECORDED["cases"][name]]
SHARED = [
    (policy, row)
    for policy in ("distributed", "packed")
    for row in RECORDED["cases"][f"8 cards, 4 replicas, {policy}"]
]


def recorded_machine() -> Topology:
    """Cards 2i and 2i+1 on one switch with 18 links, other pairs by socket: see "hardware" in the file."""
    scores = {}
    for a, b in combinations(range(8), 2):
        scores[a, b] = SWITCH + 18 * LANE_SCORE if b == a ^ 1 else NODE if a // 4 == b // 4 else SYSTEM
    return near(scores, 8)


@pytest.mark.parametrize(("cards", "row"), WHOLE)
def test_whole_cards_are_as_near_as_those_that_nvidias_plugin_answered(cards: int, row: Row) -> None:
    topology = recorded_machine()
    free, must = ids(row["available"]), ids(row["must"])

    ours = prefer(whole(numbered(cards)), free, must, row["size"], topology)

    assert set(must) <= set(ours) <= set(free)
    assert_as_near(topology, free, ours, ids(row["answer"]))


@pytest.mark.parametrize(("policy", "row"), SHARED)
def test_replicas_fall_on_cards_as_nvidias_plugin_lets_them(policy: Policy, row: Row) -> None:
    resource = shared(dict.fromkeys(numbered(8), 4), policy)

    ours = prefer(resource, ids(row["available"]), ids(row["must"]), row["size"], Topology())

    theirs = ids(row["answer"])
    assert levels(row, ours) == levels(row, theirs)
    assert row["must"] or sorted(per_card(ours).values()) == sorted(per_card(theirs).values())


def levels(row: Row, chosen: Sequence[str]) -> list[int]:
    """How many replicas of its card were in use when each replica was taken. Names aside: the plugin picks at
    random among equal cards, where ours keeps to those of the required IDs (packed) or away from them."""
    must = ids(row["must"])
    used = Counter(dict.fromkeys(numbered(8), 4))
    used -= per_card([it for it in ids(row["available"]) if it not in must])
    taken = per_card([it for it in chosen if it not in must])
    return sorted(used[card] + n for card, count in taken.items() for n in range(count))


# Bugs of the original.


def test_nil_panic_three_of_five_on_a_flat_topology_with_linked_pairs() -> None:
    # go-gpuallocator's best set may hold padding, and the plugin ends with a nil pointer (its PR 80)
    topology = near({(a, a + 1): SYSTEM + 4 * LANE_SCORE for a in (0, 2, 4, 6)}, 8)

    chosen = prefer(whole("01234567"), ids("0 2 4 6 7"), [], 3, topology)

    assert len(chosen) == 3
    assert {"6", "7"} < set(chosen)


def test_nil_panic_three_of_five_where_every_pair_is_far() -> None:
    chosen = prefer(whole("01234567"), ids("0 2 4 6 7"), [], 3, near({}, 8))

    assert chosen == ids("0 2 4")


@pytest.mark.parametrize(("cards", "pair"), [(14, (5, 6)), (16, (5, 7))])
def test_aliasing_the_one_linked_pair_of_many_cards_is_found(cards: int, pair: tuple[int, int]) -> None:
    # go-gpuallocator keeps a slice that it goes on writing to, and answers 0 and 1
    topology = near({pair: SYSTEM + 18 * LANE_SCORE}, cards)

    chosen = prefer(whole(numbered(cards)), numbered(cards), [], 2, topology)

    assert set(chosen) == set(map(str, pair))


def with_a_lost_card() -> Topology:
    """Eight cards, 4 and 5 linked; 3 fell off the bus before anyone asked for links."""
    linked = near({(4, 5): SYSTEM + 18 * LANE_SCORE}, 8).devices
    seen = {
        uuid: replace(card, links=tuple(it for it in card.links if it.peer != "3"))
        for uuid, card in linked.items()
    }
    return Topology(seen | {"3": Device("3", 3, fault=Fault("gpu-lost"))})


@pytest.mark.parametrize("available", ["0 1 2 4 5 6 7", "0 1 2 3 4 5 6 7"])
@pytest.mark.parametrize("size", range(1, 8))
def test_a_lost_card_breaks_placement_of_no_other(available: str, size: int) -> None:
    # the plugin fails every request of the node, even one for a single card (its issues 231 and 2038)
    chosen = prefer(whole("01234567"), ids(available), [], size, with_a_lost_card())

    assert len(chosen) == size
    assert size == 1 or {"4", "5"} <= set(chosen)


def test_a_card_that_the_snapshot_does_not_hold_breaks_placement_of_no_other() -> None:
    known = near({(4, 5): SYSTEM + 18 * LANE_SCORE}, 8).devices
    topology = Topology({uuid: card for uuid, card in known.items() if uuid != "3"})

    assert set(prefer(whole("01234567"), numbered(8), [], 2, topology)) == {"4", "5"}


# Topologies that say little.


def on_nodes(topology: Topology, nodes: str) -> Topology:
    """The same cards on these NUMA nodes, "-" where the platform does not say."""
    return Topology(
        {
            uuid: replace(card, numa=None if node == "-" else int(node))
            for (uuid, card), node in zip(topology.devices.items(), nodes, strict=True)
        }
    )


def unlinked(cards: int) -> Topology:
    return Topology({uuid: Device(uuid, int(uuid)) for uuid in numbered(cards)})


@pytest.mark.parametrize("size", range(1, 9))
@pytest.mark.parametrize(
    "make", [lambda: near({}, 8), lambda: unlinked(8), Topology], ids=["flat", "bare", "none"]
)
def test_without_anything_to_choose_by_the_first_cards_are_taken(make: Any, size: int) -> None:
    """An NVSwitch is no card: behind it NVML counts no link to a peer, and every pair is as near."""
    assert prefer(whole("01234567"), numbered(8), [], size, make()) == numbered(size)


@pytest.mark.parametrize("make", [lambda: near({}, 8), lambda: unlinked(8)], ids=["NVSwitch", "no links"])
def test_of_pairs_that_are_as_near_those_on_one_numa_node_are_taken(make: Any) -> None:
    topology = on_nodes(make(), "01010101")

    chosen = prefer(whole("01234567"), ids("0 1 3 4 5 7"), [], 4, topology)

    assert set(chosen) == set(ids("1 3 5 7"))


def test_a_numa_node_does_not_outweigh_a_lane() -> None:
    topology = on_nodes(near({(0, 1): SYSTEM + LANE_SCORE}, 4), "0100")

    assert set(prefer(whole("0123"), numbered(4), [], 2, topology)) == {"0", "1"}


def test_where_numa_nodes_are_not_known_they_do_not_count() -> None:
    topology = on_nodes(unlinked(4), "-0-0")

    assert set(prefer(whole("0123"), numbered(4), [], 2, topology)) == {"1", "3"}
