"""Counts as Kubernetes writes them: 16000 devices stand in a Node as 16k."""

from __future__ import annotations

import re
from fractions import Fraction

#: Anything that a Quantity may be, but negative (apimachinery pkg/api/resource/quantity.go).
_ANY = re.compile(
    r"\+?(?P<whole>[0-9]{0,18})(?:\.(?P<part>[0-9]{0,18}))?(?P<unit>[numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,2})?"
)
_SMALL = {"n": 9, "u": 6, "m": 3}
_DECIMAL = "kMGTPE"
_BINARY = "KMGTPE"


def whole(text: object) -> int | None:
    """The number that a Quantity says; None where it is no whole one (apimachinery pkg/api/resource)."""
    found = exact(text)
    return int(found) if found is not None and found.denominator == 1 else None


def exact(text: object) -> Fraction | None:
    """What a Quantity says, as exactly as it was written; None of what is none, and of a negative one."""
    found = _ANY.fullmatch(str(text)) if isinstance(text, str | int) and not isinstance(text, bool) else None
    if found is None or not (found["whole"] or found["part"]):
        return None
    part, unit = found["part"] or "", found["unit"] or ""
    number = Fraction(int(f"{found['whole']}{part}"), 10 ** len(part))
    if unit.endswith("i"):
        return number * (1 << 10 * (_BINARY.index(unit[0]) + 1))
    return number * Fraction(10) ** _zeros(unit)


def _zeros(unit: str) -> int:
    if unit in _SMALL:
        return -_SMALL[unit]
    return int(unit[1:]) if len(unit) > 1 else 3 * (_DECIMAL.index(unit) + 1) if unit else 0
