"""Rules of what sysfs tells: the PCI class, and the host of a vGPU, whatever the config space holds."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.vendors.nvidia.child.backend import NvmlBackend
from agent.vendors.nvidia.child.sysfs import vgpu_host

pytest_plugins = ["nvml_fixtures"]

CAPABILITIES = 0xD0
#: The version and the branch in the test data of NVIDIA's plugin (internal/vgpu/vgpu_test.go).
HOST = b"\x00\x16" + b"460.16".ljust(10, b"\0") + b"r460_00".ljust(10, b"\0")
OTHER = b"\x05\x04ab"


def capability(records: bytes, following: int = 0x68, kind: int = 0x09) -> bytes:
    body = b"VF" + records
    return bytes([kind, following, 3 + len(body)]) + body


def config(at: bytes, *, first: int = CAPABILITIES, listed: bool = True, size: int = 256) -> bytes:
    """A configuration space with these bytes where the capabilities begin."""
    space = bytearray(256)
    space[0x06] = 0x10 if listed else 0
    space[0x34] = first
    space[CAPABILITIES : CAPABILITIES + len(at)] = at
    return bytes(space[:size])


def put(sysfs: Path, pci: str, name: str, content: bytes) -> None:
    folder = sysfs / "bus/pci/devices" / pci
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)


def test_the_class_and_the_vgpu_host_are_told_with_the_card(backend: NvmlBackend, tmp_path: Path) -> None:
    put(tmp_path / "sys", "0000:11:00.0", "class", b"0x030200\n")
    put(tmp_path / "sys", "0000:12:00.0", "config", config(capability(HOST)))

    told = [device.attributes for device in backend.discover()]

    keys = ("pci-class", "vgpu-driver-version", "vgpu-driver-branch")
    assert [{key: it[key] for key in keys if key in it} for it in told[:3]] == [
        {},
        {"pci-class": "0x030200"},
        {"vgpu-driver-version": "460.16", "vgpu-driver-branch": "r460_00"},
    ]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("pci0000:3a/0000:3a:00.0/0000:11:00.0", "pci0000:3a"),
        ("pci10000:e0/10000:e0:06.0/0000:11:00.0", "pci10000:e0"),
        ("virtual/0000:11:00.0", None),
    ],
)
def test_the_root_that_a_card_is_under_is_told_with_it(
    backend: NvmlBackend, tmp_path: Path, path: str, expected: str | None
) -> None:
    """The kernel links each device to its place, bridge by bridge (sysfs-bus-pci)."""
    sysfs = tmp_path / "sys"
    (sysfs / "devices" / path).mkdir(parents=True)
    (sysfs / "bus/pci/devices").mkdir(parents=True)
    (sysfs / "bus/pci/devices/0000:11:00.0").symlink_to(f"../../../devices/{path}")

    assert backend.discover()[1].attributes.get("pcie-root") == expected


@pytest.mark.parametrize(
    "space",
    [
        config(capability(HOST)),
        config(capability(OTHER + HOST)),
        config(bytes([0x05, CAPABILITIES + 4, 0, 0]) + capability(HOST)),
    ],
)
def test_the_host_is_found_behind_other_records_and_capabilities(space: bytes) -> None:
    assert vgpu_host(space) == ("460.16", "r460_00")


@pytest.mark.parametrize(
    "space",
    [
        b"",
        config(capability(HOST), size=64),  # what others than root may read
        config(capability(HOST), listed=False),
        config(capability(HOST), first=0),
        config(capability(HOST, kind=0x05)),
        config(capability(HOST).replace(b"VF", b"VX")),
        config(capability(HOST[:-1])),
        config(capability(OTHER)),
        config(capability(b"\x05\x00" + HOST)),  # a record of length 0, on which NVIDIA's search never ends
        config(bytes([0x05, CAPABILITIES, 0])),  # a list that leads in a circle
        config(bytes([0xFF, 0x40, 0])),
        config(b"", first=0xFF),
        b"\xff" * 256,  # of a card that fell off the bus
    ],
)
def test_a_card_that_is_no_vgpu_has_no_host(space: bytes) -> None:
    assert vgpu_host(space) is None


@given(st.binary(min_size=256, max_size=256))
def test_no_config_space_hangs_or_breaks_the_search(space: bytes) -> None:
    listed = bytearray(space)
    listed[0x06] |= 0x10

    host = vgpu_host(bytes(listed))

    assert host is None or all(len(text) <= 10 for text in host)
