"""Quantities as Kubernetes writes them: 10Gi, 100. Not by the agent's own code, which is on trial."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

#: Resource name to an amount: bytes, percent, or how many.
Amounts = Mapping[str, int]

_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_AMOUNT = re.compile(rf"([0-9]+)({'|'.join(_BINARY)})")


def read(text: str) -> int:
    found = _AMOUNT.fullmatch(text)
    assert found, f"{text!r} is no amount"
    return int(found[1]) << 10 * _BINARY.index(found[2])


def amounts(texts: Mapping[str, str]) -> dict[str, int]:
    return {name: read(it) for name, it in texts.items()}


def binary(amount: int) -> str:
    """In the largest unit that leaves no rest (apimachinery's BinarySI)."""
    powers = (it for it in range(len(_BINARY) - 1, 0, -1) if amount and not amount % (1 << 10 * it))
    power = next(powers, 0)
    return f"{amount >> 10 * power}{_BINARY[power]}"


def added(many: Iterable[Amounts]) -> dict[str, int]:
    total: dict[str, int] = {}
    for its in many:
        for name, amount in its.items():
            total[name] = total.get(name, 0) + amount
    return total


def left(total: Amounts, used: Amounts) -> dict[str, int]:
    """Never less than nothing, as quotav1.SubtractWithNonNegativeResult."""
    return {name: max(0, amount - used.get(name, 0)) for name, amount in total.items()}
