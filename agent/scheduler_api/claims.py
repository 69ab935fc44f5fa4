"""Claims: what schedulers promised to containers, in the words of every dialect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Claim:
    """What a scheduler promised one container: cards, and parameters for the vendor."""

    uid: str
    namespace: str
    pod: str
    container: str
    #: Uuids of cards; empty where the scheduler chose none.
    devices: tuple[str, ...] = ()
    #: The share of the cards, by names that the vendor knows.
    parameters: Mapping[str, str] = field(default_factory=dict)
    #: A sentence for the pod's users, such as a difference to what the container asks for.
    remark: str = ""
    #: Name of the dialect that the claim was read in. Claims that differ in it alone are equal.
    dialect: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of one card: of its cores and of its memory. 1.0 is the whole card."""

    core: float = 0.0
    memory: float = 0.0


@dataclass(frozen=True, slots=True)
class ServedClaim:
    """What one container of a pod has of a resource by its claim, confirmed by the kubelet."""

    container: str
    resource: str
    #: Number of device IDs.
    count: int
    #: Uuids of the cards.
    devices: tuple[str, ...]
    #: Slices that the hardware made for the container, by the vendor's ids.
    partitions: tuple[str, ...] = ()
