"""Reads the cards from sysfs alone, for a node with a loaded driver and without libmxsml.so."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent.vendor_api.backend import Device
from agent.vendors.common import host, pci_sysfs
from agent.vendors.metax.shared import constants, sysfs

from . import device_nodes, faults


def devices(settings: Mapping[str, Any]) -> list[Device]:
    """The cards with all that sysfs tells. sysfs has no uuid, so it is made of the PCI address."""
    root = host.sysfs(settings)
    return [_device(settings, root, index, pci) for index, pci in enumerate(sysfs.cards(root))]


def _device(settings: Mapping[str, Any], root: Path, index: int, pci: str) -> Device:
    pcie = pci_sysfs.root_complex(root, pci)
    return Device(
        uuid=f"metax-{pci}",
        index=index,
        minor=index,
        pci=pci,
        numa=pci_sysfs.numa_node(root, pci),
        paths=device_nodes.of_card(settings, pci),
        attributes={constants.PCIE_ROOT: pcie} if pcie else {},
        fault=faults.NO_LIBRARY,
    )
