"""Links between cards: MetaXLink lanes, the groups of cards that they join, and the PCIe path."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from agent.vendor_api.backend import Distance, Link
from agent.vendors.metax.shared import sysfs

from .abi import METAX_LINKS, TopologyLevel
from .cards import MetaxCard
from .library import Mxsml, MxsmlError

LEVELS: Mapping[int, Distance] = {
    TopologyLevel.INTERNAL: Distance.BOARD,
    TopologyLevel.SINGLE: Distance.SWITCH,
    TopologyLevel.MULTIPLE: Distance.SWITCHES,
    TopologyLevel.HOST_BRIDGE: Distance.HOST_BRIDGE,
    TopologyLevel.NODE: Distance.NUMA_NODE,
}


def links(mxsml: Mxsml, card: MetaxCard, cards: Sequence[MetaxCard]) -> list[Link]:
    """The links from a card to each other card. A path that cannot be read counts as the longest."""
    counted = lanes(mxsml, card)
    return [_link(mxsml, card, peer, counted) for peer in cards if peer.uuid != card.uuid]


def _link(mxsml: Mxsml, card: MetaxCard, peer: MetaxCard, counted: Mapping[str, int]) -> Link:
    try:
        level = mxsml.topology(card.index, peer.index)
    except MxsmlError:
        level = TopologyLevel.UNDEFINED
    count = counted.get(peer.device.pci or "", 0)
    if level == TopologyLevel.METAX_LINK:  # the level hides the PCIe path, so the NUMA node decides
        numa = card.device.numa
        near = numa is not None and numa == peer.device.numa
        return Link(peer.uuid, max(1, count), Distance.NUMA_NODE if near else Distance.SYSTEM)
    return Link(peer.uuid, count, LEVELS.get(level, Distance.SYSTEM))


def lanes(mxsml: Mxsml, card: MetaxCard) -> Counter[str]:
    """Number of MetaXLinks of all dies, by the PCI address of the card at the other end."""
    found: Counter[str] = Counter()
    for die in range(card.dies) if card.dies > 1 else (None,):
        for number in range(METAX_LINKS):
            try:
                remote = mxsml.metaxlink_remote(card.index, number, die)
            except MxsmlError as error:
                if error.unsupported:
                    break  # the card, or the library, has no MetaXLink
                continue
            if remote is not None and (pci := sysfs.bdf(remote.bdf)):
                found[pci] += 1
    return found


def zones(mxsml: Mxsml, cards: Sequence[MetaxCard]) -> dict[str, int]:
    """The groups of cards that MetaXLink joins: uuid to number of the group, from 1. Lone cards have none."""
    peers = {card.device.pci: lanes(mxsml, card).keys() for card in cards if card.device.pci}
    found: dict[str, int] = {}
    for pci in sorted(peers):
        if pci not in found and len(group := _reached(pci, peers)) > 1:
            found.update(dict.fromkeys(group, max(found.values(), default=0) + 1))
    return {card.uuid: found[card.device.pci] for card in cards if card.device.pci in found}


def _reached(start: str, peers: Mapping[str, Collection[str]]) -> set[str]:
    """All addresses that are connected with `start`, directly or by other cards."""
    found, open_ends = {start}, [start]
    while open_ends:
        new = set(peers[open_ends.pop()]) & peers.keys() - found
        found |= new
        open_ends += new
    return found
