"""Reads one card through EFML and sysfs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from agent.vendor_api.backend import Device, Fault
from agent.vendors.common import device_fields, host, pci_sysfs
from agent.vendors.common.library_cards import LibraryCard
from agent.vendors.enflame.shared import constants, sysfs

from . import faults
from .abi import VirtMode
from .library import Efml
from .library_errors import EfmlError
from .values import CardStanding, EfmlIdentity

T = TypeVar("T")

VIRTUAL_FUNCTIONS = (VirtMode.VGCU, VirtMode.MDEV, VirtMode.SRIOV_VF)
Settings = Mapping[str, Any]


class EnflameCard(LibraryCard):
    """A card of EFML's list, with what its fault still allows."""

    __slots__ = ()

    @property
    def reachable(self) -> bool:
        return self.device.fault not in (faults.LOST, faults.RESET_REQUIRED, faults.NO_DRIVER)

    @property
    def sliceable(self) -> bool:
        """Whether the card may have slices, as far as EFML tells. The rest is known to efsmi."""
        return not self.device.nameless and self.device.fault != faults.VIRTUAL


@dataclass(slots=True)
class EnflameReading:
    """One reading of a card by several calls. The first real error becomes the fault; the calls go on."""

    efml: Efml
    index: int
    fault: Fault | None = None
    standing: CardStanding = field(default=CardStanding.UNKNOWN, init=False)

    def get(self, call: Callable[[int], T], default: T) -> T:
        """The result of a call about this card, or `default` if the call fails."""
        try:
            return call(self.index)
        except EfmlError as error:
            self.keep(error)
            return default

    def keep(self, error: EfmlError) -> None:
        """Keep the fault of the first error that is no lack of support."""
        if not error.unsupported:
            self.fault = self.fault or faults.reading(error)

    def read_standing(self) -> Fault | None:
        """Read what only the handle family tells: lost, or in need of a reset. Other errors are ignored."""
        try:
            self.standing = self.efml.standing(self.index)
        except EfmlError:
            self.standing = CardStanding.UNKNOWN
        return {CardStanding.LOST: faults.LOST, CardStanding.RESET_REQUIRED: faults.RESET_REQUIRED}.get(
            self.standing
        )

    @property
    def recovery_due(self) -> bool | None:
        return {CardStanding.HERE: False, CardStanding.RESET_REQUIRED: True}.get(self.standing)


def read(efml: Efml, settings: Settings, index: int) -> EnflameCard:
    """Read a card completely. If the uuid is not readable, the device has an empty `uuid`."""
    reading = EnflameReading(efml, index)
    try:
        identity = efml.identity(index)
    except EfmlError as error:
        fault = reading.read_standing() or faults.reading(error)
        return EnflameCard(index, Device("", index, fault=fault, recovery_due=reading.recovery_due))
    placed = _placed(reading, settings, identity)
    wrong = health(reading, settings, identity.bdf)
    memory = reading.get(efml.memory, None)
    device = replace(
        placed,
        memory=memory.total if memory else 0,
        counters=counters(reading),
        fault=wrong or placed.fault or reading.fault,
        recovery_due=reading.recovery_due,
    )
    return EnflameCard(index, device)


def _placed(reading: EnflameReading, settings: Settings, identity: EfmlIdentity) -> Device:
    """The device with the fields that name it and say where it is."""
    efml, sys = reading.efml, host.sysfs(settings)
    minor = sysfs.minor(sys, identity.bdf, identity.logic_id)
    numa = reading.get(efml.numa_node, None)
    return Device(
        uuid=_uuid(reading, sys, identity.bdf),
        index=identity.index,
        minor=minor,
        pci=identity.bdf,
        numa=pci_sysfs.numa_node(sys, identity.bdf) if numa is None else numa,
        model=identity.name,
        paths=node(minor),
        attributes=_attributes(reading, sys, identity.bdf),
        fault=_misplaced(reading, sys, identity.bdf, minor),
    )


def node(minor: int | None) -> tuple[str, ...]:
    """The path of the card's device node; none if the minor number is unknown."""
    return () if minor is None else (f"/dev/gcu{minor}",)


def _uuid(reading: EnflameReading, sys: Path, pci: str) -> str:
    """The uuid as Enflame's exporter writes it, or empty. Without the index family sysfs is the source."""
    uuid = sysfs.known_uuid(reading.get(reading.efml.uuid, "")) or sysfs.uuid(sys, pci)
    return constants.UUID + uuid if uuid else ""


def _misplaced(reading: EnflameReading, sys: Path, pci: str, minor: int | None) -> Fault | None:
    if reading.get(reading.efml.virt_mode, 0) in VIRTUAL_FUNCTIONS:
        return faults.VIRTUAL
    if functions := sysfs.functions(sys, pci):
        return faults.split(functions)
    return faults.NO_MINOR if minor is None else None


def _attributes(reading: EnflameReading, sys: Path, pci: str) -> dict[str, str]:
    found = {
        constants.PCIE_ROOT: pci_sysfs.root_complex(sys, pci),
        constants.SERIAL: reading.get(reading.efml.serial, ""),
        constants.PRODUCT: reading.get(reading.efml.sku, ""),
        constants.ARCH: reading.get(reading.efml.arch, ""),
    }
    return {name: text for name, text in found.items() if text}


def health(reading: EnflameReading, settings: Settings, pci: str | None) -> Fault | None:
    """The fault that the library and the PCI bus show now. A failed call becomes the fault of `reading`."""
    efml = reading.efml
    if pci and not sysfs.here(host.sysfs(settings), pci):
        return faults.LOST
    if wrong := reading.read_standing():
        return wrong
    rma = reading.get(efml.rma, None)
    if rma and rma.flagged:
        return faults.RMA
    well = reading.get(efml.healthy, None)
    if well is False:
        return faults.UNHEALTHY
    link = reading.get(efml.link, None)
    if link and (narrow := faults.narrow(link)):
        return narrow
    if well is None and reading.standing is CardStanding.UNKNOWN and reading.fault is None:
        return faults.UNMONITORED
    return None


def counters(reading: EnflameReading) -> dict[str, int]:
    """Counters of the errors that make a card unhealthy. A counter that is not readable is absent."""
    ecc = reading.get(reading.efml.ecc, None)
    if ecc is not None:
        return {"dbe": ecc.double_bit}
    rma = reading.get(reading.efml.rma, None)
    return {} if rma is None or rma.double_bit is None else {"rma-dbe": rma.double_bit}


def completed(reading: EnflameCard, before: EnflameCard) -> EnflameCard:
    """Fill the gaps of a faulty card from the same card of the survey before."""
    if reading.device.fault is None:
        return reading
    return replace(reading, device=device_fields.completed(reading.device, before.device))
