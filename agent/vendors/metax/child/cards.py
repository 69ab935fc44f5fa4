"""Reads one card, or one virtual function, through MXSML."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from agent.vendor_api.backend import Device, Fault, Usage
from agent.vendors.common import device_fields, host, pci_sysfs
from agent.vendors.common.library_cards import LibraryCard
from agent.vendors.metax import constants, sysfs

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
    """A card or a virtual function, and what its fault lets be done with it."""

    dies: int = 1
    #: What the registers' state was; MetaX has not published what its numbers mean.
    mmio: int | None = None

    @property
    def limited(self) -> bool:
        return self.device.fault == faults.LIMITED

    @property
    def sliceable(self) -> bool:
        """Whether slices may be made on it, as far as its place among the others says."""
        return self.may_be_sliced and not self.limited and not self.device.nameless

    @property
    def may_be_sliced(self) -> bool:
        """Whether slices may lie on it: also of when it was well, or told its name."""
        return self.reachable and self.device.parent is None

    @property
    def reachable(self) -> bool:
        return self.device.fault != faults.GONE


class MetaxReading:
    """One look at a card. The first error that means something is kept; the rest is read all the same."""

    def __init__(self, mxsml: Mxsml, index: int, dies: int = 1) -> None:
        self.mxsml, self.index, self.dies = mxsml, index, dies
        self.fault: Fault | None = None
        self.absent = False

    def get(self, call: Callable[..., T], *arguments: Any, default: T) -> T:
        """The answer of a call about this card; `default` where it has none."""
        try:
            return call(self.index, *arguments)
        except MxsmlError as error:
            self.blame(error)
            return default

    def each(self, call: Callable[..., T]) -> list[T]:
        """The answers of the card, or of each of its dies where it has several."""
        found: list[T] = []
        for die in self.parts():
            try:
                found.append(call(self.index) if die is None else call(self.index, die))
            except MxsmlError as error:
                self.blame(error)
        return found

    def parts(self) -> Iterable[int | None]:
        return range(self.dies) if self.dies > 1 else (None,)

    def blame(self, error: MxsmlError) -> None:
        self.absent |= error.gone
        if error.code not in faults.UNASKED:
            self.fault = self.fault or faults.reading(error)


def read(mxsml: Mxsml, settings: Settings, index: int, known: MetaxCard | None) -> MetaxCard:
    """Read a card in full. Without a readable uuid the device's `uuid` is empty."""
    look = MetaxReading(mxsml, index)
    try:
        its = mxsml.identity(index)
    except MxsmlError as error:
        return MetaxCard(index, Device("", index, fault=faults.reading(error)))
    look.dies = max(1, look.get(mxsml.die_count, default=1))
    mmio = look.get(mxsml.mmio_state, default=None)
    wrong = health(look)
    if known is not None and None not in (mmio, known.mmio) and mmio != known.mmio:
        wrong, mmio = wrong or faults.MMIO, known.mmio
    memory = sum(it.total for it in look.each(mxsml.memory)) * KIB
    counted = counters(look)
    device = replace(
        placed(settings, its),
        memory=memory,
        attributes=_attributes(settings, its, look.dies),
        counters=counted,
        fault=faults.GONE if look.absent else wrong or look.fault,
    )
    return MetaxCard(index, device, look.dies, None if device.fault else mmio)


def placed(settings: Settings, its: MxsmlIdentity) -> Device:
    """What the card is called, and where it is."""
    root, pci = host.sysfs(settings), sysfs.bdf(its.bdf)
    return Device(
        uuid=its.uuid,
        index=its.index,
        minor=its.index - FIRST_PF if its.index >= FIRST_PF else its.index,
        pci=pci,
        numa=pci_sysfs.numa_node(root, pci) if pci else None,
        model=its.name,
        paths=device_nodes.of_card(settings, pci) if pci else (),
    )


def _attributes(settings: Settings, its: MxsmlIdentity, dies: int) -> dict[str, str]:
    root, pci = host.sysfs(settings), sysfs.bdf(its.bdf)
    found = {
        constants.PCIE_ROOT: pci_sysfs.root_complex(root, pci) if pci else "",
        constants.VIRTUALISATION: MODES.get(VirtMode(its.mode), "") if its.mode in MODES else "",
        constants.DIES: str(dies) if dies > 1 else "",
    }
    return {name: text for name, text in found.items() if text}


def health(look: MetaxReading) -> Fault | None:
    """What the driver says now: whether the card is available, and each of its dies."""
    mxsml = look.mxsml
    well = look.get(mxsml.state, default=None)
    said = [_die(look, die) for die in look.parts()]
    if wrong := next((it for it in said if it), None):
        return wrong
    if well is False:
        return faults.NOT_AVAILABLE
    return faults.UNMONITORED if well is None and not look.fault else None


def _die(look: MetaxReading, die: int | None) -> Fault | None:
    try:
        return faults.unavailable(look.mxsml.unavailable(look.index, die), die)
    except MxsmlError as error:
        look.blame(error)
        return None


def counters(look: MetaxReading) -> dict[str, int]:
    """The errors since the driver was loaded that a card does not survive; what is not counted is absent."""
    mxsml, found = look.mxsml, {}
    errors = look.each(mxsml.ecc)
    if len(errors) == len(list(look.parts())):
        found["dram-ue"] = sum(it.dram_uncorrected for it in errors)
        found["sram-ue"] = sum(it.sram_uncorrected for it in errors)
    for name, kind in (("dbe", PciEventType.DBE), ("aer-ue", PciEventType.AER_UE)):
        events = look.get(mxsml.pci_events, kind, default=None)
        if events is not None:
            found[name] = sum(max(0, it.count) for it in events)
    return found


def completed(look: MetaxCard, before: MetaxCard) -> MetaxCard:
    """Fill what a card does not tell now from what the card told before: of a sick card everything."""
    if look.device.fault is None:
        return replace(look, mmio=before.mmio if look.mmio is None else look.mmio)
    device = device_fields.completed(look.device, before.device)
    return replace(look, device=device, dies=max(look.dies, before.dies), mmio=before.mmio)


def usage(mxsml: Mxsml, card: MetaxCard) -> Usage | None:
    """What runs on a card; None where that cannot be read."""
    look = MetaxReading(mxsml, card.index, card.dies)
    memory = look.each(mxsml.memory)
    if not memory:
        return None
    percent = look.get(mxsml.utilization, default=None)
    used = min(
        sum(it.used for it in memory) * KIB, card.device.memory or sum(it.total for it in memory) * KIB
    )
    return Usage(card.uuid, used, None if percent is None else min(max(percent, 0), 100) / 100)
