"""How thoroughly the bench measures, and how it says what it does meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


def silent(text: str) -> None:
    """Say nothing."""


@dataclass(frozen=True, slots=True)
class Pace:
    """A quick measurement repeats less, and its figures scatter more."""

    quick: bool = False
    #: Called with what is done now, in measurements that take more than some seconds.
    says: Callable[[str], None] = silent

    def runs(self, full: int) -> int:
        """How often to measure where a full measurement repeats so often: a quarter, if this one is quick."""
        return max(1, full // 4) if self.quick else full
