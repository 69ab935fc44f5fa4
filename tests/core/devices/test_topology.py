"""How near two cards are, as numbers."""

from __future__ import annotations

import pytest

from agent.core.devices.topology import Topology, topology
from agent.core.model import DeviceStatus, Health
from agent.vendor_api.agent import Device, Distance, Link, State
from core.values import node


def seen(uuid: str, *links: Link, numa: int | None = None, parent: str | None = None) -> DeviceStatus:
    device = Device(uuid, 0, numa=numa, links=links, parent=parent)
    return DeviceStatus("acme", device, Health(State.HEALTHY), told_healthy=True)


@pytest.mark.parametrize(
    ("distance", "score"),
    [
        (Distance.SYSTEM, 10),
        (Distance.NUMA_NODE, 20),
        (Distance.HOST_BRIDGE, 30),
        (Distance.SWITCHES, 40),
        (Distance.SWITCH, 50),
        (Distance.BOARD, 60),
    ],
)
def test_a_pair_scores_its_path_and_a_hundred_for_each_lane(distance: Distance, score: int) -> None:
    it = topology(node(seen("a", Link("b", lanes=3, distance=distance)), seen("b")))

    assert it.score("a", "b") == it.score("b", "a") == score + 300


def test_without_links_cards_of_one_numa_node_are_near() -> None:
    it = topology(node(seen("a", numa=0), seen("b", numa=0), seen("c", numa=1), seen("d"), seen("e")))

    assert it.score("a", "b") == 20
    assert it.score("a", "c") == it.score("a", "d") == it.score("d", "e") == 10


def test_what_only_one_side_reports_counts_for_both() -> None:
    it = topology(node(seen("a"), seen("b", Link("a", lanes=2, distance=Distance.SWITCH))))

    assert it.score("a", "b") == 250


def test_of_two_reports_the_nearer_counts() -> None:
    it = topology(node(seen("a", Link("b")), seen("b", Link("a", lanes=2))))

    assert it.score("a", "b") == it.score("b", "a") == 210


def test_cards_of_one_numa_node_are_never_farther_than_that() -> None:
    it = topology(
        node(seen("a", Link("b"), Link("c", lanes=2), numa=0), seen("b", numa=0), seen("c", numa=0))
    )

    assert it.score("a", "b") == 20
    assert it.score("a", "c") == 210


def test_a_link_to_a_card_that_is_not_here_counts_for_nothing() -> None:
    it = topology(node(seen("a", Link("z", lanes=2)), seen("b")))

    assert it.score("a", "z") == it.score("z", "a") == it.score("y", "z") == 0
    assert it.score("a", "b") == 10


def test_a_card_is_no_neighbour_of_its_own() -> None:
    assert topology(node(seen("a", numa=0))).score("a", "a") == 0


def slices() -> Topology:
    """GPUs g and h with two slices each, and a GPU without MIG; g and h are linked."""
    return topology(
        node(
            seen("g", Link("h", lanes=18, distance=Distance.SWITCH), Link("i", lanes=18)),
            seen("h", Link("g", lanes=18, distance=Distance.SWITCH)),
            seen("i"),
            *(seen(f"{gpu}{n}", parent=gpu) for gpu in "gh" for n in (1, 2)),
        )
    )


def test_slices_of_one_gpu_are_nearest_to_each_other() -> None:
    it = slices()

    near = it.score("g1", "g2")
    assert near == it.score("g2", "g1") == it.score("g", "g1") == 60
    assert all(near > it.score("g1", other) for other in ("h", "h1", "h2", "i"))


def test_slices_of_two_gpus_are_as_near_as_the_gpus_but_for_the_lanes() -> None:
    # with MIG there is no peer-to-peer over NVLink
    it = slices()

    assert it.score("g1", "h1") == it.score("h2", "g1") == it.score("g1", "h") == 50
    assert it.score("g1", "i") == 10
    assert it.score("g", "h") == 1850


def test_slices_of_gpus_without_links_are_near_on_one_numa_node() -> None:
    it = topology(node(*(seen(f"{gpu}1", numa=int(gpu in "gh"), parent=gpu) for gpu in "ghi")))

    assert it.score("g1", "h1") == 20
    assert it.score("g1", "i1") == 10


def test_the_rows_are_the_scores_of_all_pairs() -> None:
    it = slices()
    names = ["g1", "i", "unknown", "h", "g2"]

    assert it.rows(names) == [[it.score(a, b) for b in names] for a in names]


def test_a_set_scores_the_sum_of_its_pairs() -> None:
    it = topology(node(seen("a", numa=0), seen("b", numa=0), seen("c", numa=1)))

    assert it.total("abc") == 20 + 10 + 10
    assert it.total("a") == it.total("") == 0
