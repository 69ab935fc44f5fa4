"""What the tree of the cards looks like."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.devices.topology import Topology
from agent.core.devices.topology_tree import Level, TopologyTree, TreeNode, topology_tree
from agent.vendor_api.agent import Device, Distance, Link
from core.matrices import ONE, SEVEN, SIX, THREE, grouped, machine, tree_of

FOUR = grouped(("PIX", "01"), ("PXB", "012"), ("SOC", "0123"), size=4)


def shape(tree: TopologyTree, node: TreeNode | None = None) -> str:
    """The tree in one line: the level, the number of cards, and what is below; cards by name."""
    node = node or tree.root
    if node.level is Level.CARD:
        return next(tree.uuids(node.members))
    below = " ".join(shape(tree, it) for it in node.children)
    return f"{node.level.name.lower()}:{node.members.bit_count()}[{below}]"


def test_seven_cards_below_two_switches_make_the_theoretical_tree_of_their_document() -> None:
    assert shape(tree_of(SEVEN)) == "root:7[host_bridge:7[switch:3[0 1 2] switch:4[3 4 5 6]]]"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SIX, "root:6[numa_node:6[host_bridge:4[switch:2[0 1] switch:2[2 3]] switch:2[4 5]]]"),
        (FOUR, "root:4[numa_node:4[switches:3[switch:2[0 1] 2] 3]]"),
        (THREE, "root:3[host_bridge:3[0 switch:2[1 2]]]"),
        (ONE, "root:1[0]"),
    ],
)
def test_a_node_joins_the_cards_and_nodes_of_the_next_nearer_level(text: str, expected: str) -> None:
    assert shape(tree_of(text)) == expected


def test_without_any_card_the_tree_is_a_root() -> None:
    assert shape(topology_tree(Topology(), [])) == "root:0[]"


def test_cards_without_known_links_hang_at_the_root() -> None:
    assert shape(topology_tree(Topology({"a": Device("a", 1), "b": Device("b", 0)}), ["a", "b", "c"])) == (
        "root:3[b a c]"
    )


def test_a_card_that_no_level_joins_hangs_at_the_root_beside_the_groups() -> None:
    assert shape(tree_of(grouped(("PIX", "12"), size=4))) == "root:4[0 switch:2[1 2] 3]"


def test_groups_of_several_levels_that_nothing_joins_hang_at_the_root() -> None:
    assert shape(tree_of(grouped(("PIX", "01"), ("PHB", "23"), size=4))) == (
        "root:4[switch:2[0 1] host_bridge:2[2 3]]"
    )


def test_cards_across_sockets_alone_are_one_group() -> None:
    assert shape(tree_of(grouped(("SYS", "0123"), size=4))) == "root:4[system:4[0 1 2 3]]"


def pair(distance: Distance, lanes: int = 0) -> str:
    cards = [Device("0", 0, links=(Link("1", lanes, distance),)), Device("1", 1)]
    return shape(topology_tree(Topology({it.uuid: it for it in cards}), ["0", "1"]))


def test_the_chips_of_one_board_are_joined_as_cards_below_one_switch_are() -> None:
    assert pair(Distance.BOARD) == pair(Distance.SWITCH) == "root:2[switch:2[0 1]]"


def test_direct_lanes_do_not_count_beside_a_path_and_are_nearest_without_one() -> None:
    assert pair(Distance.HOST_BRIDGE, lanes=18) == "root:2[host_bridge:2[0 1]]"
    assert pair(Distance.BOARD, lanes=18) == "root:2[lanes:2[0 1]]"


def test_of_two_links_of_a_pair_the_nearer_one_counts() -> None:
    far, near = Link("b", 0, Distance.SYSTEM), Link("a", 0, Distance.SWITCH)
    cards = {"a": Device("a", 0, links=(far,)), "b": Device("b", 1, links=(near,))}

    assert shape(topology_tree(Topology(cards), cards)) == "root:2[switch:2[a b]]"


def test_slices_are_joined_by_their_card_and_then_by_the_links_of_their_cards() -> None:
    slices = {
        f"{card}{n}": Device(f"{card}{n}", index, parent=card, slice=n)
        for index, card in enumerate("gh")
        for n in range(2)
    }
    cards = {"g": Device("g", 0, links=(Link("h", 12, Distance.SWITCHES),)), "h": Device("h", 1)}

    assert shape(topology_tree(Topology({**slices, **cards}), slices)) == (
        "root:4[switches:4[lanes:2[g0 g1] lanes:2[h0 h1]]]"
    )


def test_more_cards_than_thirty_two_make_a_tree() -> None:
    cards = "0123456789abcdefghijklmnopqrstuvwxyz"
    pairs = " ".join(a + b for a, b in zip(cards[::2], cards[1::2], strict=True))
    tree = tree_of(grouped(("PIX", pairs), ("SYS", cards), size=36))

    [machine_wide] = tree.root.children
    assert machine_wide.members.bit_count() == tree.root.count(tree.bits(tree.cards)) == 36
    assert [it.members.bit_count() for it in machine_wide.children] == [2] * 18


words = st.sampled_from([*Distance, None])


@st.composite
def machines(draw: st.DrawFn) -> Topology:
    """Any links between up to eight cards, also such as no machine has."""
    size = draw(st.integers(1, 8))
    found = {pair: draw(words) for pair in combinations(range(size), 2)}

    def links(card: int) -> tuple[Link, ...]:
        at = ((pair, path) for pair, path in found.items() if card in pair)
        return tuple(Link(str(sum(pair) - card), 0, path) for pair, path in at if path is not None)

    return Topology({str(card): Device(str(card), card, links=links(card)) for card in range(size)})


@given(machines(), st.randoms())
def test_the_order_of_cards_and_links_changes_no_tree(topology: Topology, random: object) -> None:
    turned = {
        it.uuid: Device(it.uuid, it.index, links=it.links[::-1])
        for it in reversed([*topology.devices.values()])
    }

    assert topology_tree(topology, topology.devices) == topology_tree(Topology(turned), reversed([*turned]))


@given(machines())
def test_every_card_is_in_the_tree_once_as_a_leaf(topology: Topology) -> None:
    tree = topology_tree(topology, topology.devices)

    def leaves(node: TreeNode) -> list[int]:
        return (
            [node.members] if not node.children else [it for child in node.children for it in leaves(child)]
        )

    assert sorted(leaves(tree.root)) == [1 << place for place in range(len(topology.devices))]
    assert [*tree.uuids(tree.root.members)] == [*topology.devices]


def test_a_matrix_of_the_tests_is_read_as_it_stands() -> None:
    assert [it.distance for it in machine(THREE).devices["0"].links] == [Distance.HOST_BRIDGE] * 2
