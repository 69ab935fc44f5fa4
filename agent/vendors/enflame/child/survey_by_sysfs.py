"""Reads the cards from sysfs alone, for a node with a loaded driver and without libefml.so."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent.vendor_api.backend import Device
from agent.vendors.common import host, pci_sysfs
from agent.vendors.enflame.shared import constants, device_nodes, sysfs

from . import faults
from .cards import node


def devices(settings: Mapping[str, Any]) -> list[Device]:
    """The cards with all that sysfs tells. If the driver tells no uuid, it is made of the PCI address."""
    sys = host.sysfs(settings)
    return [_device(settings, sys, index, pci) for index, pci in enumerate(sysfs.cards(sys))]


def _device(settings: Mapping[str, Any], sys: Path, index: int, pci: str) -> Device:
    minor, uuid = sysfs.minor(sys, pci, None), sysfs.uuid(sys, pci)
    attributes = {
        constants.PCIE_ROOT: pci_sysfs.root_complex(sys, pci),
        constants.DRIVER_VERSION: sysfs.driver_version(sys),
        constants.CONTROL_NODE: device_nodes.control(settings),
    }
    return Device(
        uuid=constants.UUID + uuid if uuid else f"enflame-{pci}",
        index=index,
        minor=minor,
        pci=pci,
        numa=pci_sysfs.numa_node(sys, pci),
        paths=node(minor),
        attributes={name: text for name, text in attributes.items() if text},
        fault=faults.NO_MINOR if minor is None else faults.NO_LIBRARY,
    )
