"""Faults that cards of several vendors have, with the same reason and text for each vendor."""

from __future__ import annotations

from agent.vendor_api import backend
from agent.vendor_api.backend import Fault, Proof, State

#: Reason of the fault of a card that could not be read.
UNREADABLE = "unreadable"
#: The proofs that end an error of the memory or of the bus.
FRESH_START = (Proof.RESET, Proof.DRIVER_RELOAD, Proof.REBOOT)
NO_UUID = Fault(UNREADABLE, "the card tells no uuid")


def unreadable(error: Exception, state: State) -> Fault:
    """Fault of a card for which a call of the library failed with this error."""
    return Fault(UNREADABLE, f"reading the card failed: {error}", state=state)


def no_library(file: str) -> Fault:
    """Fault of a card that only sysfs shows, because this file of the vendor's library is missing."""
    text = f"{file} is not here: the card is known from sysfs alone, and nothing watches it"
    return Fault(backend.NO_LIBRARY, text, state=State.UNKNOWN)


def unwatched(text: str) -> Fault:
    """Fault of a card without readable events. `text` says what failed."""
    return Fault("unwatched", text, state=State.UNKNOWN)


def grown(reason: str, counted: str, before: int, now: int) -> Fault:
    """Fault of a card with an error counter that grew. `counted` names the errors."""
    text = f"{counted}: {now}, were {before}; drain the card, then reset it"
    return Fault(reason, text, cleared_by=FRESH_START)
