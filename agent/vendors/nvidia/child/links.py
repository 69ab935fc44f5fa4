"""Links between cards: NVLink lanes and the PCIe path."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from agent.vendor_api.backend import Distance, Link

from .cards import NvidiaCard, bdf

#: nvmlGpuTopologyLevel_t
LEVELS: Mapping[int, Distance] = {
    0: Distance.BOARD,
    10: Distance.SWITCH,
    20: Distance.SWITCHES,
    30: Distance.HOST_BRIDGE,
    40: Distance.NUMA_NODE,
    50: Distance.SYSTEM,
}


def links(nvml: Any, card: NvidiaCard, cards: Mapping[str, NvidiaCard]) -> list[Link]:
    """The links from a card to each other card. A path that cannot be read counts as the longest."""
    lanes = _lanes(nvml, card.handle)
    return [
        Link(peer.uuid, lanes[peer.device.pci or ""], _distance(nvml, card.handle, peer.handle))
        for peer in cards.values()
        if peer.uuid != card.uuid
    ]


def _lanes(nvml: Any, handle: Any) -> Counter[str]:
    """Number of active NVLinks by the PCI address at the other end, which can also be an NVSwitch."""
    lanes: Counter[str] = Counter()
    for number in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            if nvml.nvmlDeviceGetNvLinkState(handle, number):
                peer = bdf(nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, number))
                if peer:
                    lanes[peer] += 1
        except nvml.NVMLError as error:
            if number == 0 and error.value != nvml.NVML_ERROR_INVALID_ARGUMENT:
                break  # the card has no NVLink, or does not answer
    return lanes


def _distance(nvml: Any, handle: Any, peer: Any) -> Distance:
    try:
        return LEVELS.get(nvml.nvmlDeviceGetTopologyCommonAncestor(handle, peer), Distance.SYSTEM)
    except nvml.NVMLError:
        return Distance.SYSTEM
