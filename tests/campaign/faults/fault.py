"""What a fault is: something that happens to the node, and what brings the node's surroundings back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from ..bed import Bed
from ..traffic import Traffic


class Unreached(Exception):
    """Raised when a fault did not happen, since nothing came by its place."""


class Fault(ABC):
    """One fault, drawn from a seed: `strike` breaks something, `mend` gives back what the node needs to heal.

    `detail` says what was drawn.
    """

    detail = ""

    def __init__(self, rng: Random) -> None:
        self.rng = rng

    @abstractmethod
    async def strike(self, bed: Bed, traffic: Traffic) -> None: ...

    async def mend(self, bed: Bed) -> None:
        """Nothing to do where the agent alone must cope."""


def appends(bed: Bed) -> bool:
    """Whether admissions reach the journal on this node."""
    return bool(bed.hardware.appended)


@dataclass(frozen=True, slots=True)
class Kind:
    """A fault by its name; `fits` says whether a node can show it."""

    name: str
    make: Callable[[Random], Fault]
    fits: Callable[[Bed], bool] = lambda bed: True
    #: Whether it goes together with others.
    mixes: bool = True
