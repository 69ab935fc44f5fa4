"""What sysfs tells of MetaX's cards: where they are, their NUMA nodes and DRM nodes, and the driver.

The driver's folder is called pci:METAX or, of other releases, pci:metax (gpustack/runtime).
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
#: How the kernel names a card's nodes below /dev/dri.
CARD, RENDER = re.compile(r"card([0-9]{1,4})", re.ASCII), re.compile(r"renderD([0-9]{1,4})", re.ASCII)


def bdf(text: str) -> str | None:
    """The kernel's spelling of a PCI address: 0000:0E:00.0 is 0000:0e:00.0; None where it is none."""
    found = BDF.fullmatch(text.strip().lower())
    return f"{int(found['domain'], 16):04x}:{found['rest']}" if found else None


def driver_loaded(sysfs: Path) -> bool:
    return (sysfs / MODULE).is_dir()


def driver_version(sysfs: Path) -> str:
    """The version of the loaded driver, empty where it tells none."""
    return read(sysfs / MODULE / "version", 64)


def cards(sysfs: Path) -> list[str]:
    """The PCI addresses of the driver's devices, virtual functions among them, in their order."""
    names: set[str] = set()
    for driver in DRIVERS:
        try:
            names.update(os.listdir(sysfs / MODULE / "drivers" / driver))
        except OSError:
            continue
    return sorted(name for name in names if bdf(name) == name)


def drm(sysfs: Path, pci: str) -> tuple[str, ...]:
    """The names of the card's DRM nodes, card1 before renderD129; none where it has none."""
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
    """The number of the first name that is of this kind."""
    return next((int(found[1]) for name in names if (found := pattern.fullmatch(name))), None)


def read_only(sysfs: Path) -> bool:
    """Whether this process sees it mounted read-only, as containers do unless told otherwise."""
    try:
        return bool(os.statvfs(sysfs).f_flag & os.ST_RDONLY)
    except OSError:
        return False
