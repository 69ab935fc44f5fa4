"""The Device: the API object with which Koordinator knows the cards of a node.

Source: koordinator config/crd/bases/scheduling.koordinator.sh_devices.yaml, and for what koordlet writes
pkg/koordlet/statesinformer/impl/states_device_linux.go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from agent.scheduler_api.document_parts import part_of, rows_of, text
from agent.scheduler_api.node_report import Report, ReportedCard, Status
from agent.scheduler_api.quantities import whole
from agent.schedulers.common.resource_names import CORE, MEMORY, RATIO, WHOLE, quantity
from agent.schedulers.koordinator import gpu_partitions
from agent.schedulers.koordinator.reported_cards import LABELS, MAX_MINOR

GROUP, VERSION, KIND, PLURAL = "scheduling.koordinator.sh", "v1alpha1", "Device", "devices"
API_VERSION = f"{GROUP}/{VERSION}"

_NODE = "node.koordinator.sh/"
VENDOR, MODEL, DRIVER = f"{_NODE}gpu-vendor", f"{_NODE}gpu-model", f"{_NODE}gpu-driver-version"
POLICY, PREFER = f"{_NODE}gpu-partition-policy", "Prefer"

#: The type of every accelerator in a Device. Entries of other types are other writers'.
_GPU = "gpu"
_HEALTHY = "Healthy"
_OWN = frozenset({CORE, MEMORY, RATIO})

_Object = Mapping[str, Any]


def device(
    node: str, uid: str, report: Report, existing: _Object | None, now: float
) -> dict[str, Any] | None:
    """The Device to create (`existing` None) or to PUT; None where the existing one is right.

    `uid`: of the Node, which owns the Device. `now`: Unix seconds, for conditions that change. An object to
    PUT has the resourceVersion of `existing`. Entries of other types, labels and annotations of others, and
    other owners stay as they are. A Device that is being deleted is left alone.
    """
    present = existing if existing is not None else {}
    metadata, spec = part_of(present, "metadata"), part_of(present, "spec")
    if metadata.get("deletionTimestamp"):
        return None
    before = part_of(metadata, "labels").get(VENDOR, report.vendor)
    fresh = {
        **_without(metadata, "managedFields"),
        "name": node,
        "labels": _labels(metadata, report),
        "annotations": gpu_partitions.annotations_with(existing, report, before),
        "ownerReferences": _owners(metadata, node, uid),
    }
    entries = _sorted(_entries(spec, report, _time(now)))
    same = [part_of(metadata, "labels"), part_of(metadata, "annotations")] == [
        fresh["labels"],
        fresh["annotations"],
    ]
    owned = _list(metadata.get("ownerReferences")) == fresh["ownerReferences"]
    if existing is not None and same and owned and _list(spec.get("devices")) == entries:
        return None
    return {
        **present,
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {key: it for key, it in fresh.items() if it or key in metadata},
        "spec": {**spec, "devices": entries},
    }


def without_cards(existing: _Object) -> dict[str, Any] | None:
    """The Device to PUT once the cards are reported no more; None where no device of another type is left.

    Devices of other types stay, with all that others wrote.
    """
    metadata, spec = part_of(existing, "metadata"), part_of(existing, "spec")
    others = [it for it in _list(spec.get("devices")) if _mapping(it).get("type") != _GPU]
    if not others:
        return None
    labels = _without(part_of(metadata, "labels"), VENDOR, MODEL, DRIVER)
    if labels.get(POLICY) == PREFER:
        del labels[POLICY]
    annotations = gpu_partitions.annotations_without(existing)
    kept = {**_without(metadata, "managedFields"), "labels": labels, "annotations": annotations}
    return {**existing, "metadata": kept, "spec": {**spec, "devices": others}}


def report_in(existing: _Object | None) -> Report | None:
    """The report in a Device of any author; None where it has no card. Malformed entries are left out."""
    if existing is None:
        return None
    metadata = part_of(existing, "metadata")
    labels = part_of(metadata, "labels")
    vendor, model, driver = (text(labels, key) for key in (VENDOR, MODEL, DRIVER))
    found: dict[int, ReportedCard] = {}
    for entry in rows_of(part_of(existing, "spec"), "devices"):
        card = _card(entry)
        if card is not None:
            found.setdefault(card.minor, card)
    links = gpu_partitions.parsed(text(part_of(metadata, "annotations"), gpu_partitions.ANNOTATION))
    cards = tuple(found[minor] for minor in sorted(found))
    return Report(vendor, cards, model, driver, links) if cards else None


def _labels(metadata: _Object, report: Report) -> dict[str, Any]:
    """The labels. A policy of another author stays; without links the agent's policy is removed."""
    labels = _without(part_of(metadata, "labels"), VENDOR, MODEL, DRIVER)
    reported = {VENDOR: report.vendor, MODEL: report.model, DRIVER: report.driver}
    if report.links:
        labels.setdefault(POLICY, PREFER)
    elif labels.get(POLICY) == PREFER:
        del labels[POLICY]
    return {**labels, **{key: value for key, value in reported.items() if value}}


