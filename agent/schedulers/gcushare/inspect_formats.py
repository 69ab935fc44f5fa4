"""The allocated devices as GCUShare's schedulers show them at `/gcushare-scheduler/inspect`. Pure.

Source: GCUShare's user manual v1.2 (2024-04) for its first generation; for the fourth
EnflameTechnology/gcushare, gcushare-scheduler-plugin/src/v1/routers/inspect.go (ee04a65), and its answers
beside a real API server. The fourth generation shows an error for the whole node while a pod waits for its
devices.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from agent.vendor_api.agent import ContainerShare, Device, Format, ListedPod, NodeListing, NotShown
from agent.vendor_api.text import shorten

from .dialect_v4 import PROFILE, PROFILE_ID
from .names import ResourceNames

NAME, PATH = "gcushare", "/gcushare-scheduler/inspect"
#: The fourth generation shows slices of the hardware for the query `?drs=true` alone.
DRS = "drs"


def units_format(names: ResourceNames) -> Format:
    """The format of the first generation: units of memory."""
    return Format(NAME, partial(units, names), PATH)


def slices_format(names: ResourceNames) -> Format:
    """The format of the fourth generation: slices without isolation, or of the hardware, by the query."""
    return Format(NAME, partial(slices, names), PATH)


def drs_format(names: ResourceNames) -> Format:
    """The format of the fourth generation for slices of the hardware, without a query and without a path."""
    return Format(f"{NAME}-{DRS}", lambda it, node, _: slices(names, it, node, {DRS: "true"}))


def units(names: ResourceNames, listing: NodeListing, node: str, query: Mapping[str, str]) -> Any:
    """The answer of the first generation's extender: units of memory by card.

    Raises:
        NotShown: Another node is asked for, or this one counts no units.
    """
    cards = _cards(listing, names.memory)
    if node and (node != listing.node or not cards):
        raise NotShown({"error": _no_gcushare_node(node)})
    devices = [
        {"id": card.minor, **_amounts(total, had := _on(card, listing, names.memory)), "pods": _pods(had)}
        for card, total in cards
    ]
    return {"nodes": [{"name": listing.node, **_sums(devices), "devices": devices}] if cards else []}


def slices(names: ResourceNames, listing: NodeListing, node: str, query: Mapping[str, str]) -> Any:
    """The answer of the fourth generation's scheduler: one node as an object, all nodes as a list.

    Raises:
        NotShown: Another node is asked for, or this one has no such slices.
    """
    drs = query.get(DRS) == "true"
    name = names.drs if drs else names.shared
    cards = _cards(listing, name)
    if node and node != listing.node:
        raise NotShown({"name": node, "error": f"nodes {json.dumps(shorten(node))} not found"})
    if not cards:
        none = {"name": node, "error": _no_gcushare_node(node)}
        raise NotShown(none if node else {"error": "the gcushare nodes not found"})
    devices = {
        str(card.minor): {
            "virt": "DRS" if drs else "Shared",
            **_amounts(total, had := _on(card, listing, name)),
            "pods": _pods_of_the_fourth(had),
        }
        for card, total in cards
    }
    shown = {"name": listing.node, **_sums(devices.values()), "devices": devices}
    return shown if node else [shown]


def _no_gcushare_node(name: str) -> str:
    return f"node: {shorten(name)} is not the gcushare node"


def _cards(listing: NodeListing, resource: str) -> list[tuple[Device, int]]:
    """The cards of the resource by their numbers, each with the number of its IDs.

    A card that pods have by another resource is left out, as in GCUShare.
    """
    otherwise = {it.uuid for it in listing.shares if it.resource != resource}
    totals = {
        card.uuid: card.count
        for card in listing.counts
        if card.resource == resource and not card.mode and card.uuid not in otherwise
    }
    cards = [it for it in listing.devices if it.uuid in totals and it.minor is not None]
    return [(it, totals[it.uuid]) for it in sorted(cards, key=lambda it: it.minor or 0)]


def _on(card: Device, listing: NodeListing, resource: str) -> list[ContainerShare]:
    return [it for it in listing.shares if it.uuid == card.uuid and it.resource == resource]


def _amounts(total: int, had: Iterable[ContainerShare]) -> dict[str, int]:
    used = sum(it.count for it in had)
    return {"totalGCU": total, "usedGCU": used, "availableGCU": max(0, total - used)}


def _sums(devices: Collection[Mapping[str, Any]]) -> dict[str, int]:
    return {key: sum(it[key] for it in devices) for key in ("totalGCU", "usedGCU", "availableGCU")}


def _by_pod(had: Iterable[ContainerShare]) -> list[tuple[ListedPod, Sequence[ContainerShare]]]:
    """The pods in their order. Shares without a known pod count as used, and stand with no pod."""
    found: dict[ListedPod, list[ContainerShare]] = {}
    for share in had:
        if share.pod is not None:
            found.setdefault(share.pod, []).append(share)
    return [*found.items()]


def _pods(had: Iterable[ContainerShare]) -> list[dict[str, Any]]:
    return [
        {
            "name": pod.name,
            "namespace": pod.namespace,
            "uid": pod.uid,
            "createTime": _time(pod),
            "usedGCU": sum(it.count for it in holdings),
        }
        for pod, holdings in _by_pod(had)
    ]


def _pods_of_the_fourth(had: Iterable[ContainerShare]) -> list[dict[str, Any]]:
    return [
        {
            "name": pod.name,
            "namespace": pod.namespace,
            "uid": pod.uid,
            "creationTimestamp": _time(pod),
            "usedGCU": sum(it.count for it in holdings),
            "phase": "Pending" if pod.pending else "Running",
            "containers": {it.container: _record(it) for it in sorted(holdings, key=_container)},
        }
        for pod, holdings in _by_pod(had)
    ]


def _container(share: ContainerShare) -> str:
    return share.container


def _record(share: ContainerShare) -> dict[str, Any]:
    """The container in the form of GCUShare's annotation `assigned-containers`, without unknown keys."""
    id_, _, uuid = share.partitions[0].partition(":") if share.partitions else ("", "", "")
    record = {
        "allocated": share.allocated,
        "request": share.count,
        "profileID": share.parameters.get(PROFILE_ID, ""),
        "profileName": share.parameters.get(PROFILE, ""),
        "instanceID": id_,
        "instanceUUID": uuid,
    }
    return {key: value for key, value in record.items() if value != ""}


def _time(pod: ListedPod) -> str | None:
    """The time of the pod's creation as Kubernetes writes it; None where it is not known."""
    if pod.created is None:
        return None
    return datetime.fromtimestamp(int(pod.created), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
