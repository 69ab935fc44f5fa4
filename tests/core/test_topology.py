"""How near two cards are, as numbers."""

from __future__ import annotations

import pytest

from agent.core.model import DeviceStatus, Health
from agent.core.topology import topology
from agent.core.vendor import Device, Distance, Link, State

from .values import node


def seen(uuid: str, *links: Link, numa: int | None = None) -> DeviceStatus:
    return DeviceStatus(
        "acme", Device(uuid, 0, numa=numa, links=links), Health(State.HEALTHY), told_healthy=True
    )


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


def test_a_link_to_a_card_that_is_not_here_counts_for_nothing() -> None:
    it = topology(node(seen("a", Link("z", lanes=2))))

    assert it.scores == {}


def test_a_set_scores_the_sum_of_its_pairs() -> None:
    it = topology(node(seen("a", numa=0), seen("b", numa=0), seen("c", numa=1)))

    assert it.total("abc") == 20 + 10 + 10
    assert it.total("a") == it.total("") == 0
