"""Reads one card, or one virtual function, through MXSML and sysfs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from agent.vendor_api.backend import Device, Fault
from agent.vendors.common import device_fields, host, pci_sysfs
from agent.vendors.common.library_cards import LibraryCard
from agent.vendors.metax.shared import constants, sysfs

from . import device_nodes, faults
from .abi import FIRST_PF, PciEventType, VirtMode
from .library import Mxsml, MxsmlError
from .values import MxsmlIdentity

T = TypeVar("T")

KIB = 1024
MODES = {VirtMode.NONE: constants.NONE, VirtMode.PF: constants.PF, VirtMode.VF: constants.VF}
Settings = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class MetaxCard(LibraryCard):
    """A card or a virtual function of MXSML's list, with what its fault still allows."""

    dies: int = 1
    #: The last state of the registers while healthy. MetaX has not published what its numbers mean.
    mmio: int | None = None

    @property
    def bdf(self) -> str:
        """The PCI address of the device itself, also of a virtual function; empty if it is not known."""
        return self.device.attributes.get(constants.VF_PCI) or self.device.pci or ""

    @property
    def limited(self) -> bool:
        return self.device.fault == faults.LIMITED

    @property
    def sliceable(self) -> bool:
        """Whether slices may be made on the card, as far as the card's own fault allows."""
        return self.may_be_sliced and not self.limited and not self.device.nameless

    @property
    def may_be_sliced(self) -> bool:
        """Whether the card may have slices, of an earlier time as well, when it had no fault."""
        return self.reachable and self.device.parent is None

    @property
    def reachable(self) -> bool:
        return self.device.fault != faults.GONE


class MetaxReading:
    """One reading of a card by several calls. The first real error becomes the fault; the calls go on."""

    def __init__(self, mxsml: Mxsml, index: int, dies: int = 1) -> None:
        self.mxsml, self.index, self.dies = mxsml, index, dies
        self.fault: Fault | None = None
        self.absent = False

    def get(self, call: Callable[..., T], *arguments: Any, default: T) -> T:
        """The result of a call about this card, or `default` if the call fails."""
        try:
            return call(self.index, *arguments)
        except MxsmlError as error:
            self.keep(error)
            return default

    def each(self, call: Callable[..., T]) -> list[T]:
        """The results of a call about the card, or about each of its dies if it has several."""
        found: list[T] = []
        for die in self.parts():
            try:
                found.append(call(self.index) if die is None else call(self.index, die))
            except MxsmlError as error:
                self.keep(error)
        return found

    def parts(self) -> Iterable[int | None]:
        """The numbers of the dies; None for a card with one die."""
        return range(self.dies) if self.dies > 1 else (None,)

    def keep(self, error: MxsmlError) -> None:
        """Keep the fault of the first error that is no lack of support."""
        self.absent |= error.gone
        if not error.unsupported:
            self.fault = self.fault or faults.reading(error)


def read(mxsml: Mxsml, settings: Settings, index: int, known: MetaxCard | None) -> MetaxCard:
    """Read a card completely. `known` is the same card at the last reading.

    If the uuid is not readable, the device has an empty `uuid`.
    """
    reading = MetaxReading(mxsml, index)
    try:
        identity = mxsml.identity(index)
    except MxsmlError as error:
        return MetaxCard(index, Device("", index, fault=faults.reading(error)))
    reading.dies = max(1, reading.get(mxsml.die_count, default=1))
    mmio = reading.get(mxsml.mmio_state, default=None)
    wrong = health(reading)
    if known is not None and None not in (mmio, known.mmio) and mmio != known.mmio:
        wrong, mmio = wrong or faults.MMIO, known.mmio
    memory = sum(it.total for it in reading.each(mxsml.memory)) * KIB
    counted = counters(reading)
    device = replace(
        placed(settings, identity),
        memory=memory,
        attributes=_attributes(settings, identity, reading.dies),
        counters=counted,
        fault=faults.GONE if reading.absent else wrong or reading.fault,
    )
    return MetaxCard(index, device, reading.dies, None if device.fault else mmio)


def placed(settings: Settings, identity: MxsmlIdentity) -> Device:
    """The device with the fields that name it and say where it is."""
    root, pci = host.sysfs(settings), sysfs.bdf(identity.bdf)
    return Device(
        uuid=identity.uuid,
        index=identity.index,
        minor=identity.index - FIRST_PF if identity.index >= FIRST_PF else identity.index,
        pci=pci,
        numa=pci_sysfs.numa_node(root, pci) if pci else None,
        model=identity.name,
        paths=device_nodes.of_card(settings, pci) if pci else (),
    )


def _attributes(settings: Settings, identity: MxsmlIdentity, dies: int) -> dict[str, str]:
    root, pci = host.sysfs(settings), sysfs.bdf(identity.bdf)
    found = {
        constants.PCIE_ROOT: pci_sysfs.root_complex(root, pci) if pci else "",
        constants.VIRTUALISATION: MODES.get(VirtMode(identity.mode), "") if identity.mode in MODES else "",
        constants.DIES: str(dies) if dies > 1 else "",
    }
    return {name: text for name, text in found.items() if text}


def health(reading: MetaxReading) -> Fault | None:
    """The fault that the driver shows now: the card, or one of its dies, is not available."""
    mxsml = reading.mxsml
    available = reading.get(mxsml.state, default=None)
    wrong_parts = [_die(reading, die) for die in reading.parts()]
    if wrong := next(filter(None, wrong_parts), None):
        return wrong
    if available is False:
        return faults.NOT_AVAILABLE
    return faults.UNMONITORED if available is None and not reading.fault else None


def _die(reading: MetaxReading, die: int | None) -> Fault | None:
    try:
        return faults.unavailable(reading.mxsml.unavailable(reading.index, die), die)
    except MxsmlError as error:
        reading.keep(error)
        return None


def counters(reading: MetaxReading) -> dict[str, int]:
    """Counters, since the driver was loaded, of the errors that make a card unhealthy.

    A counter that is not readable is absent.
    """
    mxsml, found = reading.mxsml, {}
    errors = reading.each(mxsml.ecc)
    if len(errors) == len(list(reading.parts())):
        found["dram-ue"] = sum(it.dram_uncorrected for it in errors)
        found["sram-ue"] = sum(it.sram_uncorrected for it in errors)
    for name, kind in (("dbe", PciEventType.DBE), ("aer-ue", PciEventType.AER_UE)):
        events = reading.get(mxsml.pci_events, kind, default=None)
        if events is not None:
            found[name] = sum(max(0, it.count) for it in events)
    return found


def completed(reading: MetaxCard, before: MetaxCard) -> MetaxCard:
    """Fill the gaps of a card from the same card of the survey before: all gaps if the card has a fault."""
    if reading.device.fault is None:
        return replace(reading, mmio=before.mmio if reading.mmio is None else reading.mmio)
    device = device_fields.completed(reading.device, before.device)
    return replace(reading, device=device, dies=max(reading.dies, before.dies), mmio=before.mmio)
