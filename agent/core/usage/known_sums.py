"""Sums of figures of use, where a figure may be unknown. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

Number = TypeVar("Number", int, float)


def sum_of(amounts: Iterable[Number | None]) -> Number | None:
    """The sum; None where one of the amounts is not known, or there is none."""
    total: Number | None = None
    for amount in amounts:
        if amount is None:
            return None
        total = amount if total is None else total + amount
    return total


def sum_of_parts(parts: Iterable[float | None]) -> float | None:
    """The sum of parts of one card, and never more than the card."""
    total = sum_of(parts)
    return None if total is None else min(1.0, total)
