"""MetaX's cards are listed in full, each as the library knows it, whatever one of them does."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from metax_host import Host, by_uuid
from mxsml_stub import MxsmlStub

from agent.vendor_api.agent import BackendUnavailable, State
from agent.vendors.metax.child.abi import Code
from agent.vendors.metax.child.backend import MetaxBackend

pytest_plugins = ["mxsml_fixtures", "metax_fixtures"]

GIB = 1 << 30


def test_a_card_is_what_the_library_and_sysfs_say_of_it(native: MetaxBackend, stub: MxsmlStub) -> None:
    device = native.discover()[5]

    assert device.uuid == stub.uuid(5)
    assert (device.index, device.minor, device.pci) == (5, 5, "0000:25:00.0")
    assert (device.numa, device.memory, device.model) == (1, 64 * GIB, "MXC500")
    assert device.paths == ("/dev/dri/card6", "/dev/dri/renderD133")
    assert device.attributes["pcie-root"] == "pci0000:1a"
    assert device.attributes["control-nodes"] == "/dev/mxcd"
    assert device.attributes["driver-version"]
    assert device.counters == {"dram-ue": 0, "sram-ue": 0, "dbe": 0, "aer-ue": 0}
    assert device.fault is None


def test_a_pci_address_is_written_in_lower_case(native: MetaxBackend, stub: MxsmlStub) -> None:
    stub.bus_id(0, "0000:2F:00.0")

    assert native.discover()[0].pci == "0000:2f:00.0"


def test_a_numa_node_that_the_kernel_does_not_know_is_none(native: MetaxBackend, host: Host) -> None:
    (host.sysfs / "bus/pci/devices" / host.stub.bdf(0) / "numa_node").write_text("-1\n")

    assert native.discover()[0].numa is None


def test_cards_keep_their_uuids_when_the_library_numbers_them_anew(
    host: Host, stub: MxsmlStub, native: MetaxBackend
) -> None:
    before = {it.uuid: it.pci for it in native.discover()}
    native.close()
    stub.order(7, 6, 5, 4, 3, 2, 1, 0)
    native.open()

    after = {it.uuid: it.pci for it in native.discover()}

    assert after == before


def test_memory_is_that_of_all_dies(native: MetaxBackend, stub: MxsmlStub) -> None:
    stub.dies(0)

    device = native.discover()[0]

    assert device.memory == 64 * GIB
    assert device.attributes["dies"] == "2"


def test_physical_functions_are_found_at_their_numbers_from_100(host: Host, stub: MxsmlStub) -> None:
    for slot in range(8):
        stub.physical(slot)
    backend = host.backend(mode="vgpu")
    backend.open()

    whole = [it for it in backend.discover() if it.parent is None]

    assert [it.index for it in whole] == list(range(100, 108))
    assert [it.minor for it in whole] == list(range(8))
    assert [it.uuid for it in whole] == [stub.uuid(slot) for slot in range(8)]


def test_mode_vgpu_lists_virtual_functions_below_their_cards(host: Host, stub: MxsmlStub) -> None:
    stub.physical(0, 4)
    backend = host.backend(mode="vgpu")
    backend.open()

    devices = by_uuid(backend.discover())
    functions = [it for it in devices.values() if it.parent == stub.uuid(0)]

    assert [it.uuid for it in functions] == [stub.vf_uuid(0, number) for number in range(4)]
    assert [it.slice for it in functions] == [0, 1, 2, 3]
    assert {it.pci for it in functions} == {devices[stub.uuid(0)].pci}
    assert devices[stub.uuid(0)].attributes["virtual-functions"] == "4"


@pytest.mark.parametrize("mode", ["native", "shared", "sgpu"])
def test_a_card_split_into_virtual_functions_is_not_given_out_whole(
    host: Host, stub: MxsmlStub, mode: str
) -> None:
    stub.physical(0, 4)
    backend = host.backend(mode=mode)
    backend.open()

    devices = by_uuid(backend.discover())

    fault = devices[stub.uuid(0)].fault
    assert fault is not None
    assert fault.reason == "sliced"
    assert not any(it.parent for it in devices.values())
    assert devices[stub.uuid(1)].fault is None


def test_a_card_that_can_not_be_read_hides_no_other(native: MetaxBackend, stub: MxsmlStub) -> None:
    stub.fail("GetDeviceInfo", Code.FAILURE, slot=3)

    devices = native.discover()

    assert [it.uuid for it in devices] == [stub.uuid(slot) for slot in range(8)]
    assert [it.index for it in devices if it.fault] == [3]
    assert devices[3].memory == 64 * GIB  # as it was


def test_a_card_that_left_is_gone_under_its_own_name(native: MetaxBackend, stub: MxsmlStub) -> None:
    stub.lose(2)

    device = by_uuid(native.discover())[stub.uuid(2)]

    assert device.fault is not None
    assert device.fault.reason == "gone"
    assert device.pci == stub.bdf(2)


def test_a_card_that_comes_back_is_well_again(native: MetaxBackend, stub: MxsmlStub) -> None:
    stub.lose(2)
    native.discover()
    stub.restore(2)

    assert by_uuid(native.discover())[stub.uuid(2)].fault is None


def test_a_card_that_never_told_its_uuid_is_nameless(host: Host, stub: MxsmlStub) -> None:
    stub.rename(1, "")
    backend = host.backend()
    backend.open()

    device = backend.discover()[1]

    assert device.nameless
    assert device.fault is not None


def test_a_card_that_tells_an_empty_uuid_later_is_nameless(host: Host, stub: MxsmlStub) -> None:
    backend = host.backend()
    backend.open()
    before = backend.discover()[1]
    stub.rename(1, "")

    device = backend.discover()[1]

    assert (device.nameless, device.pci) == (True, before.pci)
    assert device.fault is not None


def test_a_uuid_that_two_cards_tell_is_listed_once(host: Host, stub: MxsmlStub) -> None:
    stub.rename(1, stub.uuid(0))
    backend = host.backend()
    backend.open()

    uuids = [it.uuid for it in backend.discover()]

    assert len(uuids) == len(set(uuids)) == 7


def test_a_card_that_works_in_part_only_is_listed_with_a_fault(host: Host, stub: MxsmlStub) -> None:
    stub.limited(4)
    backend = host.backend()
    backend.open()

    fault = by_uuid(backend.discover())[stub.uuid(4)].fault

    assert fault is not None
    assert fault.reason == "limited"


def test_no_cards_where_there_were_some_is_a_broken_library(native: MetaxBackend, stub: MxsmlStub) -> None:
    stub.cards(0)

    with pytest.raises(BackendUnavailable, match="no-devices"):
        native.discover()


def test_a_driver_that_was_unloaded_is_said_to_be(native: MetaxBackend, host: Host) -> None:
    host.unload()

    with pytest.raises(BackendUnavailable, match="driver-not-loaded"):
        native.discover()


def test_a_library_that_finds_no_driver_does_not_prove_that_it_was_unloaded(
    native: MetaxBackend, host: Host, stub: MxsmlStub
) -> None:
    """What was wrong with a card is over once its driver is loaded anew: sysfs shows that it stayed."""
    stub.driver_gone()

    with pytest.raises(BackendUnavailable, match="mxsml-init"):
        native.discover()
    with pytest.raises(BackendUnavailable, match="mxsml-init"):
        host.backend().open()


def test_a_driver_that_was_loaded_anew_needs_no_new_process(native: MetaxBackend, host: Host) -> None:
    host.unload()
    with pytest.raises(BackendUnavailable):
        native.discover()
    host.load()

    assert [it.fault for it in native.discover()] == [None] * 8


def test_opening_works_once_the_driver_is_there(host: Host) -> None:
    host.unload()
    backend = host.backend()
    for _ in range(3):
        with pytest.raises(BackendUnavailable, match="driver-not-loaded"):
            backend.open()
    host.load()

    backend.open()

    assert len(backend.discover()) == 8


def test_a_card_that_was_put_in_is_found(host: Host, stub: MxsmlStub) -> None:
    stub.cards(7)
    host.remove(7)
    backend = host.backend()
    backend.open()
    assert len(backend.discover()) == 7

    stub.cards(8)
    host.add_back(7)

    assert len(backend.discover()) == 8


def test_without_its_library_a_card_is_known_from_sysfs_and_nothing_watches_it(host: Host) -> None:
    backend = host.backend(library="/nowhere/libmxsml.so")
    backend.open()

    devices = backend.discover()

    assert [it.pci for it in devices] == [host.stub.bdf(slot) for slot in range(8)]
    assert devices[0].paths == ("/dev/dri/card1", "/dev/dri/renderD128")
    assert {(it.fault.reason, it.fault.state) for it in devices if it.fault} == {
        ("no-library", State.UNKNOWN)
    }


@pytest.mark.parametrize("mode", ["shared", "sgpu", "vgpu"])
def test_modes_that_need_the_library_do_not_open_without_it(host: Host, mode: str) -> None:
    with pytest.raises(BackendUnavailable, match="library-not-found"):
        host.backend(mode=mode, library="/nowhere/libmxsml.so").open()


def test_a_library_that_can_not_be_loaded_is_not_passed_over_for_sysfs(host: Host, tmp_path: Path) -> None:
    (tmp_path / "libmxsml.so").touch()

    with pytest.raises(BackendUnavailable, match=r"library-unusable.*file too short"):
        host.backend(library=str(tmp_path)).open()


def test_who_listens_where_the_library_is_missing_is_let_go_when_the_backend_closes(host: Host) -> None:
    backend = host.backend(library="/nowhere/libmxsml.so")
    backend.open()
    heard: list[object] = []
    listens = threading.Thread(target=lambda: heard.append(backend.health_events(600)), daemon=True)
    listens.start()

    backend.close()

    listens.join(30)  # else it would wait ten minutes
    assert heard == [()]


def test_without_library_and_driver_nothing_is_there(host: Host) -> None:
    host.no_driver()

    with pytest.raises(BackendUnavailable, match="library-not-found"):
        host.backend(library="/nowhere/libmxsml.so").open()


def test_usage_is_what_the_library_counts(native: MetaxBackend, stub: MxsmlStub) -> None:
    stub.utilization(0, 40)

    usage = native.usage()

    assert usage[0].uuid == stub.uuid(0)
    assert usage[0].memory_used == 858 << 20
    assert usage[0].utilization == 0.4
