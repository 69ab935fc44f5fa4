"""Links between cards: LARE ports (ESL in older builds), and the PCIe path in sysfs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from agent.vendor_api.backend import Distance, Link
from agent.vendors.common import pci_sysfs

from .cards import EnflameCard
from .library import Efml
from .library_errors import EfmlError

#: Levels below the common bridge of two cards behind one switch: the switch's port and the card.
SWITCH = 2


def links(efml: Efml, sys: Path, card: EnflameCard, cards: Iterable[EnflameCard]) -> list[Link]:
    """The links from a card to each other card. A path that cannot be read counts as the longest."""
    counted = lanes(efml, card)
    return [
        Link(peer.uuid, counted[peer.device.pci or ""], distance(sys, card, peer))
        for peer in cards
        if peer.uuid != card.uuid
    ]


def lanes(efml: Efml, card: EnflameCard) -> Counter[str]:
    """Number of LARE ports by the PCI address of the card at the other end."""
    try:
        ports = efml.ports(card.index)
    except EfmlError:
        return Counter()
    return Counter(port.remote for port in ports if port.remote is not None)


def distance(sys: Path, card: EnflameCard, peer: EnflameCard) -> Distance:
    """The distance of two cards, by the bridges that their PCIe paths have in common."""
    one, other = (pci_sysfs.path(sys, it.device.pci or "") for it in (card, peer))
    common = _common(one, other)
    if common == 0:
        numa = card.device.numa
        return Distance.NUMA_NODE if numa is not None and numa == peer.device.numa else Distance.SYSTEM
    if common == 1:
        return Distance.HOST_BRIDGE
    below = max(len(one), len(other)) - common
    return Distance.SWITCH if below <= SWITCH else Distance.SWITCHES


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
