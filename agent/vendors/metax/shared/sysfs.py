"""Facts of MetaX's cards in sysfs: addresses, DRM nodes, and the driver.

The driver's folder is pci:METAX, or pci:metax in other releases (gpustack/runtime).
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from agent.vendors.common.host import read
from agent.vendors.common.pci_sysfs import DEVICES

MODULE = "module/metax"
DRIVERS = ("pci:METAX", "pci:metax")

BDF = re.compile(r"(?P<domain>[0-9a-f]{4,8}):(?P<rest>[0-9a-f]{2}:[01][0-9a-f]\.[0-7])", re.ASCII)
#: The kernel's names of a card's nodes below /dev/dri.
CARD, RENDER = re.compile(r"card([0-9]{1,4})", re.ASCII), re.compile(r"renderD([0-9]{1,4})", re.ASCII)


def bdf(text: str) -> str | None:
    """A PCI address as the kernel writes it: 0000:0e:00.0 for 0000:0E:00.0. None for another text."""
    found = BDF.fullmatch(text.strip().lower())
    return f"{int(found['domain'], 16):04x}:{found['rest']}" if found else None


def driver_loaded(sysfs: Path) -> bool:
    """Whether MetaX's kernel driver is loaded."""
    return (sysfs / MODULE).is_dir()


def driver_version(sysfs: Path) -> str:
    """The version of the loaded driver; empty if it is not readable."""
    return read(sysfs / MODULE / "version", 64)


def cards(sysfs: Path) -> list[str]:
    """The PCI addresses of the driver's devices, sorted. Virtual functions are among them."""
    names: set[str] = set()
    for driver in DRIVERS:
        try:
            names.update(os.listdir(sysfs / MODULE / "drivers" / driver))
        except OSError:
            continue
    return sorted(name for name in names if bdf(name) == name)


def drm(sysfs: Path, pci: str) -> tuple[str, ...]:
    """The names of the card's DRM nodes, sorted: card1 before renderD129."""
    places = [sysfs / MODULE / "drivers" / driver / pci for driver in DRIVERS]
    for place in (*places, sysfs / DEVICES / pci):
        try:
            names = os.listdir(place / "drm")
        except OSError:
            continue
        found = [name for name in names if CARD.fullmatch(name) or RENDER.fullmatch(name)]
        if found:
            return tuple(sorted(found))
    return ()


def number(pattern: re.Pattern[str], names: tuple[str, ...]) -> int | None:
    """The number in the first name that matches the pattern, CARD or RENDER."""
    return next((int(found[1]) for name in names if (found := pattern.fullmatch(name))), None)


def read_only(sysfs: Path) -> bool:
    """Whether sysfs is mounted read-only for this process, as it is in containers by default."""
    try:
        return bool(os.statvfs(sysfs).f_flag & os.ST_RDONLY)
    except OSError:
        return False
