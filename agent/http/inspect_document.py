"""The JSON document of /inspect. Fields may be added; those that are here stay."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from agent.core.allocation.reconcile_evidence import CheckpointAnswer
from agent.core.devices.memory_units import counted_in
from agent.core.model import (
    AbsentDevice,
    Allocation,
    AllocationState,
    Cordon,
    DeviceStatus,
    Owner,
    ProcessStatus,
    Resource,
    VendorStatus,
)
from agent.core.notices import PlacementMismatch
from agent.core.publishing.agent_status import AgentStatus, ApiServer, SchedulerReport
from agent.scheduler_api import Claim
from agent.vendor_api.agent import Link


def inspect(view: AgentStatus) -> dict[str, Any]:
    """Everything the view holds. Times are Unix seconds."""
    used, busy = allocated(view), _busy(view)
    return {
        "node": view.node,
        "version": view.version,
        "ready": not view.troubles,
        "standby": view.standby,
        "troubles": list(view.troubles),
        "config": {"source": view.config_source, "error": view.config_error},
        "checkpoint": {"error": view.checkpoint_error},
        "log": {"error": view.log_error},
        "evidence": {"errors": dict(view.evidence_errors)},
        "cdi": {"error": view.cdi_error},
        "labels": {"error": view.labels_error},
        "annotations": {"error": view.annotations_error},
        "extendedResources": {"error": view.extended_error},
        "receipts": {"error": view.receipts_error, "owed": view.receipts_owed},
        "locks": {"error": view.locks_error},
        "report": _report(view.reported),
        "apiServer": _api_server(view.api_server),
        "complaints": list(view.complaints),
        "doubts": list(view.doubts),
        "vendors": [_vendor(view, status) for status in view.snapshot.vendors],
        "devices": [_device(view, status, busy) for status in view.snapshot.devices],
        "absent": [_absent(device, busy) for device in view.snapshot.absent],
        "resources": [
            _resource(view, resource, used.get(name, 0)) for name, resource in sorted(view.resources.items())
        ],
        "allocations": [_allocation(allocation) for allocation in view.allocations],
        "unheeded": [_unheeded(it) for it in view.unheeded],
        "unknownCards": [_unknown(vendor, it) for vendor, it in view.unknown_cards],
    }


def _api_server(it: ApiServer | None) -> dict[str, Any] | None:
    if it is None:
        return None
    followed = {what: {"synced": each.synced, "error": each.error} for what, each in it.followed.items()}
    return {"address": it.address, "synced": it.synced, "error": it.error, "followed": followed}


def _report(it: SchedulerReport) -> dict[str, Any]:
    return {
        "mode": it.mode,
        "why": it.why,
        "vendor": it.vendor,
        "cards": it.cards,
        "healthy": it.healthy,
        "leftOut": list(it.left_out),
        "overwritten": it.overwritten,
        "error": it.error,
    }


def allocated(view: AgentStatus) -> Mapping[str, int]:
    """How many device IDs of each resource are in use; an ID that several hold counts once."""
    used: dict[str, set[str]] = {}
    for allocation in view.allocations:
        if allocation.state is not AllocationState.RELEASED:
            used.setdefault(allocation.resource, set()).update(allocation.ids)
    return {resource: len(ids) for resource, ids in used.items()}


def _vendor(view: AgentStatus, status: VendorStatus) -> dict[str, Any]:
    process = view.processes.get(status.name, ProcessStatus())
    return {
        "name": status.name,
        "state": str(status.state),
        "reason": status.reason,
        "pid": process.pid,
        "memoryBytes": process.memory,
        "memoryLimitBytes": process.memory_limit,
        "restarts": process.restarts,
        "breaker": process.breaker,
        "nextTry": None if process.next_try is None else _seconds(process.next_try),
        "stuck": process.stuck,
    }


def _busy(view: AgentStatus) -> frozenset[str]:
    """The devices in use."""
    held = (it for it in view.allocations if it.state is not AllocationState.RELEASED)
    return frozenset(uuid for it in held for uuid in it.cards)


def _device(view: AgentStatus, status: DeviceStatus, busy: Collection[str]) -> dict[str, Any]:
    device = status.device
    return {
        "vendor": status.vendor,
        "uuid": device.uuid,
        "index": device.index,
        "parent": device.parent,
        "slice": device.slice,
        "minor": device.minor,
        "pci": device.pci,
        "numa": device.numa,
        "memoryBytes": device.memory,
        "model": device.model,
        "paths": list(device.paths),
        "attributes": dict(device.attributes),
        "links": [_link(link) for link in device.links],
        "foreignSlices": view.foreign_slices.get((status.vendor, status.uuid), 0),
        "toldHealthy": status.told_healthy,
        **_word_on(status, busy),
    }


def _absent(device: AbsentDevice, busy: Collection[str]) -> dict[str, Any]:
    return {"vendor": device.vendor, "uuid": device.uuid, **_word_on(device, busy)}


def _word_on(it: DeviceStatus | AbsentDevice, busy: Collection[str]) -> dict[str, Any]:
    """What is known against a device: by the hardware, and by an operator."""
    health, cordon = it.health, it.cordon
    return {
        "health": {
            "state": str(health.state),
            "reason": health.reason,
            "message": health.message,
            "since": _seconds(health.since),
        },
        "clearedBy": [str(proof) for proof in it.cleared_by],
        "cordon": _cordon(cordon) if cordon else None,
        "inUse": it.uuid in busy,
    }


def _cordon(cordon: Cordon) -> dict[str, Any]:
    return {"author": cordon.author, "reason": cordon.reason, "since": _seconds(cordon.since)}


def _link(link: Link) -> dict[str, Any]:
    return {"peer": link.peer, "lanes": link.lanes, "distance": str(link.distance)}


def _resource(view: AgentStatus, resource: Resource, used: int) -> dict[str, Any]:
    session = view.sessions.get(resource.name)
    sharing = resource.rule.sharing
    return {
        "name": resource.name,
        "vendor": resource.vendor,
        "sharing": sharing.kind,
        "replicas": sharing.replicas,
        "failRequestsGreaterThanOne": sharing.fail_requests_greater_than_one,
        "unit": counted_in(sharing),
        "unitKept": kept[1] if (kept := view.kept_units.get(resource.name)) else "",
        "policy": resource.policy,
        "placement": resource.rule.placement,
        "capacity": resource.capacity,
        "allocatable": resource.allocatable,
        "allocated": used,
        "devices": [card.uuid for card in resource.cards],
        "kept": [it for card in resource.cards for it in card.kept],
        "retired": resource.retired,
        "inOtherMode": {card.uuid: card.mode for card in resource.cards if card.mode},
        "waits": list(view.waits.get(resource.name, ())),
        "session": session.state if session else "waiting",
        "sessionReason": session.reason if session else "",
        "registrations": session.registrations if session else 0,
        "foreign": view.other_plugins.get(resource.name, ""),
    }


def _allocation(allocation: Allocation) -> dict[str, Any]:
    return {
        "id": allocation.id,
        "resource": allocation.resource,
        "vendor": allocation.vendor,
        "ids": list(allocation.ids),
        "devices": list(allocation.cards),
        "diverged": bool(allocation.diverged),
        "unit": allocation.unit,
        "handed": None if allocation.handed is None else dict(allocation.handed),
        "owner": _owner(allocation.owner) if allocation.owner else None,
        "state": str(allocation.state),
        "source": allocation.source,
        "reason": allocation.reason,
        "since": _seconds(allocation.since),
        "partitions": list(allocation.partitions),
        "claim": _claim(allocation.claim) if allocation.claim else None,
    }


def _unknown(vendor: str, it: CheckpointAnswer) -> dict[str, Any]:
    return {
        "vendor": vendor,
        "resource": it.resource,
        "podUid": it.uid,
        "container": it.container,
        "ids": list(it.ids),
    }


def _unheeded(it: PlacementMismatch) -> dict[str, Any]:
    return {"namespace": it.pod.namespace, "pod": it.pod.name, "reason": it.why}


def _claim(claim: Claim) -> dict[str, Any]:
    return {
        "namespace": claim.namespace,
        "pod": claim.pod,
        "uid": claim.uid,
        "container": claim.container,
        "devices": list(claim.devices),
        "parameters": dict(claim.parameters),
        "dialect": claim.dialect,
        "remark": claim.remark,
    }


def _owner(owner: Owner) -> dict[str, Any]:
    return {
        "namespace": owner.namespace,
        "pod": owner.pod,
        "uid": owner.uid or None,
        "container": owner.container,
    }


def _seconds(moment: float) -> float:
    """Milliseconds are enough; JSON has no infinity."""
    return round(moment, 3) if math.isfinite(moment) else 0.0
