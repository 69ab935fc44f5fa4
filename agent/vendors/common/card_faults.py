"""Faults that cards of several vendors have, in one wording."""

from __future__ import annotations

from agent.vendor_api import backend
from agent.vendor_api.backend import Fault, Proof, State

#: The reason of a card that could not be read.
UNREADABLE = "unreadable"
#: Any of these shows that an error of the memory or the bus is over.
FRESH_START = (Proof.RESET, Proof.DRIVER_RELOAD, Proof.REBOOT)
NO_UUID = Fault(UNREADABLE, "the card tells no uuid")


def unreadable(error: Exception, state: State) -> Fault:
    """The fault of a card that answered a question with an error."""
    return Fault(UNREADABLE, f"reading the card failed: {error}", state=state)


def no_library(file: str) -> Fault:
    """The fault of a card that only sysfs shows, because this file of the vendor's library is missing."""
    text = f"{file} is not here: the card is known from sysfs alone, and nothing watches it"
    return Fault(backend.NO_LIBRARY, text, state=State.UNKNOWN)


def unwatched(text: str) -> Fault:
    """The fault of a card whose events cannot be read; the text says what failed."""
    return Fault("unwatched", text, state=State.UNKNOWN)


def grown(reason: str, counted: str, before: int, now: int) -> Fault:
    """An error counter that is higher than before; `counted` names the errors."""
    text = f"{counted}: {now}, were {before}; drain the card, then reset it"
    return Fault(reason, text, cleared_by=FRESH_START)
