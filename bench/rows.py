"""Figures and rows: what is measured, what is aimed at, what others reach. Less is always better."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

#: A row fails the check where its figure is more than so many times its target.
TOLERANCE = 1.5


@dataclass(frozen=True, slots=True)
class Row:
    """One measured figure: the median of its runs."""

    name: str
    unit: str
    ours: float
    runs: tuple[float, ...]
    target: float | None
    reference: str
    note: str

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None where there is none."""
        return None if self.target is None else self.ours <= self.target

    @property
    def failed(self) -> bool:
        """Whether the figure misses its target by more than half."""
        return self.target is not None and self.ours > self.target * TOLERANCE

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "met": self.met}


@dataclass(frozen=True, slots=True)
class Figure:
    """What a row is about, before it is measured."""

    name: str
    unit: str
    target: float | None
    reference: str

    def row(self, runs: Sequence[float], note: str = "") -> Row:
        """The row of these runs."""
        rounded = tuple(round(run, 4) for run in runs)
        return Row(
            self.name, self.unit, round(median(rounded), 4), rounded, self.target, self.reference, note
        )
