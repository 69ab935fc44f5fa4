"""Enflame's cards are listed in full, each as library and sysfs know it, whatever one of them does."""

from __future__ import annotations

from pathlib import Path

import pytest
from efml_stub import HANDLES, INDICES, NEWER, EfmlStub
from enflame_host import Host, by_uuid, uuid
from enflame_tree import Tree

from agent.vendor_api.agent import BackendUnavailable, State
from agent.vendors.enflame.child.abi import Code, VirtMode
from agent.vendors.enflame.child.backend import EnflameBackend
from agent.vendors.enflame.shared import sysfs

pytest_plugins = ["efml_fixtures", "enflame_fixtures"]

MIB = 1 << 20


def test_a_card_is_what_library_and_sysfs_say_of_it(backend: EnflameBackend) -> None:
    device = backend.discover()[5]

    assert device.uuid == "GCU-TR6Y46000005"
    assert (device.index, device.minor, device.pci) == (5, 5, "0000:25:00.0")
    assert (device.numa, device.memory) == (1, 42976 * MIB)
    assert device.paths == ("/dev/gcu5",)
    assert device.attributes["pcie-root"] == "pci0000:1a"
    assert device.attributes["control-node"] == "/dev/gcuctl"
    assert device.attributes["driver-version"]
    assert device.attributes["library-version"]
    assert device.attributes["product"] == "S60"
    assert device.attributes["serial"] == "A018K30500005"
    assert device.counters == {"dbe": 0}
    assert (device.fault, device.recovery_due) == (None, False)


def test_the_minor_is_sysfs_own_and_not_the_index(host: Host, stub: EfmlStub) -> None:
    stub.minor(0, 7, logic=3)
    stub.minor(7, 0, logic=9)

    devices = host.opened().discover()

    assert [(it.index, it.minor, it.paths) for it in devices if it.index in (0, 7)] == [
        (0, 7, ("/dev/gcu7",)),
        (7, 0, ("/dev/gcu0",)),
    ]


def test_the_index_is_the_librarys_and_the_uuid_stays_when_it_counts_anew(
    host: Host, stub: EfmlStub, backend: EnflameBackend
) -> None:
    before = {it.uuid: (it.pci, it.minor) for it in backend.discover()}
    backend.close()
    stub.order(*reversed(range(8)))
    backend.open()

    devices = backend.discover()

    assert {it.uuid: (it.pci, it.minor) for it in devices} == before
    assert [it.uuid for it in devices] == [uuid(slot) for slot in reversed(range(8))]


def test_a_card_without_a_minor_is_listed_with_a_fault(
    host: Host, backend: EnflameBackend, stub: EfmlStub
) -> None:
    (host.tree.path(2) / "enflame/gcu2/dev").unlink()
    stub.rename(2, "NEW")  # one of whom nobody knows it from before

    device = by_uuid(backend.discover())["GCU-NEW"]

    assert device.fault is not None
    assert (device.fault.reason, device.minor, device.paths) == ("no-minor", None, ())


@pytest.mark.parametrize("text", ["", "239", "239:", "239:x", ":5", "239:5:1", "239:-5"])
def test_a_minor_that_is_no_number_is_none(host: Host, text: str) -> None:
    host.tree.write(1, "enflame/gcu1/dev", text)

    assert sysfs.minor(host.tree.sysfs, host.stub.bdf(1), 1) is None


def test_of_several_entries_the_one_that_the_library_names_is_the_cards(host: Host) -> None:
    host.tree.write(1, "enflame/gcu1/dev", "239:4")
    other = host.tree.path(1) / "enflame/gcu40"
    other.mkdir()
    (other / "dev").write_text("239:77\n")

    found = [sysfs.minor(host.tree.sysfs, host.stub.bdf(1), logic) for logic in (1, 40, 2, None)]

    assert found == [4, 77, None, None]


def test_b21_entries_of_sysfs_without_a_number_are_no_cards(host: Host, backend: EnflameBackend) -> None:
    for name in ("power", "gcu", "gcux", "vgcu0", "subsystem"):
        (host.tree.path(1) / "enflame" / name).mkdir()

    assert [it.minor for it in backend.discover()] == list(range(8))


def test_b21_of_addresses_that_end_alike_none_is_taken_for_the_other(host: Host, stub: EfmlStub) -> None:
    stub.address(1, "0001:20:00.0")
    stub.minor(1, 9)

    devices = host.opened().discover()

    assert [(it.pci, it.minor) for it in devices[:2]] == [("0000:20:00.0", 0), ("0001:20:00.0", 9)]


def test_white_label_drivers_have_another_folder(stub: EfmlStub, host: Host, tmp_path: Path) -> None:
    tree = Tree(tmp_path / "other", stub, folder="zixiao")

    assert sysfs.minor(tree.sysfs, stub.bdf(3), 3) == 3


def test_a_white_label_library_is_the_same(host: Host, tmp_path: Path) -> None:
    stub = EfmlStub(host.stub.control.parent, rebranded=True)

    devices = host.opened(**stub.settings).discover()

    assert [it.uuid for it in devices] == [uuid(slot) for slot in range(8)]


