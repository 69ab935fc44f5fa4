"""Groups of cards that are linked directly: the annotation gpu-partitions, and the p2pLinks of a file.

Groups that an operator wrote by hand stay.

Source: koordinator apis/extension/device_share.go (GPUPartition), and for what the scheduler makes of it
pkg/scheduler/plugins/deviceshare/allocator_gpu.go.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agent.scheduler_api.document_parts import part_of, text
from agent.scheduler_api.managed_fields import AGENT_MANAGER, entries
from agent.scheduler_api.node_report import LinkedCards, Report
from agent.schedulers.koordinator.koordlet_signs import NAME as KOORDLET
from agent.vendor_api.agent import Device

#: The Device's annotation with the groups.
ANNOTATION = "scheduling.koordinator.sh/gpu-partitions"

#: Vendor to its type of link (koordinator's constant, Ascend's document, recorded from MetaX).
LINK_TYPES = {"nvidia": "NVLink", "metax": "MetaXLink", "huawei": "HCCS"}
OTHER_LINKS = "P2P"

#: Most numbers of lanes that are told apart on one node.
_TIERS = 8

#: Minor to the lanes to each linked card, by its minor.
_Lanes = Mapping[int, Mapping[int, int]]


def groups(devices: Mapping[int, Device], vendor: str) -> tuple[LinkedCards, ...]:
    """The groups of directly linked cards, small groups first; `devices` by minor.

    Groups with more lanes lie within groups with fewer. A group without smaller groups, such as all cards
    behind one switch, is halved again and again, as in the scheduler's own table for Hopper. By the halves
    the scheduler keeps large groups free.
    """
    lanes = _lanes(devices)
    order = sorted(devices, key=lambda minor: (devices[minor].numa or 0, minor))
    counts = {count for peers in lanes.values() for count in peers.values() if count > 0}
    tiers = sorted(counts, reverse=True)[:_TIERS]
    found = [group for tier in tiers for group in _cliques(order, lanes, tier)]
    found += [half for group in found if not _holds(group, found) for half in _halves(group)]
    minors = sorted({tuple(sorted(group)) for group in found}, key=lambda it: (len(it), it))
    return tuple(LinkedCards(it, LINK_TYPES.get(vendor, OTHER_LINKS)) for it in minors)


def annotation(links: Sequence[LinkedCards]) -> str:
    """The annotation's value, JSON: size to the groups of that size; empty without groups.

    All groups have the same score: the scheduler takes the lowest score first, though its documents say the
    highest. Each size is one key, because of a repeated key only the last value counts.
    """
    table: dict[str, list[dict[str, Any]]] = {}
    for link in links:
        group = {"minors": list(link.minors), "gpuLinkType": link.type, "allocationScore": 1}
        table.setdefault(str(len(link.minors)), []).append(group)
    return json.dumps(table, separators=(",", ":")) if table else ""


def parsed(text: str) -> tuple[LinkedCards, ...]:
    """The groups in an annotation of any author. Parts that make no sense are left out."""
    try:
        table = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    if not isinstance(table, dict):
        return ()
    found = [_group(it) for groups in table.values() if isinstance(groups, list) for it in groups]
    return tuple(it for it in found if it is not None)


def annotations_with(device: Mapping[str, Any] | None, report: Report, before: str) -> dict[str, Any]:
    """The annotations of the Device with the groups of the report. `before`: the vendor that the Device has.

    An operator's groups stay. Where no links are known, existing groups of reported cards stay, too.
    """
    annotations = _annotations(device)
    if is_by_hand(device):
        return annotations
    present = parsed(text(annotations, ANNOTATION))
    minors = {card.minor for card in report.cards}
    if report.links:
        if present != report.links:
            annotations[ANNOTATION] = annotation(report.links)
    elif before != report.vendor or not all(minors.issuperset(it.minors) for it in present):
        annotations.pop(ANNOTATION, None)
    return annotations


def annotations_without(device: Mapping[str, Any]) -> dict[str, Any]:
    """The annotations of the Device without groups; an operator's groups stay."""
    annotations = _annotations(device)
    if not is_by_hand(device):
        annotations.pop(ANNOTATION, None)
    return annotations


def is_by_hand(device: Mapping[str, Any] | None) -> bool:
    """Whether an operator wrote the groups of the Device; the groups of a koordlet are the agent's."""
    path = ("metadata", "annotations", ANNOTATION)
    return any(it.owns(*path) and it.manager not in (AGENT_MANAGER, KOORDLET) for it in entries(device))


def _annotations(device: Mapping[str, Any] | None) -> dict[str, Any]:
    return dict(part_of(part_of(device, "metadata"), "annotations"))


def _group(value: Any) -> LinkedCards | None:
    if not isinstance(value, dict):
        return None
    minors, link = value.get("minors"), value.get("gpuLinkType", "")
    if not isinstance(minors, list) or not all(type(it) is int for it in minors) or not isinstance(link, str):
        return None
    return LinkedCards(tuple(sorted(minors)), link)


def _lanes(devices: Mapping[int, Device]) -> _Lanes:
    """The lanes between each two cards. A link that one of both cards reports counts for both."""
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
    """Groups in which each two cards have at least `tier` lanes; no card is in two groups.

    A group grows by the nearest card that fits. That finds the quads of a cube and the groups of a switch. A
    better covering may exist; to search for it would take too long.
    """
    left = list(order)
    while left:
        taken = left[0]
        group, near = [taken], dict.fromkeys(left[1:], 0)
        while near := {
            minor: weight + lanes[taken].get(minor, 0)
            for minor, weight in near.items()
            if lanes[taken].get(minor, 0) >= tier
        }:
            taken = max(near, key=near.__getitem__)
            group.append(taken)
            del near[taken]
        left = [it for it in left if it not in group]
        if len(group) > 1:
            yield tuple(sorted(group, key=order.index))


def _holds(group: tuple[int, ...], others: Sequence[tuple[int, ...]]) -> bool:
    """Whether one of the other groups lies within this group."""
    return any(set(it) < set(group) for it in others)


def _halves(group: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    size = len(group) // 2
    if len(group) % 2 or size < 2:
        return
    for half in (group[:size], group[size:]):
        yield half
        yield from _halves(half)
