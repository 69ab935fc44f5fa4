"""What libefml.so tells of a card, as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class EfmlIdentity:
    """A card: `bdf` as the kernel writes it, `vendor` and `device` are PCI's numbers.

    `logic_id` is N of `enflame/gcuN` in sysfs, whose `dev` tells the minor number; None where EFML has
    handles alone. Neither is the index, and none of the three is an identity: that is the UUID.
    """

    index: int
    name: str
    bdf: str
    vendor: int
    device: int
    logic_id: int | None = None


@dataclass(frozen=True, slots=True)
class EfmlMemory:
    """Bytes. What is used comes in steps of a MiB where the index family told it."""

    total: int
    used: int


@dataclass(frozen=True, slots=True)
class Ecc:
    """Counts of errors: of one bit, corrected, and of two, which are not."""

    enabled: bool
    pending: bool
    blacklist_pending: bool
    single_bit: int
    double_bit: int


@dataclass(frozen=True, slots=True)
class Rma:
    """Whether the vendor wants the card back; `double_bit` counts errors, None where the flag is all."""

    supported: bool
    flagged: bool
    double_bit: int | None


@dataclass(frozen=True, slots=True)
class PcieLink:
    """PCIe: generation and lanes, now and at most. The generation is None where EFML has handles alone."""

    speed: int | None
    max_speed: int | None
    width: int
    max_width: int


@dataclass(frozen=True, slots=True)
class Temperature:
    """Degrees Celsius; None for what the library does not measure."""

    chip: float
    memory: float | None
    board: float | None


@dataclass(frozen=True, slots=True)
class Power:
    """Watts: what the card may draw, and what it draws."""

    limit: float
    drawn: float


@dataclass(frozen=True, slots=True)
class Process:
    """A process on the card; `memory` in the library's own unit, which nothing public tells."""

    pid: int
    memory: int


@dataclass(frozen=True, slots=True)
class ErrorRecord:
    """An error that the card remembers: abi.ResetType, abi.ResetSource; `time` in the library's own unit."""

    event: int
    reset: int
    source: int
    time: int


@dataclass(frozen=True, slots=True)
class EfmlEvent:
    """`type` is abi.EventType's, or one that we do not know; `card` None where the library names none."""

    card: int | None
    type: int
    id: int
    message: str


@dataclass(frozen=True, slots=True)
class LarePort:
    """A LARE (once ESL) port; `remote` is the address of the card at the other end, None where nobody is."""

    number: int
    remote: str | None
    remote_port: int


class CardStanding(StrEnum):
    """What the handle family says of a card; UNKNOWN where the library has no such functions."""

    HERE = "here"
    LOST = "lost"
    RESET_REQUIRED = "reset-required"
    UNKNOWN = "unknown"
