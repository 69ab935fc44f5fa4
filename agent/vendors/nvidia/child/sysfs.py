"""Facts of a card in sysfs: its NUMA node, its PCI class, and the driver of a vGPU's host."""

from __future__ import annotations

import os
import re
from pathlib import Path

from agent.vendors.common.host import beginning
from agent.vendors.nvidia.shared import constants

#: The root complex in the target of a card's link, devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0.
ROOT = re.compile(r"(?<=/)pci[0-9a-f]{4,}:[0-9a-f]{2}(?=/)", re.ASCII)

#: Places and values in the configuration space (PCI Local Bus 3.0, 6.1 and 6.7). Only root can read more than
#: its first 64 bytes.
CONFIG_SIZE = 256
STATUS, HAS_CAPABILITIES, FIRST_CAPABILITY = 0x06, 0x10, 0x34
VENDOR_SPECIFIC, BROKEN = 0x09, 0xFF
#: Places in NVIDIA's own capability (k8s-device-plugin v0.20, internal/vgpu): the mark of a vGPU, the first
#: record, and in record 0 the ends of version and branch of the host's driver, after two bytes of header.
MARK, FIRST_RECORD, VERSION_END, BRANCH_END = slice(3, 5), 5, 12, 22


def numa_node(sysfs: Path, pci: str) -> int | None:
    """The card's NUMA node; None where the kernel knows none, for which sysfs has -1."""
    try:
        node = int(_read(sysfs, pci, "numa_node", 16))
    except ValueError:
        return None
    return node if node >= 0 else None


def attributes(sysfs: Path, pci: str) -> dict[str, str]:
    """PCI class, root complex, and for a vGPU version and branch of the host's driver."""
    found = {}
    if root := ROOT.search(os.path.realpath(sysfs / "bus/pci/devices" / pci)):
        found[constants.PCIE_ROOT] = root[0]
    if pci_class := _read(sysfs, pci, "class", 16).strip():
        found[constants.PCI_CLASS] = pci_class.decode("ascii", "replace")
    if host := vgpu_host(_read(sysfs, pci, "config", CONFIG_SIZE)):
        found[constants.VGPU_DRIVER_VERSION], found[constants.VGPU_DRIVER_BRANCH] = host
    return found


def vgpu_host(config: bytes) -> tuple[str, str] | None:
    """Version and branch of the host's driver for a vGPU; None for any other card."""
    records = _vendor_capability(config)
    if records[MARK] != b"VF":
        return None
    at = FIRST_RECORD
    while at + 1 < len(records) and records[at] != 0:
        length = records[at + 1]
        if not length:  # NVIDIA's own search never ends at such a record
            return None
        at += length
    record = records[at : at + BRANCH_END]
    if len(record) < BRANCH_END:
        return None
    return _text(record[2:VERSION_END]), _text(record[VERSION_END:])


def _vendor_capability(config: bytes) -> bytes:
    """The vendor's own capability, or empty.

    The list of capabilities of a broken card can have circles, and can lead out of the configuration space.
    """
    if len(config) < CONFIG_SIZE or not config[STATUS] & HAS_CAPABILITIES:
        return b""
    at, seen = config[FIRST_CAPABILITY], set[int]()
    while at and at not in seen:
        seen.add(at)
        kind, following, length = config[at : at + 3].ljust(3, b"\0")
        if kind == BROKEN:
            break
        if kind == VENDOR_SPECIFIC:
            return config[at : at + length]
        at = following
    return b""


def _text(raw: bytes) -> str:
    return raw.strip(b"\0").decode("ascii", "replace")


def _read(sysfs: Path, pci: str, name: str, limit: int) -> bytes:
    """The first `limit` bytes of a file of the card. Empty if the file cannot be read."""
    try:
        return beginning(sysfs / "bus/pci/devices" / pci / name, limit)
    except OSError:
        return b""
