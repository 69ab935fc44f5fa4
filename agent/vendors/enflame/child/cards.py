"""Reads one card through EFML and sysfs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from agent.vendor_api.backend import Device, Fault, Usage
from agent.vendors.common import device_fields, host, pci_sysfs
from agent.vendors.common.library_cards import LibraryCard
from agent.vendors.enflame import constants, sysfs

from . import faults
from .abi import VirtMode
from .library import Efml
from .library_errors import EfmlError
from .values import CardStanding, EfmlIdentity

T = TypeVar("T")

VIRTUAL_FUNCTIONS = (VirtMode.VGCU, VirtMode.MDEV, VirtMode.SRIOV_VF)
Settings = Mapping[str, Any]


class EnflameCard(LibraryCard):
    """A card, and what its fault lets be done with it."""

    __slots__ = ()

    @property
    def reachable(self) -> bool:
        return self.device.fault not in (faults.LOST, faults.RESET_REQUIRED, faults.NO_DRIVER)

    @property
    def sliceable(self) -> bool:
        """Whether slices may lie on it, as far as the library says: efsmi knows the rest."""
        return not self.device.nameless and self.device.fault != faults.VIRTUAL


@dataclass(slots=True)
class EnflameReading:
    """One look at a card. The first error that means something is kept; the rest is read all the same."""

    efml: Efml
    index: int
    fault: Fault | None = None
    standing: CardStanding = field(default=CardStanding.UNKNOWN, init=False)

    def get(self, call: Callable[[int], T], default: T) -> T:
        """The answer of a call about this card; `default` where it has none."""
        try:
            return call(self.index)
        except EfmlError as error:
            self.blame(error)
            return default

    def blame(self, error: EfmlError) -> None:
        if not error.unsupported:
            self.fault = self.fault or faults.reading(error)

    def stand(self) -> Fault | None:
        """What the handle family alone can say. What else it answers is a second word, and not heard."""
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
    """Read a card in full. Without a readable uuid the device's `uuid` is empty."""
    look = EnflameReading(efml, index)
    try:
        its = efml.identity(index)
    except EfmlError as error:
        fault = look.stand() or faults.reading(error)
        return EnflameCard(index, Device("", index, fault=fault, recovery_due=look.recovery_due))
    placed = _placed(look, settings, its)
    wrong = health(look, settings, its.bdf)
    memory = look.get(efml.memory, None)
    device = replace(
        placed,
        memory=memory.total if memory else 0,
        counters=counters(look),
        fault=wrong or placed.fault or look.fault,
        recovery_due=look.recovery_due,
    )
    return EnflameCard(index, device)


def _placed(look: EnflameReading, settings: Settings, its: EfmlIdentity) -> Device:
    """What the card is called, and where it is."""
    efml, sys = look.efml, host.sysfs(settings)
    minor = sysfs.minor(sys, its.bdf, its.logic_id)
    numa = look.get(efml.numa_node, None)
    return Device(
        uuid=_uuid(look, sys, its.bdf),
        index=its.index,
        minor=minor,
        pci=its.bdf,
        numa=pci_sysfs.numa_node(sys, its.bdf) if numa is None else numa,
        model=its.name,
        paths=node(minor),
        attributes=_attributes(look, sys, its.bdf),
        fault=_misplaced(look, sys, its.bdf, minor),
    )


def node(minor: int | None) -> tuple[str, ...]:
    return () if minor is None else (f"/dev/gcu{minor}",)


def _uuid(look: EnflameReading, sys: Path, pci: str) -> str:
    """As Enflame's exporter writes it. Builds without the index family do not tell it, the driver does."""
    told = sysfs.known_uuid(look.get(look.efml.uuid, "")) or sysfs.uuid(sys, pci)
    return constants.UUID + told if told else ""


def _misplaced(look: EnflameReading, sys: Path, pci: str, minor: int | None) -> Fault | None:
    if look.get(look.efml.virt_mode, 0) in VIRTUAL_FUNCTIONS:
        return faults.VIRTUAL
    if functions := sysfs.functions(sys, pci):
        return faults.split(functions)
    return faults.NO_MINOR if minor is None else None


def _attributes(look: EnflameReading, sys: Path, pci: str) -> dict[str, str]:
    found = {
        constants.PCIE_ROOT: pci_sysfs.root_complex(sys, pci),
        constants.SERIAL: look.get(look.efml.serial, ""),
        constants.PRODUCT: look.get(look.efml.sku, ""),
        constants.ARCH: look.get(look.efml.arch, ""),
    }
    return {name: text for name, text in found.items() if text}


def health(look: EnflameReading, settings: Settings, pci: str | None) -> Fault | None:
    """What library and bus say of the card now; what could not be read is the look's own fault."""
    efml = look.efml
    if pci and not sysfs.here(host.sysfs(settings), pci):
        return faults.LOST
    if wrong := look.stand():
        return wrong
    rma = look.get(efml.rma, None)
    if rma and rma.flagged:
        return faults.RMA
    well = look.get(efml.healthy, None)
    if well is False:
        return faults.UNHEALTHY
    link = look.get(efml.link, None)
    if link and (narrow := faults.narrow(link)):
        return narrow
    if well is None and look.standing is CardStanding.UNKNOWN and look.fault is None:
        return faults.UNMONITORED
    return None


def counters(look: EnflameReading) -> dict[str, int]:
    """The errors that a card does not survive; what is not counted is absent."""
    ecc = look.get(look.efml.ecc, None)
    if ecc is not None:
        return {"dbe": ecc.double_bit}
    rma = look.get(look.efml.rma, None)
    return {} if rma is None or rma.double_bit is None else {"rma-dbe": rma.double_bit}


def completed(look: EnflameCard, before: EnflameCard) -> EnflameCard:
    """Fill what a sick card no longer tells from what the card told before."""
    if look.device.fault is None:
        return look
    return replace(look, device=device_fields.completed(look.device, before.device))


def usage(efml: Efml, card: EnflameCard) -> Usage | None:
    """What runs on a card; None where that cannot be read."""
    look = EnflameReading(efml, card.index)
    memory = look.get(efml.memory, None)
    if memory is None:
        return None
    percent = look.get(efml.utilization, None)
    used = min(memory.used, card.device.memory or memory.total)
    return Usage(card.uuid, used, None if percent is None else min(max(percent, 0.0), 100.0) / 100)
