"""What libmxsml.so tells, as plain values; memory in the units of the call that told it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MxsmlIdentity:
    """A card or a virtual function. `bdf` and `uuid` as the library writes them; `mode` is VirtMode's."""

    index: int
    bdf: str
    uuid: str
    name: str
    brand: int
    mode: int
    #: GPUStack takes it for the socket or the OAM slot; not the NUMA node.
    node: int


@dataclass(frozen=True, slots=True)
class MxsmlMemory:
    """KiB."""

    total: int
    used: int


@dataclass(frozen=True, slots=True)
class Unavailable:
    """Code 0 is normal; MetaX has not published what the others mean."""

    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class EccErrors:
    """Counts since the driver was loaded: corrected and uncorrected, of SRAM and of DRAM."""

    sram_corrected: int
    sram_uncorrected: int
    dram_corrected: int
    dram_uncorrected: int
    retired_pages: int


@dataclass(frozen=True, slots=True)
class PciEvent:
    """A kind of PCI error: its bit, how often it came since the driver was loaded, and when first."""

    bit: int
    count: int
    first: str
    name: str


@dataclass(frozen=True, slots=True)
class LinkEnd:
    """The far end of a MetaXLink; `die` is known of dies alone."""

    index: int
    bdf: str
    die: int | None = None


@dataclass(frozen=True, slots=True)
class Sgpu:
    """A slice: `vram` in MiB, `compute` in percent. The number `id` is free again once it is removed."""

    card: int
    id: int
    uuid: str
    minor: int
    vram: int
    compute: int


@dataclass(frozen=True, slots=True)
class SgpuQuota:
    """What slices of a card may have, and what is left of it: MiB, MiB, percent."""

    total_vram: int
    free_vram: int
    free_compute: int


@dataclass(frozen=True, slots=True)
class MxsmlEvent:
    """`data` is the driver's text: MetaX has not published its form."""

    card: int
    type: int
    data: str
