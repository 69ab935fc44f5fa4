"""What sysfs tells of a card: its NUMA node, its PCI class, and the host of a vGPU."""

from __future__ import annotations

import os
import re
from pathlib import Path

from agent.vendors.common.host import beginning
from agent.vendors.nvidia import constants

#: Of the path that a card's link leads to: devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0.
ROOT = re.compile(r"(?<=/)pci[0-9a-f]{4,}:[0-9a-f]{2}(?=/)", re.ASCII)

#: Of the configuration space (PCI Local Bus 3.0, 6.1 and 6.7); only root may read more than 64 bytes of it.
CONFIG_SIZE = 256
STATUS, HAS_CAPABILITIES, FIRST_CAPABILITY = 0x06, 0x10, 0x34
VENDOR_SPECIFIC, BROKEN = 0x09, 0xFF
#: In NVIDIA's own capability (k8s-device-plugin v0.20, internal/vgpu): the mark of a vGPU, its first record,
#: and of the record 0 two bytes of header, the version and the branch of the host's driver.
MARK, FIRST_RECORD, VERSION_END, BRANCH_END = slice(3, 5), 5, 12, 22


def numa_node(sysfs: Path, pci: str) -> int | None:
    """The card's NUMA node; the kernel says -1 where it knows none."""
    try:
        node = int(_read(sysfs, pci, "numa_node", 16))
    except ValueError:
        return None
    return node if node >= 0 else None


def attributes(sysfs: Path, pci: str) -> dict[str, str]:
    """The PCI class, the root complex, and of a vGPU the version and the branch of its host's driver."""
    found = {}
    if root := ROOT.search(os.path.realpath(sysfs / "bus/pci/devices" / pci)):
        found[constants.PCIE_ROOT] = root[0]
    if pci_class := _read(sysfs, pci, "class", 16).strip():
        found[constants.PCI_CLASS] = pci_class.decode("ascii", "replace")
    if host := vgpu_host(_read(sysfs, pci, "config", CONFIG_SIZE)):
        found[constants.VGPU_DRIVER_VERSION], found[constants.VGPU_DRIVER_BRANCH] = host
    return found


def vgpu_host(config: bytes) -> tuple[str, str] | None:
    """Version and branch of the driver on the host of a vGPU; None where the card tells of none."""
    records = _vendor_capability(config)
    if records[MARK] != b"VF":
        return None
    at = FIRST_RECORD
    while at + 1 < len(records) and records[at] != 0:
        length = records[at + 1]
        if not length:  # here NVIDIA's own search never ends
            return None
        at += length
    record = records[at : at + BRANCH_END]
    if len(record) < BRANCH_END:
        return None
    return _text(record[2:VERSION_END]), _text(record[VERSION_END:])


def _vendor_capability(config: bytes) -> bytes:
    """The vendor's own capability, empty without one. The list may lead in circles, and out of the space."""
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
    """The beginning of a file of the card, empty where there is none."""
    try:
        return beginning(sysfs / "bus/pci/devices" / pci / name, limit)
    except OSError:
        return b""
