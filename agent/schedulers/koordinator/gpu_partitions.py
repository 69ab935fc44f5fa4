"""Groups of cards that are linked directly: the annotation gpu-partitions, and the p2pLinks of a file.

Source: koordinator apis/extension/device_share.go (GPUPartition), and for what the scheduler makes of it
pkg/scheduler/plugins/deviceshare/allocator_gpu.go.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agent.scheduler_api.node_report import LinkedCards
from agent.vendor_api.agent import Device

#: Where a Device has them.
ANNOTATION = "scheduling.koordinator.sh/gpu-partitions"

#: How the links of a vendor are called (koordinator's constant, document of Ascend, recorded of MetaX).
LINK_TYPES = {"nvidia": "NVLink", "metax": "MetaXLink", "huawei": "HCCS"}
OTHER_LINKS = "P2P"

#: Cards may be linked by different numbers of lanes; nobody builds more kinds of nearness than that.
_TIERS = 8

#: Of each card the lanes to every other that it is linked with, by minor.
_Lanes = Mapping[int, Mapping[int, int]]


def groups(devices: Mapping[int, Device], vendor: str) -> tuple[LinkedCards, ...]:
    """The groups that direct links make of cards, small ones first; `devices` by their minors.

    Those with most lanes are the tightest, those with fewer hold them. Where all are equally near, behind a
    switch, halves are made of them, as the scheduler's own table for Hopper has them: by these it keeps the
    large groups whole.
    """
    lanes = _lanes(devices)
    order = sorted(devices, key=lambda minor: (devices[minor].numa or 0, minor))
    counts = {count for its in lanes.values() for count in its.values() if count > 0}
    tiers = sorted(counts, reverse=True)[:_TIERS]
    found = [group for tier in tiers for group in _cliques(order, lanes, tier)]
    found += [half for group in found if not _holds(group, found) for half in _halves(group)]
    minors = sorted({tuple(sorted(group)) for group in found}, key=lambda it: (len(it), it))
    return tuple(LinkedCards(it, LINK_TYPES.get(vendor, OTHER_LINKS)) for it in minors)


def annotation(links: Sequence[LinkedCards]) -> str:
    """The annotation's value: the number of cards to the groups of so many, as JSON; empty without any.

    The score is a number, and the same for all: the scheduler takes what has the least first, though it says
    that it takes the most. A size stands once, as the second one would be all that counts.
    """
    table: dict[str, list[dict[str, Any]]] = {}
    for it in links:
        group = {"minors": list(it.minors), "gpuLinkType": it.type, "allocationScore": 1}
        table.setdefault(str(len(it.minors)), []).append(group)
    return json.dumps(table, separators=(",", ":")) if table else ""


def parsed(text: str) -> tuple[LinkedCards, ...]:
    """What such an annotation says, whoever wrote it; what is not understood is left out."""
    try:
        table = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    if not isinstance(table, dict):
        return ()
    found = [_group(it) for groups in table.values() if isinstance(groups, list) for it in groups]
    return tuple(it for it in found if it is not None)


def _group(told: Any) -> LinkedCards | None:
    if not isinstance(told, dict):
        return None
    minors, link = told.get("minors"), told.get("gpuLinkType", "")
    if not isinstance(minors, list) or not all(type(it) is int for it in minors) or not isinstance(link, str):
        return None
    return LinkedCards(tuple(sorted(minors)), link)


def _lanes(devices: Mapping[int, Device]) -> _Lanes:
    """What one side alone reports counts for both."""
    minor = {device.uuid: number for number, device in devices.items()}
    lanes: dict[int, dict[int, int]] = {number: {} for number in devices}
    for number, device in devices.items():
        for link in device.links:
            peer = minor.get(link.peer, number)
            if peer != number:
                count = max(link.lanes, lanes[number].get(peer, 0))
                lanes[number][peer] = lanes[peer][number] = count
    return lanes


def _cliques(order: Sequence[int], lanes: _Lanes, tier: int) -> Iterator[tuple[int, ...]]:
    """Groups of cards that have so many lanes each with each; a card is in one of them.

    Each takes in the nearest card that fits, which finds the quads of a cube and the groups of a switch.
    The best of all coverings may be another one, and would take for ever to find.
    """
    left = list(order)
    while left:
        taken = left[0]
        group, near = [taken], dict.fromkeys(left[1:], 0)
        while near := {
            it: weight + lanes[taken].get(it, 0)
            for it, weight in near.items()
            if lanes[taken].get(it, 0) >= tier
        }:
            taken = max(near, key=near.__getitem__)
            group.append(taken)
            del near[taken]
        left = [it for it in left if it not in group]
        if len(group) > 1:
            yield tuple(sorted(group, key=order.index))


def _holds(group: tuple[int, ...], others: Sequence[tuple[int, ...]]) -> bool:
    """Whether there are smaller groups within this one."""
    return any(set(it) < set(group) for it in others)


def _halves(group: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    size = len(group) // 2
    if len(group) % 2 or size < 2:
        return
    for half in (group[:size], group[size:]):
        yield half
        yield from _halves(half)
