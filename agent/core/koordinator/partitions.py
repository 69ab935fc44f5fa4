"""Groups of cards that are linked directly: the annotation gpu-partitions, and the p2pLinks of a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agent.core.vendor import Device

#: Where a Device has them.
ANNOTATION = "scheduling.koordinator.sh/gpu-partitions"


@dataclass(frozen=True, slots=True)
class P2p:
    """A group of cards that are linked directly, each with each: their minors, and by what."""

    minors: tuple[int, ...]
    type: str


def groups(devices: Mapping[int, Device], type: str) -> tuple[P2p, ...]:
    """The groups that the links between cards make, each as large as it can be; `devices` by their minors."""
    raise NotImplementedError


def partitions(links: Sequence[P2p]) -> str:
    """The annotation's value: the number of cards to the groups of so many, as JSON; empty without any."""
    raise NotImplementedError
