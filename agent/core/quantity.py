"""Counts as Kubernetes writes them: 16000 devices stand in a Node as 16k."""

from __future__ import annotations

import re

_WRITTEN = re.compile(r"([0-9]{1,18})(?:\.0*)?([kMGTPE]|[KMGTPE]i|[eE][0-9]{1,2})?")
_DECIMAL = "kMGTPE"
_BINARY = "KMGTPE"


def whole(text: object) -> int | None:
    """The number that a Quantity says; None where it is no whole one (apimachinery pkg/api/resource)."""
    found = _WRITTEN.fullmatch(str(text))
    if found is None:
        return None
    number, unit = int(found[1]), found[2] or ""
    if unit.endswith("i"):
        return number << 10 * (_BINARY.index(unit[0]) + 1)
    zeros = int(unit[1:]) if len(unit) > 1 else 3 * (_DECIMAL.index(unit) + 1) if unit else 0
    return int(f"{number}{'0' * zeros}")
