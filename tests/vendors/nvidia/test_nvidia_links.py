"""Rules of topology: lanes are counted by the card at the other end, and a lost peer breaks nothing."""

from __future__ import annotations

import pytest
from nvml_stub import NvmlStub

from agent.vendor_api.agent import Distance
from agent.vendors.nvidia.child.backend import NvmlBackend
from agent.vendors.nvidia.child.links import LEVELS

pytest_plugins = ["nvml_fixtures"]


def test_the_links_are_those_of_the_recorded_hardware(backend: NvmlBackend, stub: NvmlStub) -> None:
    backend.discover()

    for card in range(8):
        links = {link.peer: (link.lanes, link.distance) for link in backend.links(stub.uuid(card))}
        assert links == {
            stub.uuid(peer): (18, Distance.SWITCH)
            if peer == card ^ 1
            else (0, Distance.NUMA_NODE if peer // 4 == card // 4 else Distance.SYSTEM)
            for peer in range(8)
            if peer != card
        }


def test_a_lost_peer_counts_as_far(backend: NvmlBackend, stub: NvmlStub) -> None:
    backend.discover()
    stub.lose(1)

    links = {link.peer: link for link in backend.links(stub.uuid(0))}

    assert (links[stub.uuid(1)].lanes, links[stub.uuid(1)].distance) == (0, Distance.SYSTEM)
    assert links[stub.uuid(2)].distance is Distance.NUMA_NODE


def test_a_lost_card_is_far_from_all(backend: NvmlBackend, stub: NvmlStub) -> None:
    backend.discover()
    stub.lose(0)

    assert {link.distance for link in backend.links(stub.uuid(0))} == {Distance.SYSTEM}


def test_cards_without_nvlink_are_asked_for_one_link_only(backend: NvmlBackend, stub: NvmlStub) -> None:
    stub.no_nvlink()
    backend.discover()
    stub.trace()

    links = backend.links(stub.uuid(0))

    assert {link.lanes for link in links} == {0}
    assert stub.calls("nvmlDeviceGetNvLinkState") == 1


def test_an_unknown_card_has_no_links(backend: NvmlBackend) -> None:
    assert backend.links("GPU-nowhere") == ()


@pytest.mark.parametrize(("level", "distance"), LEVELS.items())
def test_the_distance_is_the_common_ancestor(
    backend: NvmlBackend, stub: NvmlStub, level: int, distance: Distance
) -> None:
    stub.level(0, 5, level)
    backend.discover()

    links = {link.peer: link.distance for link in backend.links(stub.uuid(0))}

    assert links[stub.uuid(5)] is distance


def test_lanes_are_counted_by_pair_and_those_to_a_switch_are_nobodys(
    backend: NvmlBackend, stub: NvmlStub
) -> None:
    stub.nvlinks(0, 3, 2)
    stub.nvlinks(0, 4, 1)
    stub.nvswitch(0, 6)
    backend.discover()

    lanes = {link.peer: link.lanes for link in backend.links(stub.uuid(0)) if link.lanes}

    assert lanes == {stub.uuid(3): 2, stub.uuid(4): 1}
