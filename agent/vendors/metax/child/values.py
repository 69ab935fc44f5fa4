"""The answers of libmxsml.so as plain values. The unit of memory differs between calls."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MxsmlIdentity:
    """A card or a virtual function. `bdf` and `uuid` are the library's texts; `mode` is an abi.VirtMode."""

    index: int
    bdf: str
    uuid: str
    name: str
    brand: int
    mode: int
    #: The socket or the OAM slot, as GPUStack reads it. Not the NUMA node.
    node: int


@dataclass(frozen=True, slots=True)
class MxsmlMemory:
    """Memory of a card in KiB, from GetMemoryInfo."""

    total: int
    used: int


@dataclass(frozen=True, slots=True)
class MxsmlProcess:
    """What a process uses of a card: `memory` in bytes, of the slice `sgpu` if the process uses one.

    `memory` is None if the library lists the process, and nothing that the process uses of this card.
    """

    pid: int
    memory: int | None
    sgpu: int | None = None


@dataclass(frozen=True, slots=True)
class UnavailableReason:
    """Why a card cannot be used. Code 0 is normal; MetaX has not published the other codes."""

    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class EccErrors:
    """Counts of ECC errors since the driver was loaded."""

    sram_corrected: int
    sram_uncorrected: int
    dram_corrected: int
    dram_uncorrected: int
    retired_pages: int


@dataclass(frozen=True, slots=True)
class PciEvent:
    """A kind of PCI error: its bit, the count since the driver was loaded, and the time of the first one."""

    bit: int
    count: int
    first: str
    name: str


@dataclass(frozen=True, slots=True)
class LinkEnd:
    """The card at the other end of a MetaXLink. `die` is None for a link that belongs to no single die."""

    index: int
    bdf: str
    die: int | None = None


@dataclass(frozen=True, slots=True)
class Sgpu:
    """A slice (sGPU): `vram` in MiB, `compute` in percent.

    Another slice can get the number `id` after this one is removed. `card` is the library's index.
    """

    card: int
    id: int
    uuid: str
    minor: int
    vram: int
    compute: int


@dataclass(frozen=True, slots=True)
class SgpuMemory:
    """Memory of a slice in bytes."""

    total: int
    used: int


@dataclass(frozen=True, slots=True)
class SgpuQuota:
    """Memory for slices of a card in MiB, and what is free: memory in MiB, compute in percent."""

    total_vram: int
    free_vram: int
    free_compute: int


@dataclass(frozen=True, slots=True)
class MxsmlEvent:
    """An event of the driver. MetaX has not published the form of the text `data`."""

    card: int
    type: int
    data: str
