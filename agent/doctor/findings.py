"""What the doctor finds: what it is and where, why it matters, and what mends it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from agent.vendor_api.text import printable

#: Characters of a text that others wrote a part of.
LONGEST = 2000


class Severity(StrEnum):
    """What a finding means for the work of the node. NOT_MADE: the check could not be made from here."""

    STOPS = "stops"
    WARNS = "warns"
    NOT_MADE = "not-made"
    OK = "ok"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a check has to say. `ailment` names its kind; empty where nothing is wrong."""

    check: str
    severity: Severity
    what: str
    ailment: str = ""
    why: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class FindingKind:
    """A kind of finding. `remedy` holds {places} for what only the node can tell. docs/doctor.md has all."""

    check: str
    name: str
    severity: Severity
    #: What is wrong, for someone who has not met it.
    title: str
    why: str
    remedy: str

    def found(self, what: str, /, **places: object) -> Finding:
        """A finding of this kind; `what` says what was found, and where."""
        remedy = self.remedy.format(**places).strip()
        return Finding(self.check, self.severity, _told(what), self.name, self.why, _told(remedy))


def well(check: str, what: str) -> Finding:
    """Nothing is wrong there."""
    return Finding(check, Severity.OK, _told(what))


def not_made(check: str, why: str) -> Finding:
    """The check could not be made here; `why` says what it lacked."""
    return Finding(check, Severity.NOT_MADE, _told(why))


def _told(text: str) -> str:
    clean = printable(text)
    return clean if len(clean) <= LONGEST else f"{clean[:LONGEST]}…"
