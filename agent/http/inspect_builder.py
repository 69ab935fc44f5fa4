"""Builds the document of /inspect from the status of the agent."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from agent.core.devices.memory_units import counted_in
from agent.core.event_notices import PlacementMismatch
from agent.core.model import (
    AbsentDevice,
    Allocation,
    AllocationState,
    Cordon,
    DeviceStatus,
    Health,
    Owner,
    ProcessStatus,
    Resource,
    VendorStatus,
)
from agent.core.publishing.agent_status import AgentStatus, ApiServer, SchedulerReport
from agent.core.reconciling.reconcile_evidence import CheckpointAnswer
from agent.http.inspect_document import (
    InspectDocument,
    InspectedAbsentDevice,
    InspectedAllocation,
    InspectedApiServer,
    InspectedClaim,
    InspectedConfig,
    InspectedCordon,
    InspectedDevice,
    InspectedError,
    InspectedEvidence,
    InspectedHealth,
    InspectedLink,
    InspectedList,
    InspectedMismatch,
    InspectedOwner,
    InspectedReceipts,
    InspectedReport,
    InspectedResource,
    InspectedUnknownCard,
    InspectedUse,
    InspectedVendor,
)
from agent.http.shown_figures import rounded, seconds_since
from agent.scheduler_api import Claim
from agent.vendor_api.agent import Link

if TYPE_CHECKING:  # nodes without sampling do not import the values
    from agent.core.usage.usage_report import ContainerUse
    from agent.http.usage.joined_usage import JoinedUsage


def inspect_document(status: AgentStatus) -> InspectDocument:
    """Everything that the status says to people."""
    used, cards_in_use = allocated_ids(status), _cards_in_use(status)
    return InspectDocument(
        node=status.node,
        version=status.version,
        ready=not status.troubles,
        standby=status.standby,
        troubles=status.troubles,
        config=InspectedConfig(source=status.config_source, error=status.config_error),
        checkpoint=InspectedError(error=status.checkpoint_error),
        log=InspectedError(error=status.log_error),
        evidence=InspectedEvidence(errors=dict(status.evidence_errors)),
        cdi=InspectedError(error=status.cdi_error),
        labels=InspectedError(error=status.labels_error),
        annotations=InspectedError(error=status.annotations_error),
        extended_resources=InspectedError(error=status.extended_error),
        receipts=InspectedReceipts(error=status.receipts_error, owed=status.receipts_owed),
        locks=InspectedError(error=status.locks_error),
        report=_report(status.reported),
        api_server=_api_server(status.api_server) if status.api_server else None,
        complaints=status.complaints,
        doubts=status.doubts,
        vendors=tuple(_vendor(status, vendor) for vendor in status.snapshot.vendors),
        devices=tuple(_device(status, device, cards_in_use) for device in status.snapshot.devices),
        absent=tuple(_absent(device, cards_in_use) for device in status.snapshot.absent),
        resources=tuple(
            _resource(status, resource, used.get(name, 0))
            for name, resource in sorted(status.resources.items())
        ),
        allocations=tuple(_allocations(status)),
        unheeded=tuple(_mismatch(mismatch) for mismatch in status.placement_mismatches),
        unknown_cards=tuple(_unknown_card(vendor, answer) for vendor, answer in status.unknown_cards),
    )


def allocated_ids(status: AgentStatus) -> Mapping[str, int]:
    """Resource to how many of its device IDs are in use; an ID that several allocations have counts once."""
    used: dict[str, set[str]] = {}
    for allocation in status.allocations:
        if allocation.state is not AllocationState.RELEASED:
            used.setdefault(allocation.resource, set()).update(allocation.ids)
    return {resource: len(ids) for resource, ids in used.items()}


def _cards_in_use(status: AgentStatus) -> frozenset[str]:
    held = (it for it in status.allocations if it.state is not AllocationState.RELEASED)
    return frozenset(uuid for allocation in held for uuid in allocation.cards)


def _api_server(server: ApiServer) -> InspectedApiServer:
    return InspectedApiServer(
        address=server.address,
        synced=server.synced,
        error=server.error,
        followed={
            kind: InspectedList(synced=followed.synced, error=followed.error)
            for kind, followed in server.followed.items()
        },
    )


def _report(report: SchedulerReport) -> InspectedReport:
    return InspectedReport(
        mode=report.mode,
        why=report.why,
        vendor=report.vendor,
        cards=report.cards,
        healthy=report.healthy,
        left_out=report.left_out,
        overwritten=report.overwritten,
        error=report.error,
    )


def _vendor(status: AgentStatus, vendor: VendorStatus) -> InspectedVendor:
    process = status.processes.get(vendor.name, ProcessStatus())
    return InspectedVendor(
        name=vendor.name,
        state=str(vendor.state),
        reason=vendor.reason,
        pid=process.pid,
        memory_bytes=process.memory,
        memory_limit_bytes=process.memory_limit,
        restarts=process.restarts,
        breaker=process.breaker,
        next_try=None if process.next_try is None else _seconds(process.next_try),
        stuck=process.stuck,
    )


def _device(status: AgentStatus, listed: DeviceStatus, cards_in_use: Collection[str]) -> InspectedDevice:
    device = listed.device
    return InspectedDevice(
        vendor=listed.vendor,
        uuid=device.uuid,
        index=device.index,
        parent=device.parent,
        slice=device.slice,
        minor=device.minor,
        pci=device.pci,
        numa=device.numa,
        memory_bytes=device.memory,
        model=device.model,
        paths=device.paths,
        attributes=dict(device.attributes),
        links=tuple(_link(link) for link in device.links),
        foreign_slices=status.foreign_slices.get((listed.vendor, listed.uuid), 0),
        told_healthy=listed.told_healthy,
        health=_health(listed.health),
        cleared_by=tuple(str(proof) for proof in listed.cleared_by),
        cordon=_cordon(listed.cordon) if listed.cordon else None,
        in_use=listed.uuid in cards_in_use,
    )


def _absent(device: AbsentDevice, cards_in_use: Collection[str]) -> InspectedAbsentDevice:
    return InspectedAbsentDevice(
        vendor=device.vendor,
        uuid=device.uuid,
        health=_health(device.health),
        cleared_by=tuple(str(proof) for proof in device.cleared_by),
        cordon=_cordon(device.cordon) if device.cordon else None,
        in_use=device.uuid in cards_in_use,
    )


def _health(health: Health) -> InspectedHealth:
    return InspectedHealth(
        state=str(health.state), reason=health.reason, message=health.message, since=_seconds(health.since)
    )


def _cordon(cordon: Cordon) -> InspectedCordon:
    return InspectedCordon(author=cordon.author, reason=cordon.reason, since=_seconds(cordon.since))


def _link(link: Link) -> InspectedLink:
    return InspectedLink(peer=link.peer, lanes=link.lanes, distance=str(link.distance))


def _resource(status: AgentStatus, resource: Resource, used: int) -> InspectedResource:
    session = status.sessions.get(resource.name)
    sharing = resource.rule.sharing
    kept_unit = status.kept_units.get(resource.name)
    return InspectedResource(
        name=resource.name,
        vendor=resource.vendor,
        sharing=sharing.kind,
        replicas=sharing.replicas,
        fail_requests_greater_than_one=sharing.fail_requests_greater_than_one,
        unit=counted_in(sharing),
        unit_kept=kept_unit[1] if kept_unit else "",
        policy=resource.policy,
        placement=resource.rule.placement,
        capacity=resource.capacity,
        allocatable=resource.allocatable,
        allocated=used,
        devices=tuple(card.uuid for card in resource.cards),
        kept=tuple(id for card in resource.cards for id in card.kept),
        retired=resource.retired,
        in_other_mode={card.uuid: card.mode for card in resource.cards if card.mode},
        waits=status.resource_waits.get(resource.name, ()),
        session=session.state if session else "waiting",
        session_reason=session.reason if session else "",
        registrations=session.registrations if session else 0,
        foreign=status.other_plugins.get(resource.name, ""),
    )


def _allocations(status: AgentStatus) -> Iterator[InspectedAllocation]:
    joined = _joined(status)
    for allocation in status.allocations:
        uses = [_use(joined, it) for it in joined.uses_of(allocation)] if joined is not None else ()
        yield _allocation(allocation, uses)


def _joined(status: AgentStatus) -> JoinedUsage | None:
    """The use of the cards; None where use is not sampled."""
    if status.usage is None:
        return None
    # Imported here: nodes without sampling do not load what joins their use.
    from agent.http.usage.joined_usage import JoinedUsage

    return JoinedUsage(status, status.usage)


def _use(joined: JoinedUsage, use: ContainerUse) -> InspectedUse:
    now = joined.report.now
    return InspectedUse(
        uuid=use.uuid,
        age_seconds=seconds_since(joined.sampled_at(use.vendor), now),
        processes=use.processes,
        memory_bytes=use.memory,
        memory_limit_bytes=use.memory_limit,
        utilization=rounded(use.utilization),
        compute_limit=rounded(use.compute_limit),
        idle_seconds=seconds_since(use.active_at, now),
    )


def _allocation(allocation: Allocation, uses: Sequence[InspectedUse]) -> InspectedAllocation:
    return InspectedAllocation(
        id=allocation.id,
        resource=allocation.resource,
        vendor=allocation.vendor,
        ids=allocation.ids,
        devices=allocation.cards,
        diverged=bool(allocation.diverged),
        unit=allocation.unit,
        handed=None if allocation.handed is None else dict(allocation.handed),
        owner=_owner(allocation.owner) if allocation.owner else None,
        state=str(allocation.state),
        source=allocation.source,
        reason=allocation.reason,
        since=_seconds(allocation.since),
        partitions=allocation.partitions,
        claim=_claim(allocation.claim) if allocation.claim else None,
        use=tuple(uses),
    )


def _owner(owner: Owner) -> InspectedOwner:
    return InspectedOwner(
        namespace=owner.namespace, pod=owner.pod, uid=owner.uid or None, container=owner.container
    )


def _claim(claim: Claim) -> InspectedClaim:
    return InspectedClaim(
        namespace=claim.namespace,
        pod=claim.pod,
        uid=claim.uid,
        container=claim.container,
        devices=claim.devices,
        parameters=dict(claim.parameters),
        dialect=claim.dialect,
        remark=claim.remark,
    )


def _mismatch(mismatch: PlacementMismatch) -> InspectedMismatch:
    return InspectedMismatch(namespace=mismatch.pod.namespace, pod=mismatch.pod.name, reason=mismatch.why)


def _unknown_card(vendor: str, answer: CheckpointAnswer) -> InspectedUnknownCard:
    return InspectedUnknownCard(
        vendor=vendor,
        resource=answer.resource,
        pod_uid=answer.uid,
        container=answer.container,
        ids=answer.ids,
    )


def _seconds(moment: float) -> float:
    """Milliseconds are enough; JSON has no infinity."""
    return round(moment, 3) if math.isfinite(moment) else 0.0
