"""Reads Kubernetes Quantities: a Node has 16000 devices as 16k."""

from __future__ import annotations

import re
from fractions import Fraction

#: A Quantity that is not negative (apimachinery pkg/api/resource/quantity.go).
_ANY = re.compile(
    r"\+?(?P<whole>[0-9]{0,18})(?:\.(?P<part>[0-9]{0,18}))?(?P<unit>[numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,2})?"
)
_SMALL = {"n": 9, "u": 6, "m": 3}
_DECIMAL = "kMGTPE"
_BINARY = "KMGTPE"


def whole(text: object) -> int | None:
    """The value of a Quantity; None for a value that is no whole number."""
    found = exact(text)
    return int(found) if found is not None and found.denominator == 1 else None


def exact(text: object) -> Fraction | None:
    """The exact value of a Quantity; None for a negative value, and for anything that is no Quantity."""
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
