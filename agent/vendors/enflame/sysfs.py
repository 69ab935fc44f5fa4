"""What sysfs tells of Enflame's cards: where they are, their minor numbers, their firmware, and the driver.

The files below a card are those that Enflame's binding reads (go-eflib): the driver adds them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.vendors.common.host import number, read
from agent.vendors.common.pci_sysfs import DEVICES

#: PCI's numbers of Enflame, as its labels of nodes have it, and of a customer that sells its cards.
VENDORS = ("0x1e36", "0x1ea0")
#: Of a processing accelerator, and of a 3D controller, which is what some cards say that they are.
CLASSES = ("0x1200", "0x0302")
#: What the module and the folder of its cards are called, by Enflame and by a customer that sells its cards.
NAMES = ("enflame", "zixiao")

BDF = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]", re.ASCII)
_CARD = re.compile(r"gcu([0-9]{1,5})", re.ASCII)
_DEV = re.compile(r"[0-9]{1,5}:([0-9]{1,7})", re.ASCII)
_UUID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.-]{0,99}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Beat:
    """What the card's firmware last counted, and whether it sleeps, when it need not count."""

    count: int
    asleep: bool


def driver_loaded(sysfs: Path) -> bool:
    return any((sysfs / "module" / name).is_dir() for name in NAMES)


def driver_version(sysfs: Path) -> str:
    """The version of the loaded driver, empty where it tells none."""
    return next(filter(None, (read(sysfs / "module" / name / "version", 64) for name in NAMES)), "")


def cards(sysfs: Path) -> list[str]:
    """The PCI addresses of all cards in their order, without virtual functions of cards that are here."""
    try:
        names = os.listdir(sysfs / DEVICES)
    except OSError:
        return []
    found = (name for name in names if BDF.fullmatch(name) and _is_card(sysfs / DEVICES / name))
    return sorted(found)


def _is_card(device: Path) -> bool:
    ours = read(device / "vendor", 16) in VENDORS and read(device / "class", 16).startswith(CLASSES)
    return ours and not (device / "physfn").exists()


def here(sysfs: Path, pci: str) -> bool:
    """Whether the card is on the bus; where nobody sees the bus it is taken to be."""
    return (sysfs / DEVICES / pci).exists() or not (sysfs / DEVICES).is_dir()


def of_a_card(sysfs: Path, pci: str) -> bool:
    """Whether this is a virtual function of a card that is here, too."""
    return (sysfs / DEVICES / pci / "physfn").exists()


def functions(sysfs: Path, pci: str) -> int:
    """How many virtual functions the card is split into."""
    return number(read(sysfs / DEVICES / pci / "sriov_numvfs", 16)) or 0


def minor(sysfs: Path, pci: str, logic: int | None) -> int | None:
    """N of /dev/gcuN. `logic` is what the library calls the card; unknown, a card's only entry is it."""
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
    """The card's uuid as the driver tells it, in the library's writing; empty where it tells none."""
    return known_uuid(read(sysfs / DEVICES / pci / "ssm/chipid", 128))


def known_uuid(text: str) -> str:
    """The text if it can be a card's uuid, else none."""
    return text if _UUID.fullmatch(text) else ""


def beat(sysfs: Path, pci: str) -> Beat | None:
    """None where the driver does not tell. Enflame's binding takes a status of 0, and no other, for awake."""
    folder = sysfs / DEVICES / pci / "ssm"
    count, status = number(read(folder / "count", 32)), number(read(folder / "status", 32))
    return None if count is None else Beat(count, asleep=status != 0)