def _owners(metadata: _Object, node: str, uid: str) -> list[Any]:
    """The owners, with the Node of this uid, so that the Device is deleted with the Node."""
    present = _list(metadata.get("ownerReferences"))
    if not uid:
        return present
    others = [it for it in present if not _is_node(_mapping(it), node)]
    # The API server allows one controller.
    controls = not any(_mapping(it).get("controller") for it in others)
    reference = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}
    # No blockOwnerDeletion: an admission plugin of Kubernetes demands a right on nodes/finalizers for it.
    own = {**reference, "controller": controls}
    kept = [it for it in present if _is_node(_mapping(it), node) and _mapping(it).get("uid") == uid]
    return present if kept and len(others) + 1 == len(present) else [*others, own]


def _is_node(owner: _Object, node: str) -> bool:
    return owner.get("apiVersion") == "v1" and owner.get("kind") == "Node" and owner.get("name") == node


def _entries(spec: _Object, report: Report, now: str) -> list[Any]:
    present = _list(spec.get("devices"))
    foreign = [it for it in present if _mapping(it).get("type") != _GPU]
    own_entries = {text(it, "id"): it for it in map(_mapping, present) if it.get("type") == _GPU}
    return [*foreign, *(_entry(it, own_entries.get(it.uuid, {}), now) for it in report.cards)]


def _entry(card: ReportedCard, present: _Object, now: str) -> dict[str, Any]:
    """The card's entry. Values that others added, such as a moduleID or labels, stay."""
    others = {key: it for key, it in part_of(present, "labels").items() if not key.startswith(LABELS)}
    memory = {MEMORY: quantity(card.memory)} if card.memory else {}
    entry = {
        **present,
        "type": _GPU,
        "id": card.uuid,
        "minor": card.minor,
        "health": card.healthy,
        "labels": {**others, **card.labels},
        "resources": {CORE: WHOLE, **memory, RATIO: WHOLE, **card.resources},
        "topology": {"socketID": -1, "nodeID": card.numa, "pcieID": card.pcie, "busID": card.pci},
        "conditions": _conditions(card, _list(present.get("conditions")), now),
    }
    return entry if entry["labels"] else _without(entry, "labels")


def _conditions(card: ReportedCard, present: Sequence[Any], now: str) -> list[Any]:
    own = next((it for it in map(_mapping, present) if it.get("type") == _HEALTHY), {})
    since = text(own, "lastTransitionTime") if own.get("status") == card.status else ""
    condition = {
        "type": _HEALTHY,
        "status": card.status,
        "reason": card.reason or ("DeviceHealthy" if card.healthy else "Unknown"),
        "message": card.message or ("device is healthy" if card.healthy else "device is unhealthy"),
        "lastTransitionTime": since or now,
    }
    others = [it for it in present if _mapping(it).get("type") != _HEALTHY]
    return [{**own, **condition}, *others]


def _card(entry: _Object) -> ReportedCard | None:
    uuid, minor = text(entry, "id"), entry.get("minor")
    if entry.get("type") != _GPU or not uuid or type(minor) is not int or not 0 <= minor <= MAX_MINOR:
        return None
    topology, resources = part_of(entry, "topology"), part_of(entry, "resources")
    labels, numa = part_of(entry, "labels"), topology.get("nodeID")
    condition = next((it for it in rows_of(entry, "conditions") if it.get("type") == _HEALTHY), {})
    healthy = entry.get("health") is True
    status: Status = "True" if healthy else "False"
    if condition.get("status") == "Unknown":
        status = "Unknown"
    return ReportedCard(
        uuid=uuid,
        minor=minor,
        healthy=healthy,
        status=status,
        reason="" if status == "True" else text(condition, "reason"),
        message="" if status == "True" else text(condition, "message"),
        memory=whole(resources.get(MEMORY, "")) or 0,
        model=text(labels, f"{LABELS}model"),
        numa=numa if type(numa) is int else -1,
        pcie=text(topology, "pcieID"),
        pci=text(topology, "busID"),
        labels={key: text(labels, key) for key in labels if key.startswith(LABELS)},
        resources={key: str(it) for key, it in resources.items() if key not in _OWN},
    )


def _sorted(entries: list[Any]) -> list[Any]:
    """The entries in koordlet's order: by type, then by minor."""

    def place(entry: _Object) -> tuple[str, int]:
        minor = entry.get("minor")
        return text(entry, "type"), minor if type(minor) is int else -1

    return sorted(entries, key=lambda it: place(_mapping(it)))


def _time(now: float) -> str:
    return datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _mapping(value: Any) -> _Object:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def _without(mapping: _Object, *keys: str) -> dict[str, Any]:
    return {key: it for key, it in mapping.items() if key not in keys}