def test_a_numa_node_that_the_library_does_not_know_is_the_kernels(
    backend: EnflameBackend, stub: EfmlStub, host: Host
) -> None:
    stub.unsupported("EfmlGetNumaNode")
    host.tree.write(0, "numa_node", "-1")

    assert [it.numa for it in backend.discover()] == [None, 0, 0, 0, 1, 1, 1, 1]


@pytest.mark.parametrize("part", [INDICES, HANDLES, NEWER])
def test_builds_of_one_family_tell_the_same_cards(host: Host, part: str) -> None:
    """Without the index family the driver tells the uuid, and a card's only entry its minor."""
    stub = EfmlStub(host.stub.control.parent, without=[part])

    devices = host.opened(**stub.settings).discover()

    assert [(it.uuid, it.minor, it.numa) for it in devices] == [
        (uuid(slot), slot, slot // 4) for slot in range(8)
    ]
    assert [it.memory for it in devices] == [42976 * MIB] * 8
    assert [it.fault for it in devices] == [None] * 8


def test_a_card_that_can_not_be_read_hides_no_other_and_stays_what_it_was(
    backend: EnflameBackend, stub: EfmlStub
) -> None:
    before = backend.discover()[3]
    stub.fail("EfmlGetDevInfo", Code.FAIL, slot=3)

    devices = backend.discover()

    assert [it.uuid for it in devices] == [uuid(slot) for slot in range(8)]
    assert [it.index for it in devices if it.fault] == [3]
    it = devices[3]
    assert (it.memory, it.minor, it.pci, it.paths) == (before.memory, 3, before.pci, before.paths)
    assert it.attributes == before.attributes


@pytest.mark.parametrize("symbol", ["EfmlGetDevMem", "EfmlGetDevUuid", "EfmlGetDevHealth"])
def test_whatever_fails_of_a_card_is_its_own_fault(
    backend: EnflameBackend, stub: EfmlStub, symbol: str
) -> None:
    stub.fail("EfmlGetDevIsHealth", 3)
    stub.fail(symbol, Code.FAIL, slot=3)

    faults = [it.fault and it.fault.reason for it in backend.discover()]

    assert faults == [None] * 3 + ["unreadable"] + [None] * 4


def test_a_card_that_never_told_its_uuid_is_nameless_and_gets_its_name_back(
    host: Host, stub: EfmlStub
) -> None:
    stub.fail("EfmlGetDevUuid", Code.FAIL, slot=1)
    host.tree.write(1, "ssm/chipid", "")
    backend = host.opened()

    device = backend.discover()[1]
    assert (device.nameless, device.fault is not None) == (True, True)

    stub.clear()
    assert backend.discover()[1].uuid == uuid(1)


@pytest.mark.parametrize("text", ["a b", "a,b", "a::b", "é", "x" * 101])
def test_a_uuid_that_can_be_no_id_is_none(host: Host, stub: EfmlStub, text: str) -> None:
    stub.rename(1, text)
    host.tree.write(1, "ssm/chipid", text)

    assert host.opened().discover()[1].nameless


def test_a_library_that_tells_a_uuid_twice_is_believed_once(host: Host, stub: EfmlStub) -> None:
    stub.rename(1, stub.uuid(0))

    assert [it.index for it in host.opened().discover()] == [0, 2, 3, 4, 5, 6, 7]


def test_no_cards_where_sysfs_shows_some_is_a_broken_library(host: Host, stub: EfmlStub) -> None:
    stub.count(0)
    backend = host.backend()
    backend.open()

    with pytest.raises(BackendUnavailable, match="no-devices"):
        backend.discover()


def test_no_cards_where_sysfs_shows_none_is_a_node_without(host: Host, stub: EfmlStub) -> None:
    for slot in range(8):
        host.tree.remove(slot)
    stub.count(0)

    assert host.opened().discover() == []


def test_a_card_that_sysfs_shows_anew_is_looked_for(host: Host, stub: EfmlStub) -> None:
    stub.cards(7)
    backend = host.opened()
    assert len(backend.discover()) == 7

    stub.cards(8)
    host.tree.add(7)

    assert [it.uuid for it in backend.discover()] == [uuid(slot) for slot in range(8)]


def test_without_news_in_sysfs_the_library_is_not_started_again(
    backend: EnflameBackend, stub: EfmlStub
) -> None:
    stub.trace()
    backend.discover()
    backend.discover()

    assert stub.calls("EfmlInit") == 0


def test_a_driver_that_goes_away_is_said_and_found_again(backend: EnflameBackend, stub: EfmlStub) -> None:
    stub.driver_gone()
    with pytest.raises(BackendUnavailable, match="driver-not-loaded"):
        backend.discover()

    stub.driver_reload()

    assert [it.fault for it in backend.discover()] == [None] * 8


@pytest.mark.parametrize("mode", [VirtMode.VGCU, VirtMode.MDEV, VirtMode.SRIOV_VF])
def test_a_virtual_function_is_not_given_out_as_a_card(host: Host, stub: EfmlStub, mode: int) -> None:
    stub.virt(2, mode, "SRIOV")

    faults = [it.fault and it.fault.reason for it in host.opened().discover()]

    assert faults == [None, None, "virtual-function", None, None, None, None, None]


def test_a_virtual_function_of_a_card_that_is_here_is_not_listed(host: Host) -> None:
    (host.tree.path(2) / "physfn").symlink_to(host.tree.path(1))

    assert [it.index for it in host.opened().discover()] == [0, 1, 3, 4, 5, 6, 7]


def test_a_card_that_is_split_into_functions_is_not_given_out_whole(host: Host) -> None:
    host.tree.write(1, "sriov_numvfs", "4")

    fault = host.opened().discover()[1].fault

    assert fault is not None
    assert fault.reason == "sliced"
    assert "4 virtual functions" in fault.message


# Without the library


def test_without_a_library_the_driver_tells_of_the_cards_and_nothing_watches_them(
    host: Host, stub: EfmlStub
) -> None:
    backend = host.opened(library="/nowhere/libefml.so")

    devices = backend.discover()

    assert [it.uuid for it in devices] == [uuid(slot) for slot in range(8)]
    assert [(it.minor, it.numa, it.paths) for it in devices[3:5]] == [
        (3, 0, ("/dev/gcu3",)),
        (4, 1, ("/dev/gcu4",)),
    ]
    assert {(it.fault.reason, it.fault.state) for it in devices if it.fault} == {
        ("no-library", State.UNKNOWN)
    }
    assert devices[0].attributes["control-node"] == "/dev/gcuctl"
    assert backend.health_events(0) == ()
    assert (backend.partitions(), backend.usage(), backend.links(uuid(0))) == ((), (), ())


@pytest.mark.parametrize(
    ("vendor", "kind", "known"),
    [
        ("0x1ea0", "0x120000", True),
        ("0x1e36", "0x030200", True),
        ("0x1ea0", "0x030200", True),
        ("0x1e36", "0x060400", False),
        ("0x10de", "0x030200", False),
    ],
)
def test_without_a_library_cards_are_known_by_their_maker_and_class(
    host: Host, vendor: str, kind: str, known: bool
) -> None:
    host.tree.write(2, "vendor", vendor)
    host.tree.write(2, "class", kind)

    devices = host.opened(library="/nowhere/libefml.so").discover()

    assert (2 in {it.minor for it in devices}) == known


@pytest.mark.parametrize("wrong", ["libc.so.6", "/etc/hostname"])
def test_a_library_that_is_wrong_is_not_stood_in_for(host: Host, wrong: str) -> None:
    """What is wrong has to be told, and the list of sysfs would say that the library is missing."""
    with pytest.raises(BackendUnavailable) as refused:
        host.opened(library=wrong)

    assert refused.value.reason == "library-unusable"


def test_without_a_library_virtual_functions_are_not_listed_either(host: Host) -> None:
    (host.tree.path(2) / "physfn").symlink_to(host.tree.path(1))

    devices = host.opened(library="/nowhere/libefml.so").discover()

    assert [it.minor for it in devices] == [0, 1, 3, 4, 5, 6, 7]


def test_without_library_and_driver_nothing_of_enflame_is_here(host: Host) -> None:
    host.tree.no_driver()
    backend = host.backend(library="/nowhere/libefml.so")

    with pytest.raises(BackendUnavailable, match="library-not-found"):
        backend.open()


def test_a_library_that_comes_later_is_taken(host: Host, tmp_path: Path) -> None:
    link = tmp_path / "libefml.so"
    backend = host.opened(library=str(link))
    assert backend.discover()[0].memory == 0

    link.symlink_to(host.stub.library)

    assert backend.discover()[0].memory == 42976 * MIB


def test_a_library_without_its_driver_says_so(host: Host, stub: EfmlStub) -> None:
    stub.driver_gone()

    with pytest.raises(BackendUnavailable, match="driver-not-loaded"):
        host.backend().open()


def test_only_an_open_backend_discovers(host: Host) -> None:
    with pytest.raises(BackendUnavailable, match="not-open"):
        host.backend().discover()


def test_usage_is_the_cards_in_bytes_and_parts_of_one(backend: EnflameBackend, stub: EfmlStub) -> None:
    stub.memory(0, 42976, used=1000)
    stub.utilization(0, 25.0)

    it = backend.usage()[0]

    assert (it.uuid, it.memory_used, it.utilization) == (uuid(0), 1000 * MIB, 0.25)


def test_the_use_of_a_card_that_is_away_is_not_asked_for_by_its_old_index(
    host: Host, backend: EnflameBackend, stub: EfmlStub
) -> None:
    stub.lose(2)
    host.tree.remove(2)
    backend.discover()
    stub.restore(2)  # another card may have the index by now

    assert uuid(2) not in [it.uuid for it in backend.usage()]
