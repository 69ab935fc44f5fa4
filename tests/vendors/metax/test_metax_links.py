"""How cards reach each other: MetaXLink lanes and groups, and the PCIe path."""

from __future__ import annotations

import pytest
from metax_host import Host, by_uuid
from mxsml_stub import MxsmlStub

from agent.vendor_api.agent import Distance, Link
from agent.vendors.metax.child.abi import Code, TopologyLevel
from agent.vendors.metax.child.backend import MetaxBackend

pytest_plugins = ["mxsml_fixtures", "metax_fixtures"]


def _link(backend: MetaxBackend, slot: int, other: int) -> Link:
    [found] = [it for it in backend.links(MxsmlStub.uuid(slot)) if it.peer == MxsmlStub.uuid(other)]
    return found


@pytest.mark.parametrize(
    ("level", "distance"),
    [
        (TopologyLevel.INTERNAL, Distance.BOARD),
        (TopologyLevel.SINGLE, Distance.SWITCH),
        (TopologyLevel.MULTIPLE, Distance.SWITCHES),
        (TopologyLevel.HOST_BRIDGE, Distance.HOST_BRIDGE),
        (TopologyLevel.NODE, Distance.NUMA_NODE),
        (TopologyLevel.SYSTEM, Distance.SYSTEM),
        (TopologyLevel.ETH, Distance.SYSTEM),
        (TopologyLevel.UNDEFINED, Distance.SYSTEM),
        (99, Distance.SYSTEM),
    ],
)
def test_a_level_of_the_library_is_a_distance(
    native: MetaxBackend, stub: MxsmlStub, level: int, distance: Distance
) -> None:
    stub.no_links()
    stub.level(0, 1, level)

    assert _link(native, 0, 1) == Link(stub.uuid(1), 0, distance)


def test_lanes_are_counted_by_the_address_at_the_other_end(native: MetaxBackend, stub: MxsmlStub) -> None:
    for port, other in enumerate([1, 1, 5]):
        stub.link(0, port, other)

    assert [_link(native, 0, other).lanes for other in (1, 5, 6)] == [2, 1, 0]


@pytest.mark.parametrize(("other", "distance"), [(1, Distance.NUMA_NODE), (5, Distance.SYSTEM)])
def test_a_metaxlink_hides_no_more_of_the_path_than_the_numa_nodes_tell(
    native: MetaxBackend, stub: MxsmlStub, other: int, distance: Distance
) -> None:
    stub.no_links()
    stub.level(0, other, TopologyLevel.METAX_LINK)

    assert _link(native, 0, other) == Link(stub.uuid(other), 1, distance)


def test_lanes_of_all_dies_are_the_cards(native: MetaxBackend, stub: MxsmlStub) -> None:
    one_die = _link(native, 0, 1).lanes
    stub.dies(0)
    native.discover()

    assert _link(native, 0, 1).lanes >= one_die > 0


def test_what_can_not_be_read_counts_as_far(native: MetaxBackend, stub: MxsmlStub) -> None:
    stub.fail("GetDeviceTopology", Code.FAILURE)
    stub.fail("GetMetaXLinkRemoteInfo", Code.OPERATION_NOT_SUPPORT)

    assert {(it.lanes, it.distance) for it in native.links(stub.uuid(0))} == {(0, Distance.SYSTEM)}


def test_a_card_that_nobody_knows_has_no_links(native: MetaxBackend) -> None:
    assert native.links("GPU-unknown") == ()


def test_cards_that_metaxlink_joins_have_one_zone(native: MetaxBackend, stub: MxsmlStub) -> None:
    zones = [it.attributes["link-zone"] for it in native.discover()]

    assert zones == ["1"] * 4 + ["2"] * 4


def test_a_card_without_metaxlink_has_no_zone(host: Host, stub: MxsmlStub) -> None:
    stub.link(0, 0, 1)
    stub.link(1, 0, 0)
    backend = host.backend()
    backend.open()

    devices = by_uuid(backend.discover())

    assert [devices[stub.uuid(slot)].attributes.get("link-zone") for slot in range(3)] == ["1", "1", None]


def test_links_are_not_read_again_with_each_list(host: Host, stub: MxsmlStub) -> None:
    stub.trace()
    backend = host.backend()
    backend.open()
    backend.discover()
    before = stub.calls("GetMetaXLinkRemoteInfo")

    backend.discover()

    assert stub.calls("GetMetaXLinkRemoteInfo") == before > 0
