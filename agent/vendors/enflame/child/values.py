"""The answers of libefml.so about a card, as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class EfmlIdentity:
    """A card. `bdf` is the PCI address as the kernel writes it, `vendor` and `device` are PCI's ids.

    `logic_id` is N of `enflame/gcuN` in sysfs, where the file `dev` has the minor number. It is None if EFML
    has only the handle family. Index, minor number and logic id can differ and can change: the UUID is the
    identity of a card.
    """

    index: int
    name: str
    bdf: str
    vendor: int
    device: int
    logic_id: int | None = None


@dataclass(frozen=True, slots=True)
class EfmlMemory:
    """Memory of a card in bytes. From the index family (see abi) `used` is a multiple of a MiB."""

    total: int
    used: int


@dataclass(frozen=True, slots=True)
class Ecc:
    """State of ECC. `single_bit` counts corrected errors, `double_bit` uncorrected ones."""

    enabled: bool
    pending: bool
    blacklist_pending: bool
    single_bit: int
    double_bit: int


@dataclass(frozen=True, slots=True)
class Rma:
    """`flagged`: the card is to be returned to its vendor. `double_bit` counts ECC errors, None: unknown."""

    supported: bool
    flagged: bool
    double_bit: int | None


@dataclass(frozen=True, slots=True)
class PcieLink:
    """PCIe generation (`speed`) and lanes (`width`), now and at most.

    The generation is None if EFML has only the handle family (see abi).
    """

    speed: int | None
    max_speed: int | None
    width: int
    max_width: int


@dataclass(frozen=True, slots=True)
class Temperature:
    """Degrees Celsius; None for a part that the library does not measure."""

    chip: float
    memory: float | None
    board: float | None


@dataclass(frozen=True, slots=True)
class CardPower:
    """Watts: the limit, and the power that the card draws now."""

    limit: float
    drawn: float


@dataclass(frozen=True, slots=True)
class Process:
    """A process on the card. `memory` is in bytes if `in_bytes`, or else in a unit that is not published."""

    pid: int
    memory: int
    in_bytes: bool


@dataclass(frozen=True, slots=True)
class ProcessLoad:
    """How much of the card's compute a process used: percent at a time in the library's microseconds."""

    pid: int
    time: int
    percent: int


@dataclass(frozen=True, slots=True)
class EfmlErrorRecord:
    """An error that the card remembers.

    `reset` is an abi.ResetType, `source` an abi.ResetSource. `time` is in the library's own unit.
    """

    event: int
    reset: int
    source: int
    time: int


@dataclass(frozen=True, slots=True)
class EfmlEvent:
    """`type` is an abi.EventType or an unknown number. `card` is None if the library names no card."""

    card: int | None
    type: int
    id: int
    message: str


@dataclass(frozen=True, slots=True)
class LarePort:
    """A LARE port, called ESL in older builds.

    `remote` is the PCI address of the card at the other end; None if the port is not connected.
    """

    number: int
    remote: str | None
    remote_port: int


class CardStanding(StrEnum):
    """State of a card, from the handle family (see abi). UNKNOWN if EFML lacks that family."""

    HERE = "here"
    LOST = "lost"
    RESET_REQUIRED = "reset-required"
    UNKNOWN = "unknown"
