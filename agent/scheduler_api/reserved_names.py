"""Resource names that a scheduler keeps for itself, so that no vendor may serve them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reserved:
    """Resource names that a scheduler's programs write to the Node. No device plugin may serve them."""

    #: Prefix of the names: `acme.com/`.
    prefix: str
    #: The reason as a clause, and what would work: `is Acme's own; choose another domain`.
    why: str
