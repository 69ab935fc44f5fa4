"""The faults of MetaX's cards, from the answers of MXSML."""

from __future__ import annotations

from agent.vendor_api.backend import Fault, State
from agent.vendors.common import card_faults

from .abi import Code
from .library import MxsmlError
from .values import UnavailableReason

GONE = Fault("gone", "MXSML no longer knows the card: it left the bus, or its driver released it")
NOT_AVAILABLE = Fault("unavailable", "the driver says that the card is not available")
MMIO = Fault("mmio", "the state of the card's registers has changed since the agent first read it")
LIMITED = Fault("limited", "the driver allows only a part of the card to be used")
UNMONITORED = Fault("unmonitored", "the driver does not say whether the card is well", state=State.UNKNOWN)
NO_LIBRARY = card_faults.no_library("libmxsml.so")

#: Codes that tell nothing about the card's health: the call came too early, or the card does not support it.
SILENT = (Code.SYSFS_ERROR, Code.OPERATION_NOT_SUPPORT, Code.BUSY_DEVICE, Code.FLR_NOT_READY)

#: The names of the error counters, and the errors that each one counts.
COUNTED = {
    "dram-ue": "uncorrected ECC errors of the DRAM",
    "sram-ue": "uncorrected ECC errors of the SRAM",
    "dbe": "double-bit errors",
    "aer-ue": "uncorrected PCIe errors",
}


def reading(error: MxsmlError) -> Fault:
    """Fault of a card for which a call of MXSML failed with this error."""
    if error.gone:
        return GONE
    state = State.UNKNOWN if error.code in SILENT else State.UNHEALTHY
    return card_faults.unreadable(error, state)


def unavailable(found: UnavailableReason, die: int | None) -> Fault | None:
    """Fault of a card or a die that cannot be used, as the driver says; None if it can be used."""
    if not found.code:
        return None
    what = "the card" if die is None else f"die {die}"
    why = found.reason.strip() or "without a reason"
    return Fault("unavailable", f"the driver says that {what} is not available: {why} (code {found.code})")


def grown(name: str, before: int, now: int) -> Fault:
    """Fault of a card with an error counter that grew."""
    reason = "pcie" if name == "aer-ue" else "ecc"
    return card_faults.grown(reason, COUNTED[name], before, now)


def unwatched(error: MxsmlError) -> Fault:
    """Fault of a card for which the library reports no events."""
    return card_faults.unwatched(f"waiting for the card's events failed: {error}")


def sliced(mode: str, slices: int) -> Fault:
    """Fault of a card with slices, while the mode gives out whole cards."""
    text = (
        f"the card has {slices} sGPU, and mode {mode} gives out whole cards: remove these, or use mode sgpu"
    )
    return Fault("sliced", text)


def split(mode: str, functions: int) -> Fault:
    """Fault of a card with virtual functions, while the mode gives out whole cards."""
    text = f"the card is split into {functions} virtual functions: disable them, or use mode vgpu, not {mode}"
    return Fault("sliced", text)


def unsummed(total: int, sliced: int, free: int) -> Fault:
    """Fault of a card with other memory than its slices and its free memory together. All in MiB."""
    text = f"its slices have {sliced} MiB and {free} MiB are free, which is not the card's {total} MiB"
    return Fault("slices-do-not-sum", text)
