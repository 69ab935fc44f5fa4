"""Facts of Enflame's cards in sysfs: addresses, minor numbers, heartbeats of the firmware, and the driver.

Source: Enflame's binding (go-eflib) reads the same files below a card. The driver makes them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.vendors.common.host import number, read
from agent.vendors.common.pci_sysfs import DEVICES

#: PCI's vendor ids of Enflame, as in its labels of nodes, and of a customer that sells its cards.
VENDORS = ("0x1e36", "0x1ea0")
#: PCI's classes of a processing accelerator, and of a 3D controller, which some cards have.
CLASSES = ("0x1200", "0x0302")
#: The name of the kernel module and of the cards' folder, at Enflame and at a customer that sells its cards.
NAMES = ("enflame", "zixiao")

BDF = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]", re.ASCII)
_CARD = re.compile(r"gcu([0-9]{1,5})", re.ASCII)
_DEV = re.compile(r"[0-9]{1,5}:([0-9]{1,7})", re.ASCII)
_UUID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.-]{0,99}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Beat:
    """The heartbeat of a card's firmware: its count, and whether the firmware sleeps and need not count."""

    count: int
    asleep: bool


def driver_loaded(sysfs: Path) -> bool:
    """Whether Enflame's kernel driver is loaded, under any of its names."""
    return any((sysfs / "module" / name).is_dir() for name in NAMES)


def driver_version(sysfs: Path) -> str:
    """The version of the loaded driver; empty if it is not readable."""
    return next(filter(None, (read(sysfs / "module" / name / "version", 64) for name in NAMES)), "")


def cards(sysfs: Path) -> list[str]:
    """The PCI addresses of all cards, sorted, without virtual functions of these cards."""
    try:
        names = os.listdir(sysfs / DEVICES)
    except OSError:
        return []
    found = (name for name in names if BDF.fullmatch(name) and _is_card(sysfs / DEVICES / name))
    return sorted(found)


def _is_card(device: Path) -> bool:
    is_enflame = read(device / "vendor", 16) in VENDORS and read(device / "class", 16).startswith(CLASSES)
    return is_enflame and not (device / "physfn").exists()


def here(sysfs: Path, pci: str) -> bool:
    """Whether the card is on the PCI bus. Also true if this process does not see the bus."""
    return (sysfs / DEVICES / pci).exists() or not (sysfs / DEVICES).is_dir()


def of_a_card(sysfs: Path, pci: str) -> bool:
    """Whether this is a virtual function of a card that this node has, too."""
    return (sysfs / DEVICES / pci / "physfn").exists()


def functions(sysfs: Path, pci: str) -> int:
    """The number of virtual functions that the card is split into."""
    return number(read(sysfs / DEVICES / pci / "sriov_numvfs", 16)) or 0


def minor(sysfs: Path, pci: str, logic: int | None) -> int | None:
    """N of /dev/gcuN. `logic` is the library's logic id; None: use the card's entry if there is only one."""
    entries = [it for name in NAMES for it in _entries(sysfs / DEVICES / pci / name)]
    if logic is not None:
        entries = [(number, device) for number, device in entries if number == logic]
    if len(entries) != 1:
        return None
    found = _DEV.fullmatch(read(entries[0][1] / "dev", 32))
    return int(found[1]) if found else None


def _entries(folder: Path) -> Sequence[tuple[int, Path]]:
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return ()
    return [(int(found[1]), folder / name) for name in names if (found := _CARD.fullmatch(name))]


def uuid(sysfs: Path, pci: str) -> str:
    """The card's uuid from the driver, in the library's form; empty if the driver does not tell it."""
    return known_uuid(read(sysfs / DEVICES / pci / "ssm/chipid", 128))


def known_uuid(text: str) -> str:
    """The text if it is a valid uuid of a card, else empty."""
    return text if _UUID.fullmatch(text) else ""


def beat(sysfs: Path, pci: str) -> Beat | None:
    """The heartbeat of a card; None if the driver has none. Only status 0 means awake, as in go-eflib."""
    folder = sysfs / DEVICES / pci / "ssm"
    count, status = number(read(folder / "count", 32)), number(read(folder / "status", 32))
    return None if count is None else Beat(count, asleep=status != 0)
