"""What Koordinator is told of the node's cards: the devices in, one value out, whoever carries it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from agent.core.koordinator.partitions import P2p
from agent.core.model import NodeSnapshot


@dataclass(frozen=True, slots=True)
class Card:
    """One physical card, as an entry of a Device has it."""

    uuid: str
    #: 0 to MAX_MINOR; no other card of the report has it.
    minor: int
    healthy: bool = True
    #: Of the condition Healthy. Unknown: nobody can say, and `healthy` is what the kubelet hears.
    status: Literal["True", "False", "Unknown"] = "True"
    #: Fit for the CRD; empty where it is healthy.
    reason: str = ""
    message: str = ""
    memory: int = 0  # bytes
    #: Fit for a label.
    model: str = ""
    #: -1 where the platform does not say
    numa: int = -1
    #: The PCIe root that it is under: pci0000:3a
    pcie: str = ""
    #: 0000:3b:00.0
    pci: str = ""
    #: Of this card alone; pods choose by them (device-allocate-hint, `selector`).
    labels: Mapping[str, str] = field(default_factory=dict)
    #: What it has beside core, memory and ratio: name to Quantity.
    resources: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Report:
    """The cards of the one vendor that a node reports, in the order of their minors; never without any."""

    #: As Koordinator names it: the value of the label gpu-vendor.
    vendor: str
    cards: tuple[Card, ...]
    #: Of all cards; empty where they differ.
    model: str = ""
    driver: str = ""
    links: tuple[P2p, ...] = ()
    #: A sentence for each thing that is not reported.
    left_out: tuple[str, ...] = ()


#: The scheduler hashes minors as 1 << minor in an int (allocator_gpu.go).
MAX_MINOR = 62


def report(
    snapshot: NodeSnapshot,
    vendor: str = "",
    *,
    before: Report | None = None,
    withheld: Mapping[str, str] | None = None,
) -> Report | None:
    """What to tell now; None: nothing new, so that what was told stays.

    `vendor`: the name that the config chose; empty is the vendor with most cards.
    `before`: what was told last (`device.told`, `feed.told`), also by an earlier agent: cards that are not
    listed now keep their place in it, and cards without a minor of their own the one that they had.
    `withheld`: uuid to a sentence why nobody gets the card as a whole; it is told as unhealthy.

    It is None while the vendor that counts has not listed its devices, and where there are no cards: never an
    empty list because of a probe that failed.
    """
    raise NotImplementedError
