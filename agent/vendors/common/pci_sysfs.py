"""Facts of a PCI device in sysfs that are the same for every vendor."""

from __future__ import annotations

import os
import re
from pathlib import Path

from .host import number, read

DEVICES = "bus/pci/devices"
#: The root complex in the target of a card's link, devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0.
ROOT = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}", re.ASCII)


def numa_node(sysfs: Path, pci: str) -> int | None:
    """The card's NUMA node; None where the kernel knows none, for which sysfs has -1."""
    return number(read(sysfs / DEVICES / pci / "numa_node", 16))


def path(sysfs: Path, pci: str) -> tuple[str, ...]:
    """The path from the root complex to the card: pci0000:3a, bridges, its own address. Empty if unknown."""
    parts = os.path.realpath(sysfs / DEVICES / pci).split("/")
    root = next((at for at, part in enumerate(parts) if ROOT.fullmatch(part)), None)
    return () if root is None else tuple(parts[root:])


def root_complex(sysfs: Path, pci: str) -> str:
    """The root complex above the card, such as pci0000:3a; empty if sysfs does not tell it."""
    return next(iter(path(sysfs, pci)), "")
