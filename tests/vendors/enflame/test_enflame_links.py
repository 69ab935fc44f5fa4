"""How cards reach each other: LARE ports, once called ESL, and the PCIe path."""

from __future__ import annotations

from pathlib import Path

import pytest
from efml_stub import NEWER, EfmlStub
from enflame_host import Host, uuid

from agent.vendor_api.agent import Distance, Link
from agent.vendors.enflame.child.abi import Code
from agent.vendors.enflame.child.backend import EnflameBackend

pytest_plugins = ["efml_fixtures", "enflame_fixtures"]


def _link(backend: EnflameBackend, slot: int, other: int) -> Link:
    [found] = [it for it in backend.links(uuid(slot)) if it.peer == uuid(other)]
    return found


def _moved(host: Host, slot: int, *bridges: str) -> None:
    """Put the card below these bridges, the first being its root complex."""
    bdf = host.stub.card(slot).bdf
    device = Path(host.tree.sysfs, "devices", *bridges, bdf)
    device.parent.mkdir(parents=True, exist_ok=True)
    host.tree.path(slot).resolve().rename(device)
    host.tree.path(slot).unlink()
    host.tree.path(slot).symlink_to(device)


ROOT, PORT, UP = "pci0000:50", "0000:50:01.0", "0000:51:00.0"
#: Where the two cards are, and how far that is.
PATHS = {
    "one switch": ((ROOT, PORT, UP, "0000:52:00.0"), (ROOT, PORT, UP, "0000:52:01.0"), Distance.SWITCH),
    "several switches": (
        (ROOT, PORT, UP, "0000:52:00.0", "0000:53:00.0", "0000:54:00.0"),
        (ROOT, PORT, UP, "0000:52:01.0"),
        Distance.SWITCHES,
    ),
    "one root": ((ROOT, PORT), (ROOT, "0000:50:02.0"), Distance.HOST_BRIDGE),
    "one node": ((ROOT, PORT), ("pci0000:60", "0000:60:01.0"), Distance.NUMA_NODE),
}


@pytest.mark.parametrize(("one", "other", "distance"), PATHS.values(), ids=PATHS.keys())
def test_the_bridges_that_two_cards_share_are_their_distance(
    host: Host, backend: EnflameBackend, one: tuple[str, ...], other: tuple[str, ...], distance: Distance
) -> None:
    _moved(host, 0, *one)
    _moved(host, 1, *other)

    assert [_link(backend, *pair).distance for pair in ((0, 1), (1, 0))] == [distance] * 2


def test_cards_of_other_numa_nodes_are_far(backend: EnflameBackend) -> None:
    assert _link(backend, 0, 5) == Link(uuid(5), 0, Distance.SYSTEM)


def test_a_card_whose_numa_node_nobody_knows_is_far(host: Host, stub: EfmlStub) -> None:
    for slot in (0, 1):
        stub.numa(slot, -1)
    _moved(host, 0, ROOT)
    backend = host.opened()

    assert _link(backend, 0, 1).distance is Distance.SYSTEM


@pytest.mark.parametrize("without", [(), (NEWER,)])
def test_lanes_are_counted_by_the_address_at_the_other_end(host: Host, without: tuple[str, ...]) -> None:
    stub = EfmlStub(host.stub.control.parent, without=without)
    backend = host.opened(**stub.settings)
    for port, other in enumerate([1, 1, 5]):
        stub.port(0, port, other)

    assert [_link(backend, 0, other).lanes for other in (1, 5, 6)] == [2, 1, 0]


def test_what_can_not_be_read_counts_as_no_lanes(backend: EnflameBackend, stub: EfmlStub) -> None:
    stub.port(0, 0, 1)
    stub.fail("EfmlGetGcuLarePortInfo", Code.FAIL)

    assert {it.lanes for it in backend.links(uuid(0))} == {0}
    assert len(backend.links(uuid(0))) == 7


def test_a_card_that_nobody_knows_has_no_links(backend: EnflameBackend) -> None:
    assert backend.links("GCU-unknown") == ()
