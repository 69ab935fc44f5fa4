"""Rules of MIG: each MIG device is a device of its own, beside its card and never hidden by another."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from nvml_stub import DOUBLE_BIT_ECC, GPU_IS_LOST, UNAVAILABLE, Mig, NvmlStub

from agent.isolation import child, vendor_answers
from agent.vendor_api.agent import Device
from agent.vendors.nvidia.child.backend import NvmlBackend
from agent.vendors.nvidia.child.mig import profile

pytest_plugins = ["nvml_fixtures"]

NOT_SUPPORTED, NO_PERMISSION, UNKNOWN_ERROR = 3, 4, 999
SHORT = 0.02


@pytest.fixture
def settings(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**settings, "migStrategy": "mixed"}


@pytest.fixture
def split(backend: NvmlBackend, stub: NvmlStub, tmp_path: Path) -> NvmlBackend:
    """Two cards, of which the second has the three MIG devices of the recordings."""
    stub.cards(2)
    stub.mig(1)
    stub.write_minors(tmp_path / "proc")
    return backend


def by_uuid(backend: NvmlBackend) -> dict[str, Device]:
    return {device.uuid: device for device in backend.discover()}


def slices(backend: NvmlBackend) -> dict[str, Device]:
    return {uuid: device for uuid, device in by_uuid(backend).items() if device.parent}


def profiles(backend: NvmlBackend) -> list[str]:
    return [device.attributes["mig-profile"] for device in slices(backend).values()]


def test_a_mig_device_is_told_in_full(split: NvmlBackend, stub: NvmlStub, tmp_path: Path) -> None:
    folder = tmp_path / "sys/bus/pci/devices/0000:11:00.0"
    folder.mkdir(parents=True)
    (folder / "numa_node").write_text("1\n")
    stub.mig(1, [Mig(gi=7), Mig("1c.2g.20gb", gi=5, ci=3, engines=(16, 2, 3, 4, 5, 6))])

    assert split.discover()[3] == Device(
        uuid="MIG-00000000-0000-0001-0001-000000000001",
        index=1,
        pci="0000:11:00.0",
        numa=1,
        memory=20096 << 20,
        model="NVIDIA H100 80GB HBM3",
        paths=("/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap183", "/dev/nvidia-caps/nvidia-cap187"),
        attributes={
            "driver-version": "580.65.06",
            "cuda-version": "13.0",
            "compute-capability": "9.0",
            "mig-profile": "1c.2g.20gb",
            "gi": "5",
            "ci": "3",
            "multiprocessors": "16",
            "slices-gi": "2",
            "slices-ci": "1",
            "engines-copy": "2",
            "engines-decoder": "3",
            "engines-encoder": "4",
            "engines-jpeg": "5",
            "engines-ofa": "6",
        },
        parent=stub.uuid(1),
        slice=1,
    )


def test_the_recorded_mig_devices_stand_behind_their_card(split: NvmlBackend, stub: NvmlStub) -> None:
    devices = split.discover()

    assert [(device.index, device.slice, device.parent) for device in devices] == [
        (0, None, None),
        (1, None, None),
        *((1, number, stub.uuid(1)) for number in range(3)),
    ]
    assert [device.attributes["gi"] for device in devices[2:]] == ["7", "8", "9"]
    assert {device.attributes["mig-profile"] for device in devices[2:]} == {"1g.10gb"}
    assert {device.fault for device in devices} == {None}


def test_a_card_tells_whether_it_can_do_mig_and_does(split: NvmlBackend, stub: NvmlStub) -> None:
    stub.cards(3)
    stub.no_mig(2)

    told = [
        {key: value for key, value in device.attributes.items() if key in ("mig-capable", "mig-mode")}
        for device in by_uuid(split).values()
        if not device.parent
    ]

    assert told == [
        {"mig-capable": "true", "mig-mode": "disabled"},
        {"mig-capable": "true", "mig-mode": "enabled"},
        {"mig-capable": "false"},
    ]


#: Card, bytes of its memory, MiB of the MIG device, slices of its compute and its GPU instance, profile.
MEMORIES = (
    ("A100 40GB", 42505273344, 4864, 1, 1, "1g.5gb"),
    ("A100 40GB", 42505273344, 9856, 1, 1, "1g.10gb"),
    ("A100 40GB", 42505273344, 9856, 2, 2, "2g.10gb"),
    ("A100 40GB", 42505273344, 19968, 3, 3, "3g.20gb"),
    ("A100 40GB", 42505273344, 19968, 1, 3, "1c.3g.20gb"),
    ("A100 40GB", 42505273344, 40192, 7, 7, "7g.40gb"),
    ("A30", 25226640384, 5952, 1, 1, "1g.6gb"),
    ("H100 80GB", 85520809984, 9984, 1, 1, "1g.10gb"),
    ("H100 80GB", 85520809984, 40448, 2, 4, "2c.4g.40gb"),
    ("a card that does not tell", 0, 9984, 1, 1, "1g.10gb"),
)


@pytest.mark.parametrize(("card", "total", "mebibytes", "ci", "gi", "name"), MEMORIES)
def test_a_profile_counts_memory_in_eighths_of_the_card(
    card: str, total: int, mebibytes: int, ci: int, gi: int, name: str
) -> None:
    has = SimpleNamespace(memorySizeMB=mebibytes, computeInstanceSliceCount=ci, gpuInstanceSliceCount=gi)

    assert profile(has, total, "") == name


LAYOUT = (
    Mig("1g.10gb+me", gi=7),
    Mig("1g.20gb", gi=8),
    Mig("2g.20gb+gfx", gi=5),
    Mig("3g.40gb+gfx", gi=1),  # the one that ends NVIDIA's plugin
    Mig("1g.10gb-me", gi=9),
    Mig("2g.20gb+me.all", gi=6),
    Mig("1c.2g.20gb", gi=4),
)


def test_a_profile_ends_with_what_sets_it_apart(split: NvmlBackend, stub: NvmlStub) -> None:
    stub.mig(1, LAYOUT)

    assert profiles(split) == [it.profile for it in LAYOUT]


@pytest.mark.parametrize("symbol", ["nvmlDeviceGetGpuInstanceById", "nvmlGpuInstanceGetInfo"])
@pytest.mark.parametrize("code", [NO_PERMISSION, NOT_SUPPORTED])
def test_without_privileges_a_profile_is_known_by_the_devices_name(
    split: NvmlBackend, stub: NvmlStub, symbol: str, code: int
) -> None:
    stub.mig(1, LAYOUT)
    stub.fail(symbol, code)

    assert profiles(split) == [it.profile for it in LAYOUT]


def test_a_profile_that_was_misread_once_is_not_kept(split: NvmlBackend, stub: NvmlStub) -> None:
    stub.mig(1, [Mig("1g.10gb+me", gi=7)])
    stub.fail("nvmlDeviceGetGpuInstanceProfileInfo", UNKNOWN_ERROR)
    [sick] = slices(split).values()
    stub.clear()

    assert sick.fault is not None
    assert profiles(split) == ["1g.10gb+me"]


def test_free_numbers_stay_free(split: NvmlBackend, stub: NvmlStub) -> None:
    stub.mig(1, [None, Mig(gi=8), None, Mig(gi=9)])

    assert [device.slice for device in slices(split).values()] == [1, 3]


def test_a_mig_device_without_a_readable_uuid_is_known_by_its_number(
    split: NvmlBackend, stub: NvmlStub
) -> None:
    before = slices(split)
    stub.fail("nvmlDeviceGetUUID", UNKNOWN_ERROR, 1, 2)

    devices = slices(split)

    sick = devices[stub.mig_uuid(1, 2)]
    assert sick.fault is not None
    assert replace(sick, fault=None) == before[sick.uuid]
    assert {uuid: it for uuid, it in devices.items() if uuid != sick.uuid} == {
        uuid: it for uuid, it in before.items() if uuid != sick.uuid
    }


def test_a_mig_device_without_a_readable_uuid_is_not_taken_for_one_that_is_gone(
    split: NvmlBackend, stub: NvmlStub
) -> None:
    split.discover()
    [last] = stub.mig(1, [None, None, Mig(gi=9)])
    stub.fail("nvmlDeviceGetUUID", UNKNOWN_ERROR, 1, 2)

    assert list(slices(split)) == [last]


def test_a_mig_device_that_was_never_read_is_left_out_and_told_once(
    split: NvmlBackend, stub: NvmlStub, capfd: pytest.CaptureFixture[str]
) -> None:
    stub.fail("nvmlDeviceGetUUID", UNKNOWN_ERROR, 1, 2)

    assert [len(slices(split)) for _ in range(3)] == [2, 2, 2]
    assert capfd.readouterr().err.count("MIG device 1:2 is left out") == 1


@pytest.mark.parametrize(
    "symbol",
    [
        "nvmlDeviceGetMigDeviceHandleByIndex",
        "nvmlDeviceGetAttributes_v2",
        "nvmlDeviceGetGpuInstanceId",
        "nvmlDeviceGetComputeInstanceId",
    ],
)
def test_a_mig_device_that_can_not_be_read_hides_no_other_and_comes_back(
    split: NvmlBackend, stub: NvmlStub, tmp_path: Path, symbol: str
) -> None:
    (tmp_path / "proc/driver/nvidia-caps/mig-minors").rename(tmp_path / "minors")  # none is sound yet
    before = split.discover()
    (tmp_path / "minors").rename(tmp_path / "proc/driver/nvidia-caps/mig-minors")
    stub.fail(symbol, UNKNOWN_ERROR, 1, 0)

    devices = split.discover()
    stub.clear()

    faults = [device.fault.reason if device.fault else None for device in devices]
    assert faults == [None, None, "unreadable", None, None]
    assert devices[2].attributes == before[2].attributes
    assert {device.fault for device in split.discover()} == {None}


@pytest.mark.parametrize(
    ("kept", "missing"),
    [
        ("gpu1/gi7/ci0/access", "GPU instance capability path: {}/gpu1/mig/gi7/access"),
        ("gpu1/gi7/access", "compute instance capability path: {}/gpu1/mig/gi7/ci0/access"),
    ],
)
def test_a_missing_capability_is_a_fault_in_nvidias_words(
    split: NvmlBackend, tmp_path: Path, kept: str, missing: str
) -> None:
    file = tmp_path / "proc/driver/nvidia-caps/mig-minors"
    file.write_text(f"config 1\nmonitor 2\nnot a line\n{kept} 66\n")

    devices = split.discover()

    fault = devices[2].fault
    assert fault is not None
    assert (fault.reason, fault.cleared_by) == ("capability-missing", ())
    assert fault.message.startswith("missing MIG " + missing.format("/proc/driver/nvidia/capabilities"))
    assert fault.message.endswith(f"{file} does not list it")
    assert devices[2].paths == ()
    assert devices[0].fault is devices[1].fault is None


def test_a_capability_that_appears_ends_the_fault(split: NvmlBackend, stub: NvmlStub, tmp_path: Path) -> None:
    (tmp_path / "proc/driver/nvidia-caps/mig-minors").write_text("gpu0/gi0/access 3\n")
    assert all(device.fault for device in slices(split).values())

    stub.write_minors(tmp_path / "proc")

    assert not any(device.fault for device in slices(split).values())


def test_the_capability_follows_the_cards_minor_number(split: NvmlBackend, stub: NvmlStub) -> None:
    by_index = split.discover()[2].paths
    stub.minor(1, 4)

    assert by_index == ("/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap201", "/dev/nvidia-caps/nvidia-cap202")
    assert split.discover()[2].paths == (
        "/dev/nvidia4",
        "/dev/nvidia-caps/nvidia-cap606",
        "/dev/nvidia-caps/nvidia-cap607",
    )


def test_a_layout_that_changes_is_followed_and_leaves_the_rest_as_it_is(
    split: NvmlBackend, stub: NvmlStub
) -> None:
    before = slices(split)
    first, second = stub.mig(1, [Mig(gi=7), Mig("2g.20gb", gi=5)])

    after = slices(split)

    assert list(after) == [first, second]
    assert after[first] == before[first]
    assert second not in before
    assert after[second].attributes["mig-profile"] == "2g.20gb"


def test_mig_switched_off_leaves_the_card_and_switched_on_makes_it_a_parent_again(
    split: NvmlBackend, stub: NvmlStub
) -> None:
    before = by_uuid(split)
    stub.mig_mode(1, enabled=False)
    without = by_uuid(split)
    stub.mig_mode(1, enabled=True)

    assert list(without) == [stub.uuid(0), stub.uuid(1)]
    assert by_uuid(split) == before


def test_a_card_in_mig_mode_without_mig_devices_is_listed(split: NvmlBackend, stub: NvmlStub) -> None:
    stub.mig(1, [])

    devices = by_uuid(split)

    assert list(devices) == [stub.uuid(0), stub.uuid(1)]
    assert devices[stub.uuid(1)].attributes["mig-mode"] == "enabled"


def test_a_lost_card_keeps_its_mig_devices_without_faults_of_their_own(
    split: NvmlBackend, stub: NvmlStub
) -> None:
    before = by_uuid(split)
    stub.lose(1)

    devices = by_uuid(split)

    sick = devices.pop(stub.uuid(1))
    assert sick.fault is not None
    assert sick.attributes == before.pop(stub.uuid(1)).attributes
    assert devices == before


def test_a_card_that_is_lost_in_the_next_session_keeps_its_mig_devices(
    split: NvmlBackend, stub: NvmlStub
) -> None:
    before = slices(split)
    split.close()
    stub.lose(1)
    split.open()

    assert slices(split) == before


@pytest.mark.parametrize(
    ("symbol", "code"),
    [
        ("nvmlDeviceGetMigMode", UNKNOWN_ERROR),
        ("nvmlDeviceGetMaxMigDeviceCount", UNKNOWN_ERROR),
        ("nvmlDeviceGetMigDeviceHandleByIndex", GPU_IS_LOST),
        ("nvmlDeviceGetUUID", GPU_IS_LOST),
    ],
)
def test_a_card_that_does_not_tell_its_layout_keeps_the_one_of_before(
    split: NvmlBackend, stub: NvmlStub, symbol: str, code: int
) -> None:
    before = slices(split)
    stub.fail(symbol, code, 1)

    assert slices(split) == before


def test_a_removed_card_takes_its_mig_devices_along(split: NvmlBackend, stub: NvmlStub) -> None:
    split.discover()
    stub.remove(1)

    assert list(by_uuid(split)) == [stub.uuid(0)]


def test_a_mig_device_moves_with_its_cards_index(split: NvmlBackend, stub: NvmlStub) -> None:
    split.discover()
    stub.remove(0)

    assert {device.index for device in split.discover()} == {0}


def test_what_is_the_nodes_is_told_anew_with_each_list(split: NvmlBackend, tmp_path: Path) -> None:
    def told() -> set[str | None]:
        return {device.attributes.get("control-nodes") for device in split.discover()}

    node = tmp_path / "driver/dev/nvidiactl"

    assert told() == {None}
    os.mkfifo(node)  # a node that takes no privileges
    assert told() == {"/dev/nvidiactl"}
    node.unlink()
    assert told() == {None}


def test_a_sound_mig_device_is_asked_for_its_uuid_alone(split: NvmlBackend, stub: NvmlStub) -> None:
    split.discover()
    stub.trace()

    split.discover()

    assert stub.calls("nvmlDeviceGetUUID") == 2 + 3
    assert stub.calls("nvmlDeviceGetMigDeviceHandleByIndex") == 7
    for symbol in ("Attributes_v2", "GpuInstanceId", "GpuInstanceById", "GpuInstanceProfileInfo"):
        assert stub.calls(f"nvmlDeviceGet{symbol}") == 0


def test_a_card_without_mig_mode_costs_one_call(backend: NvmlBackend, stub: NvmlStub) -> None:
    stub.trace()

    backend.discover()

    assert stub.calls("nvmlDeviceGetMigMode") == 8
    assert stub.calls("nvmlDeviceGetMaxMigDeviceCount") == 0


def test_mig_devices_have_no_links(split: NvmlBackend, stub: NvmlStub) -> None:
    split.discover()

    assert split.links(stub.mig_uuid(1, 0)) == ()
    assert {link.peer for link in split.links(stub.uuid(0))} == {stub.uuid(1)}


def test_the_agent_takes_the_list_as_it_is(split: NvmlBackend) -> None:
    devices = split.discover()

    sent = json.loads(child.encode({"answer": devices}))["answer"]

    assert vendor_answers.devices(json.dumps(sent).encode()) == tuple(devices)


def test_cdi_specs_name_the_devices_of_the_last_list(stub: NvmlStub, settings: Mapping[str, Any]) -> None:
    stub.cards(1)
    [uuid] = stub.mig(0, [Mig(gi=7)])
    stub.write_minors(Path(settings["procfs"]))
    backend = NvmlBackend({**settings, "deviceListStrategy": ["cdi-cri"]})
    backend.open()
    assert backend.cdi() == {}
    backend.discover()

    [spec] = map(json.loads, backend.cdi().values())

    assert {device["name"] for device in spec["devices"]} == {"all", stub.uuid(0), uuid}
    backend.close()


# Events


def hear(backend: NvmlBackend) -> list[tuple[str | None, str | None]]:
    events = backend.health_events(20.0)
    return [(event.uuid, event.fault.reason if event.fault else None) for event in events]


@pytest.fixture
def watched(split: NvmlBackend, stub: NvmlStub) -> NvmlBackend:
    """A second card with two compute instances in one GPU instance, and two GPU instances more."""
    stub.mig(1, [Mig("1c.2g.20gb", gi=5, ci=0), Mig("1c.2g.20gb", gi=5, ci=1), Mig(gi=7), Mig(gi=8)])
    split.discover()
    assert split.health_events(SHORT) == []
    return split


@pytest.mark.parametrize(
    ("gi", "ci", "numbers"),
    [
        (5, 0, [0]),
        (5, 1, [1]),
        (7, 0, [2]),
        (5, None, [0, 1]),
        (8, None, [3]),
    ],
)
def test_an_event_of_an_instance_names_its_mig_devices_and_no_sibling(
    watched: NvmlBackend, stub: NvmlStub, gi: int, ci: int | None, numbers: list[int]
) -> None:
    stub.xid(1, 95, gi, ci)

    assert hear(watched) == [(stub.mig_uuid(1, number), "xid-95") for number in numbers]


@pytest.mark.parametrize("ci", [None, 0])
def test_an_event_without_a_gpu_instance_names_the_card(
    watched: NvmlBackend, stub: NvmlStub, ci: int | None
) -> None:
    stub.xid(1, 79, None, ci)

    assert hear(watched) == [(stub.uuid(1), "xid-79")]


@pytest.mark.parametrize(("gi", "ci"), [(9, 0), (7, 1)])
def test_an_event_of_an_unknown_instance_names_the_card_once_the_next_list_has_none_either(
    watched: NvmlBackend, stub: NvmlStub, gi: int, ci: int
) -> None:
    stub.xid(1, 79, gi, ci)
    assert hear(watched) == []
    assert watched.health_events(SHORT) == []

    watched.discover()

    assert hear(watched) == [(stub.uuid(1), "xid-79")]
    watched.discover()
    assert watched.health_events(SHORT) == []


def test_an_event_of_an_instance_that_was_just_made_names_its_mig_device_and_not_the_card(
    watched: NvmlBackend, stub: NvmlStub
) -> None:
    made = stub.mig(1, [None, None, Mig(gi=7), Mig(gi=8), Mig(gi=9)])[-1]
    stub.event(1, DOUBLE_BIT_ECC, 0, 9, 0)
    assert hear(watched) == []

    watched.discover()

    assert hear(watched) == [(made, "ecc-double-bit")]


def test_an_event_of_an_unknown_instance_waits_for_a_list_with_its_card(
    watched: NvmlBackend, stub: NvmlStub
) -> None:
    stub.xid(1, 79, 9, 0)
    assert hear(watched) == []
    stub.remove(1)
    watched.discover()
    assert [watched.health_events(SHORT) for _ in range(2)] == [[], []]

    stub.restore(1)
    watched.discover()

    assert hear(watched) == [(stub.uuid(1), "xid-79")]


def test_the_same_places_on_another_card_are_others(watched: NvmlBackend, stub: NvmlStub) -> None:
    stub.xid(0, 79, 7, 0)
    assert hear(watched) == []

    watched.discover()

    assert hear(watched) == [(stub.uuid(0), "xid-79")]


def test_a_double_bit_error_of_an_instance_is_its_own(watched: NvmlBackend, stub: NvmlStub) -> None:
    stub.event(1, DOUBLE_BIT_ECC, 0, 7, 0)

    assert hear(watched) == [(stub.mig_uuid(1, 2), "ecc-double-bit")]


def test_an_unavailable_card_is_not_one_instance_alone(watched: NvmlBackend, stub: NvmlStub) -> None:
    stub.event(1, UNAVAILABLE, 0, 7, 0)

    assert hear(watched) == [(stub.uuid(1), "unavailable")]


def test_an_error_of_the_application_in_an_instance_says_nothing(
    watched: NvmlBackend, stub: NvmlStub
) -> None:
    stub.xid(1, 13, 7, 0)
    stub.xid(1, 79, 7, 0)

    assert hear(watched) == []
    assert hear(watched) == [(stub.mig_uuid(1, 2), "xid-79")]
