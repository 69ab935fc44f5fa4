"""Figures and rows: what is measured, what is aimed at, what others reach. Less is always better."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import Any

#: A row fails the check where its figure is more than so many times its target.
TOLERANCE = 1.5
#: The tolerance of a row whose target is a promise.
NO_SLACK = 1.0


@dataclass(frozen=True, slots=True)
class Bound:
    """A target that another figure of the same run sets: so many times that figure, and so much more."""

    of: str
    times: float = 1.0
    plus: float = 0.0

    def target(self, other: Sequence[float]) -> float:
        """The target that follows from the runs of the other figure."""
        return round(self.times * median(other) + self.plus, 4)

    def __str__(self) -> str:
        factor = "" if self.times == 1 else f"{self.times:g} x "
        return factor + self.of + (f" + {self.plus:g}" if self.plus else "")


@dataclass(frozen=True, slots=True)
class Runs:
    """What each subject took in each of its runs; empty for a subject that was not measured."""

    ours: Sequence[float]
    spike: Sequence[float] = ()
    rival: Sequence[float] = ()


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
    #: The figures of the others in the same run; None where they were not measured.
    spike: float | None = None
    rival: float | None = None
    #: Where the target comes from, if another figure sets it.
    bound: str = ""
    tolerance: float = TOLERANCE

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None where there is none."""
        return None if self.target is None else self.ours <= self.target

    @property
    def failed(self) -> bool:
        """Whether the figure misses its target by more than the row tolerates."""
        return self.target is not None and self.ours > self.target * self.tolerance

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "met": self.met}


@dataclass(frozen=True, slots=True)
class Figure:
    """What a row is about, before it is measured. A bound, if there is one, sets the target."""

    name: str
    unit: str
    target: float | None = None
    reference: str = ""
    bound: Bound | None = None
    tolerance: float = TOLERANCE

    def row(self, runs: Runs | Sequence[float], note: str = "", other: Sequence[float] = ()) -> Row:
        """The row of these runs. `other`: the runs of the figure that the bound is of."""
        runs = runs if isinstance(runs, Runs) else Runs(runs)
        rounded = tuple(round(run, 4) for run in runs.ours)
        return Row(
            self.name,
            self.unit,
            round(median(rounded), 4),
            rounded,
            self.bound.target(other) if self.bound else self.target,
            self.reference,
            note,
            middle(runs.spike),
            middle(runs.rival),
            str(self.bound or ""),
            self.tolerance,
        )


def middle(runs: Sequence[float]) -> float | None:
    """The median, rounded as figures are; None of no runs."""
    return round(median(runs), 4) if runs else None


def percentile(values: Sequence[float], percent: int) -> float:
    """The smallest of the values that so many percent of them do not exceed."""
    return sorted(values)[(len(values) * percent + 99) // 100 - 1]


@dataclass(frozen=True, slots=True)
class Series:
    """The runs of a figure as they are made, by subject."""

    runs: dict[str, list[float]] = field(default_factory=dict)

    def add(self, role: str, *values: float) -> None:
        """Take runs of the subject in this role."""
        self.runs.setdefault(role, []).extend(values)

    def of(self, role: str) -> Sequence[float]:
        return self.runs.get(role, ())

    def all(self) -> Runs:
        return Runs(self.of("ours"), self.of("spike"), self.of("rival"))


def with_rival(rows: Sequence[Row], others: Sequence[Row]) -> list[Row]:
    """Our rows, each with the rival's figure from the row of the same name."""
    figures = {row.name: row.ours for row in others}
    return [replace(row, rival=figures.get(row.name)) for row in rows]
