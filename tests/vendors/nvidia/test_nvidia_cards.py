"""Rules of enumeration: what is told of a card, and that a sick one hides no other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pynvml
import pytest
from nvml_stub import NvmlStub

from agent.vendor_api.agent import BackendUnavailable, Device, HealthEvent, Proof
from agent.vendors.nvidia.child.backend import NvmlBackend
from agent.vendors.nvidia.child.cards import bdf

pytest_plugins = ["nvml_fixtures"]

FUNCTION_NOT_FOUND, UNKNOWN_ERROR = 13, 999
ZEROS = str.maketrans("123456789abcdef", "0" * 15)


def by_uuid(backend: NvmlBackend) -> dict[str, Device]:
    return {device.uuid: device for device in backend.discover()}


def put_numa(sysfs: Path, pci: str, node: str) -> None:
    folder = sysfs / "bus/pci/devices" / pci
    folder.mkdir(parents=True)
    (folder / "numa_node").write_text(f"{node}\n")


def test_a_card_is_told_in_full(backend: NvmlBackend, tmp_path: Path) -> None:
    put_numa(tmp_path / "sys", "0000:13:00.0", "1")

    device = backend.discover()[3]

    assert device == Device(
        uuid="GPU-00000000-0000-0000-0000-000000000003",
        index=3,
        minor=3,
        pci="0000:13:00.0",
        numa=1,
        memory=85520809984,
        model="NVIDIA H100 80GB HBM3",
        paths=("/dev/nvidia3",),
        attributes={
            "driver-version": "580.65.06",
            "cuda-version": "13.0",
            "compute-capability": "9.0",
            "pci-device-id": "0x233010de",
            "mig-capable": "true",
            "mig-mode": "disabled",
        },
    )


def test_every_card_is_listed_once_in_the_order_of_nvml(backend: NvmlBackend, stub: NvmlStub) -> None:
    assert [device.uuid for device in backend.discover()] == [stub.uuid(index) for index in range(8)]


@pytest.mark.parametrize("said", ["-1", "", "nonsense"])
def test_an_unknown_numa_node_is_none(backend: NvmlBackend, tmp_path: Path, said: str) -> None:
    put_numa(tmp_path / "sys", "0000:10:00.0", said)

    assert backend.discover()[0].numa is None


def test_the_path_follows_the_minor_number_not_the_index(backend: NvmlBackend, stub: NvmlStub) -> None:
    stub.minor(2, 7)

    device = backend.discover()[2]

    assert (device.minor, device.paths) == (7, ("/dev/nvidia7",))


def test_a_lost_card_keeps_its_name_and_hides_no_other(backend: NvmlBackend, stub: NvmlStub) -> None:
    before = by_uuid(backend)
    stub.lose(5)

    devices = by_uuid(backend)

    sick = devices.pop(stub.uuid(5))
    assert sick.fault is not None
    assert sick.fault.reason == "lost"
    assert set(sick.fault.cleared_by) == set(Proof)
    assert (sick.index, sick.pci, sick.memory) == (5, "0000:15:00.0", before[stub.uuid(5)].memory)
    assert devices == {uuid: device for uuid, device in before.items() if uuid != stub.uuid(5)}


def test_a_card_that_comes_back_reads_well(backend: NvmlBackend, stub: NvmlStub) -> None:
    before = backend.discover()
    stub.lose(5)
    backend.discover()
    stub.restore(5)

    assert backend.discover() == before


def test_a_card_that_was_never_read_is_listed_without_a_name(backend: NvmlBackend, stub: NvmlStub) -> None:
    stub.lose(5)

    for _ in range(2):
        devices = backend.discover()

    assert [device.nameless for device in devices] == [False] * 5 + [True] + [False] * 2
    lost = devices[5]
    assert (lost.index, lost.uuid) == (5, "nvidia-nameless-5")
    assert lost.fault is not None
    assert lost.fault.reason == "lost"


def test_a_card_without_a_name_gets_one_when_it_can_be_read(backend: NvmlBackend, stub: NvmlStub) -> None:
    stub.lose(5)
    backend.discover()

    stub.restore(5)

    assert [device.uuid for device in backend.discover()] == [stub.uuid(index) for index in range(8)]


def test_a_card_that_comes_with_its_name_brings_the_proof_that_its_loss_is_over(
    backend: NvmlBackend, stub: NvmlStub
) -> None:
    """The agent may know from before which card was lost; this process never saw it."""
    stub.lose(5)
    backend.discover()
    assert backend.health_events(0) == []

    stub.restore(5)
    backend.discover()

    assert backend.health_events(0) == [HealthEvent(stub.uuid(5), None, Proof.RESET)]
    backend.discover()
    assert backend.health_events(0) == []


def test_a_card_without_a_name_is_in_no_cdi_spec(stub: NvmlStub, tmp_path: Path) -> None:
    backend = NvmlBackend({**stub.settings, "sysfs": str(tmp_path), "deviceListStrategy": ["cdi-cri"]})
    backend.open()
    stub.lose(5)
    backend.discover()

    (text,) = backend.cdi().values()

    backend.close()
    assert "nameless" not in text
    assert stub.uuid(4) in text


def test_a_card_whose_uuid_can_not_be_read_is_known_by_its_address(
    backend: NvmlBackend, stub: NvmlStub
) -> None:
    backend.discover()
    stub.remove(0)  # every index moves, so the index alone would name the wrong card
    stub.fail("nvmlDeviceGetUUID", UNKNOWN_ERROR, index=5)

    devices = by_uuid(backend)

    assert len(devices) == 7
    assert devices[stub.uuid(5)].index == 4
    fault = devices[stub.uuid(5)].fault
    assert fault is not None
    assert (fault.reason, fault.cleared_by) == ("unreadable", ())


@pytest.mark.parametrize(
    "text",
    [
        "nonsense",
        "00000000:zz:00.0",
        "xyz:12:00.0",
        "00000000:12:00",
        "00000000:../../../etc:00.0",
        "::",
        "0:12:00.0",
        "00000000:12:00.0/..",
    ],
)
def test_a_malformed_bus_id_costs_that_card_its_address_alone(
    backend: NvmlBackend, stub: NvmlStub, text: str
) -> None:
    before = by_uuid(backend)
    stub.bus_id(2, text)

    devices = by_uuid(backend)

    assert devices == before | {stub.uuid(2): replace(before[stub.uuid(2)], pci=None)}
    assert {link.peer for link in backend.links(stub.uuid(2))} == devices.keys() - {stub.uuid(2)}


def test_a_bus_id_that_is_no_text_is_none() -> None:
    info = pynvml.nvmlPciInfo_t(busId=b"\xff")

    assert bdf(info) is None


def test_a_getter_that_fails_is_a_fault_that_clean_reads_end(backend: NvmlBackend, stub: NvmlStub) -> None:
    backend.discover()
    stub.fail("nvmlDeviceGetMemoryInfo", UNKNOWN_ERROR, index=1)
    sick = backend.discover()[1]
    stub.clear()

    assert sick.fault is not None
    assert (sick.fault.reason, sick.fault.cleared_by, sick.memory) == ("unreadable", (), 85520809984)
    assert backend.discover()[1].fault is None


def test_what_a_card_does_not_support_is_no_fault(backend: NvmlBackend, stub: NvmlStub) -> None:
    stub.fail("nvmlDeviceGetMemoryInfo", 3, index=1)  # NOT_SUPPORTED: memory is the host's

    device = backend.discover()[1]

    assert (device.fault, device.memory) == (None, 0)


def test_a_recovery_action_is_told_with_the_list(backend: NvmlBackend, stub: NvmlStub) -> None:
    stub.recovery(4, 1)

    fault = backend.discover()[4].fault

    assert fault is not None
    assert fault.reason == "recovery-action-reset"


def test_whether_a_recovery_is_due_is_told_with_the_list(backend: NvmlBackend, stub: NvmlStub) -> None:
    stub.recovery(4, 1)
    stub.lose(5)

    assert [it.recovery_due for it in backend.discover()] == [*[False] * 4, True, True, False, False]


def test_a_driver_without_recovery_actions_does_not_say_whether_one_is_due(
    backend: NvmlBackend, stub: NvmlStub
) -> None:
    stub.old_driver()

    assert {it.recovery_due for it in backend.discover()} == {None}


def test_a_removed_card_is_no_longer_listed_and_a_new_one_is(backend: NvmlBackend, stub: NvmlStub) -> None:
    backend.discover()
    stub.remove(2)
    without = by_uuid(backend)
    stub.restore(2)

    assert stub.uuid(2) not in without
    assert without[stub.uuid(3)].index == 2
    assert stub.uuid(2) in by_uuid(backend)


def test_no_cards_where_cards_were_is_broken_not_empty(backend: NvmlBackend, stub: NvmlStub) -> None:
    backend.discover()
    stub.cards(0)

    with pytest.raises(BackendUnavailable) as caught:
        backend.discover()

    assert caught.value.reason == "no-devices"


def test_a_node_without_cards_is_empty(backend: NvmlBackend, stub: NvmlStub) -> None:
    stub.cards(0)

    assert backend.discover() == []


def test_a_driver_that_goes_is_named(backend: NvmlBackend, stub: NvmlStub) -> None:
    backend.discover()
    stub.driver_gone()

    with pytest.raises(BackendUnavailable) as caught:
        backend.discover()

    assert caught.value.reason == "driver-not-loaded"


def test_opening_again_after_close_works(backend: NvmlBackend, stub: NvmlStub) -> None:
    before = backend.discover()
    backend.close()
    backend.open()

    assert backend.discover() == before


def test_a_card_that_the_next_session_finds_lost_keeps_its_name(backend: NvmlBackend, stub: NvmlStub) -> None:
    backend.discover()
    backend.close()
    stub.lose(5)
    backend.open()

    assert stub.uuid(5) in by_uuid(backend)
    assert backend.health_events(0) is not None


def test_asking_before_open_is_refused(stub: NvmlStub) -> None:
    with pytest.raises(BackendUnavailable, match="not-open"):
        NvmlBackend(stub.settings).discover()


def test_cards_of_a_mixed_node_are_told_apart(backend: NvmlBackend, stub: NvmlStub) -> None:
    stub.product(1, "NVIDIA A30")
    stub.memory(1, 25226640384)
    stub.capability(1, 8, 0)

    first, second, *_ = backend.discover()

    assert (second.model, second.memory) == ("NVIDIA A30", 25226640384)
    assert second.attributes["compute-capability"] == "8.0"
    assert (first.model, first.attributes["compute-capability"]) == ("NVIDIA H100 80GB HBM3", "9.0")


@pytest.mark.parametrize("name", ["DGX Display", "NVIDIA DGX Display"])
def test_a_card_that_drives_a_display_is_left_out(backend: NvmlBackend, stub: NvmlStub, name: str) -> None:
    stub.product(3, name)

    assert [device.index for device in backend.discover()] == [0, 1, 2, 4, 5, 6, 7]


CLUSTER = "0f3a8c1e-0000-4a5b-8c9d-00112233aabb"


def fabric(backend: NvmlBackend) -> str | None:
    return backend.discover()[0].attributes.get("fabric")


@pytest.mark.parametrize("old", [False, True])
def test_a_card_of_a_fabric_names_its_cluster_and_clique(
    backend: NvmlBackend, stub: NvmlStub, old: bool
) -> None:
    stub.fabric(0, CLUSTER, 4)
    if old:  # before R550
        stub.fail("nvmlDeviceGetGpuFabricInfoV", FUNCTION_NOT_FOUND)

    assert fabric(backend) == f"{CLUSTER}.4"
    assert "fabric" not in backend.discover()[1].attributes


@pytest.mark.parametrize(
    ("cluster", "state", "status"),
    [(CLUSTER, 0, 0), (CLUSTER, 1, 0), (CLUSTER, 2, 0), (CLUSTER, 3, 999), (CLUSTER.translate(ZEROS), 3, 0)],
)
def test_a_card_that_is_not_attached_to_a_fabric_names_none(
    backend: NvmlBackend, stub: NvmlStub, cluster: str, state: int, status: int
) -> None:
    stub.fabric(0, cluster, 4, state=state, status=status)

    assert fabric(backend) is None


def test_a_fabric_that_can_not_be_read_is_no_fault_of_the_card(backend: NvmlBackend, stub: NvmlStub) -> None:
    stub.fail("nvmlDeviceGetGpuFabricInfoV", UNKNOWN_ERROR)

    assert backend.discover()[0].fault is None
    assert fabric(backend) is None


def test_a_mig_mode_that_was_never_read_is_not_told(backend: NvmlBackend, stub: NvmlStub) -> None:
    stub.fail("nvmlDeviceGetMigMode", UNKNOWN_ERROR)

    device = backend.discover()[0]

    assert device.fault is not None
    assert {"mig-capable", "mig-mode"}.isdisjoint(device.attributes)


def test_a_card_whose_name_is_no_text_hides_no_other(
    backend: NvmlBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pynvml

    named = pynvml.nvmlDeviceGetName
    calls = iter(range(8))

    def garbage(handle: object) -> str:
        return b"\xff".decode() if next(calls) == 3 else named(handle)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetName", garbage)

    devices = backend.discover()

    assert len(devices) == 8
    assert [it.index for it in devices if it.fault] == [3]
    assert devices[3].fault is not None
    assert devices[3].fault.reason == "unreadable"


def test_a_card_tells_the_energy_since_its_driver_was_loaded_where_it_can(
    backend: NvmlBackend, stub: NvmlStub
) -> None:
    stub.energy(1, 123_456_789_012)

    counters = [device.counters for device in backend.discover()]

    assert counters[:3] == [{}, {"energy-mj": 123_456_789_012}, {}]
    assert all(device.fault is None for device in backend.discover())
