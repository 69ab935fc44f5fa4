"""A finding of the doctor: what is wrong and where, why it matters, and what mends it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from agent.vendor_api.text import printable

#: Characters of a text that contains texts of other programs.
LONGEST = 2000


class Severity(StrEnum):
    """What a finding means for the node. NOT_MADE: the check could not look from here."""

    STOPS = "stops"
    WARNS = "warns"
    NOT_MADE = "not-made"
    OK = "ok"


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of a check. `kind` is the name of the FindingKind; empty where nothing is wrong."""

    check: str
    severity: Severity
    what: str
    kind: str = ""
    why: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class FindingKind:
    """A kind of finding.

    `remedy` has {fields} for texts that depend on the node. docs/doctor.md lists all kinds.
    """

    check: str
    name: str
    severity: Severity
    #: What is wrong, for a reader who has never seen it before.
    title: str
    why: str
    remedy: str

    def found(self, what: str, /, **fields: object) -> Finding:
        """A finding of this kind. `what` says what was found and where; `fields` are those of the remedy."""
        remedy = self.remedy.format(**fields).strip()
        return Finding(self.check, self.severity, _bounded(what), self.name, self.why, _bounded(remedy))


def well(check: str, what: str) -> Finding:
    """The finding that nothing is wrong."""
    return Finding(check, Severity.OK, _bounded(what))


def not_made(check: str, why: str) -> Finding:
    """The finding that the check could not look; `why` says what is missing for that."""
    return Finding(check, Severity.NOT_MADE, _bounded(why))


def _bounded(text: str) -> str:
    clean = printable(text)
    return clean if len(clean) <= LONGEST else f"{clean[:LONGEST]}…"
