"""The faults of Enflame's cards, with reason and message."""

from __future__ import annotations

from agent.vendor_api.backend import DRIVER_NOT_LOADED, Fault, State
from agent.vendors.common import card_faults

from .abi import Code, HandleCode
from .library_errors import EfmlError, unavailable
from .values import PcieLink

LOST = Fault("lost", "the card is lost: it left the bus, or the driver cannot reach it")
NO_DRIVER = Fault(DRIVER_NOT_LOADED, "the library says that the kernel driver is not loaded")
RESET_REQUIRED = Fault("reset-required", "the driver says that the card works again only after a reset")
RESETTING = Fault("resetting", "the driver resets the card now")
SUSPENDED = Fault("suspended", "the driver suspended the card")
RMA = Fault("rma", "the card asks to be sent back to its vendor (RMA)")
UNHEALTHY = Fault("unhealthy", "the library reports that the card is broken")
NO_MINOR = Fault("no-minor", "sysfs does not have the number of the card's node, /dev/gcuN")
VIRTUAL = Fault("virtual-function", "this is a virtual function (SRIOV), which is not given out as a card")
UNMONITORED = Fault("unmonitored", "the library does not say whether the card is well", state=State.UNKNOWN)
NO_LIBRARY = card_faults.no_library("libefml.so")

#: Codes that tell nothing about the card's health: the card was busy, or the call came too early.
_SILENT = (Code.TIMEOUT,)
_SILENT_BY_HANDLE = (HandleCode.TIMEOUT, HandleCode.IN_USE, HandleCode.NO_DATA, HandleCode.NOT_READY)

#: The names of the error counters, and the errors that each one counts.
COUNTED = {
    "dbe": "double-bit ECC errors",
    "rma-dbe": "double-bit ECC errors that the card remembers",
}


def reading(error: EfmlError) -> Fault:
    """Fault of a card for which a call of EFML failed with this error."""
    if error.gone:
        return LOST
    if error.reset_required:
        return RESET_REQUIRED
    if unavailable(error).reason == DRIVER_NOT_LOADED:
        return NO_DRIVER
    silent = error.code in (_SILENT if error.by_index else _SILENT_BY_HANDLE)
    state = State.UNKNOWN if silent else State.UNHEALTHY
    return card_faults.unreadable(error, state)


def unwatched(error: EfmlError) -> Fault:
    """Fault of a card for which the library reports no events."""
    return card_faults.unwatched(f"asking for the card's events failed: {error}")


def grown(name: str, before: int, now: int) -> Fault:
    """Fault of a card with an error counter that grew."""
    return card_faults.grown("ecc", COUNTED[name], before, now)


def narrow(link: PcieLink) -> Fault | None:
    """Fault of a PCIe link with fewer lanes than card and slot allow; None if all lanes are used."""
    if not 0 < link.width < link.max_width:
        return None
    return Fault("link", f"the card's PCIe link has {link.width} lanes, it could have {link.max_width}")


def hot(degrees: float, seconds: float, window: float) -> Fault:
    """Fault of a card that was hotter than `degrees` for `seconds` of the last `window` seconds."""
    text = f"the card was hotter than {degrees:g} C for {seconds:.0f} of the last {window:g} s"
    return Fault("hot", text)


def silent(seconds: float) -> Fault:
    """Fault of a card with firmware that is awake and has had no heartbeat for `seconds`."""
    return Fault("heartbeat", f"the card's firmware is awake and had no heartbeat for {seconds:.0f} s")


def split(functions: int) -> Fault:
    """Fault of a card that is split into virtual functions and belongs to a resource of whole cards."""
    return Fault("sliced", f"the card is split into {functions} virtual functions: disable them")
