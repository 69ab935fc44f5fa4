"""Whether a vendor is on this node, from files alone: no process is started and no library loaded."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import structlog

from agent.isolation import library_loader
from agent.vendor_api.agent import LIBRARY_NOT_FOUND, Signs, Vendor
from agent.vendor_api.text import shorten

log = structlog.get_logger()

MAX_SEARCHED_CHARACTERS = 400  # characters of the list of what was searched


def absence(vendor: Vendor) -> str:
    """Why the vendor is not on this node, as its process would word it; empty if it is.

    In doubt the vendor is there: a needless start costs a process, a missing one the cards.
    """
    if vendor.host.signs is None:
        return ""
    try:
        return _looked_for(vendor, vendor.host.signs)
    except Exception as exc:  # of the vendor's code, or an unreadable sysfs
        log.warning("signs of the vendor not seen", vendor=vendor.name, reason=repr(exc))
        return ""


def _looked_for(vendor: Vendor, signs: Signs) -> str:
    if any(map(os.path.lexists, signs.driver)):
        return ""
    libraries = tuple(vendor.host.libraries() if vendor.host.libraries else ())
    if _may_load_any(libraries) or on_the_bus(signs):
        return ""
    cards = (f"a PCI device of {' or '.join(signs.pci)}",) if signs.pci else ()
    return _words(vendor.name, (*signs.driver, *cards, *libraries))


def on_the_bus(signs: Signs) -> bool:
    """Whether a PCI device of the vendor is here, with or without a driver."""
    return not frozenset(signs.pci).isdisjoint(_makers(signs.sysfs))


def _may_load_any(libraries: Collection[str]) -> bool:
    paths = [it for it in libraries if "/" in it]
    names = [it for it in libraries if "/" not in it]
    return any(map(os.path.lexists, paths)) or library_loader.may_find(names)


def _makers(sysfs: str) -> Iterator[str]:
    """The vendor IDs of the devices on the PCI bus, such as 0x10de."""
    bus = Path(sysfs, "bus/pci/devices")
    for name in os.listdir(bus) if bus.exists() else ():
        with suppress(FileNotFoundError):  # the device is gone meanwhile
            yield (bus / name / "vendor").read_text().strip()


def _words(vendor: str, looked_for: Iterable[str]) -> str:
    return (
        f"{LIBRARY_NOT_FOUND}: here is none of {shorten(', '.join(looked_for), MAX_SEARCHED_CHARACTERS)}; "
        f"install the driver of {vendor}, or let vendors.{vendor}.library name its library"
    )
