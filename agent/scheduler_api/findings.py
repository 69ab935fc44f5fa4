"""Findings of the doctor: what is wrong and where, why it matters, and what mends it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from agent.vendor_api.text import printable

#: Most characters of a text that may have parts of other authors.
LONGEST = 2000


class Severity(StrEnum):
    """What a finding means for the node. NOT_MADE: the check could not be made."""

    STOPS = "stops"
    WARNS = "warns"
    NOT_MADE = "not-made"
    OK = "ok"


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of a check. `ailment` names its kind; empty where nothing is wrong."""

    check: str
    severity: Severity
    what: str
    ailment: str = ""
    why: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class FindingKind:
    """A kind of finding. `remedy` has {names} for values of the node. docs/doctor.md lists all kinds."""

    check: str
    name: str
    severity: Severity
    #: What is wrong, for a reader without knowledge of the matter.
    title: str
    why: str
    remedy: str

    def found(self, what: str, /, **places: object) -> Finding:
        """A finding of this kind; `what` says what was found and where."""
        remedy = self.remedy.format(**places).strip()
        return Finding(self.check, self.severity, _printable(what), self.name, self.why, _printable(remedy))


def well(check: str, what: str) -> Finding:
    """The result of a check that finds nothing wrong."""
    return Finding(check, Severity.OK, _printable(what))


def not_made(check: str, why: str) -> Finding:
    """The result of a check that could not be made; `why` says what was missing."""
    return Finding(check, Severity.NOT_MADE, _printable(why))


def _printable(text: str) -> str:
    clean = printable(text)
    return clean if len(clean) <= LONGEST else f"{clean[:LONGEST]}…"
