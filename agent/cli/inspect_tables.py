"""`inspect` for people: the document of /inspect as tables, and the topology as a tree."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TextIO

from agent.cli.inspect_cells import (
    age,
    brief,
    cordoned_by,
    foreign_slices,
    health_reason,
    memory,
    place,
    pod,
    share,
    use,
)
from agent.cli.topology_tree import topology
from agent.core.named_list import named_list
from agent.daemon.scheduler_plugins import registered
from agent.host import terminal
from agent.http.inspect_document import (
    InspectDocument,
    InspectedAllocation,
    InspectedDevice,
    InspectedReport,
    InspectedResource,
)
from agent.scheduler_api.scheduler import reporting

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

#: Pods that the row of a resource names beside its kept IDs; the table of allocations has all.
MAX_NAMED_PODS = 5
#: Sentences on cards that are left out of a scheduler's report; --json has all.
MAX_SHOWN_SENTENCES = 5


def show(document: InspectDocument, stream: TextIO | None = None, now: float | None = None) -> None:
    """Print the document: with colors on a terminal, plain elsewhere. `now` is Unix time in seconds."""
    terminal.show(render(document, time.time() if now is None else now), stream)


def as_text(document: InspectDocument, now: float, width: int = terminal.PIPE_WIDTH) -> str:
    """The document as plain text."""
    return terminal.plain(render(document, now), width)


def render(document: InspectDocument, now: float) -> list[RenderableType]:
    """All parts of the output, in the order in which an operator reads them."""
    parts: list[RenderableType] = [_heading(document)]
    parts += [terminal.styled(f"! {trouble}", "yellow") for trouble in _troubles(document)]
    parts += _api_server(document)
    parts += _report(document.report)
    columns = ["vendor", "state", "memory", "restarts", "breaker", "reason"]
    parts.append(terminal.table("vendors", columns, _vendors(document)))
    columns = ["vendor", "index", "uuid", "model", "memory", "numa", "health", "reason", "since"]
    parts.append(terminal.table("devices", columns, [_device(device, now) for device in document.devices]))
    columns = ["resource", "sharing", "capacity", "allocatable", "allocated", "session", "reason"]
    rows = [_resource(resource, document) for resource in document.resources]
    parts.append(terminal.table("resources", columns, rows))
    parts.append(_allocations(document, now))
    parts += _schedulers(document)
    if document.devices:
        parts.append(topology(document.devices))
    return parts


def _heading(document: InspectDocument) -> Text:
    ready = "ready" if document.ready else "not ready"
    state = f"standby: {document.standby}" if document.standby else ready
    heading = f"node {document.node or '?'}, xpu-agent {document.version or '?'}, {state}"
    source = document.config.source
    return terminal.styled(f"{heading}, config {source}" if source else heading, "bold")


def _troubles(document: InspectDocument) -> Iterator[str]:
    """Each sentence once: an error of the config, for instance, is a trouble too while no config is good."""
    errors = {
        "config": document.config.error,
        "checkpoint": document.checkpoint.error,
        "log": document.log.error,
        "receipts": document.receipts.error,
        "locks": document.locks.error,
        "report": document.report.error,
    }
    named = [*errors.items(), *document.evidence.errors.items()]
    sentences = (f"{name}: {error}" for name, error in named if error)
    yield from dict.fromkeys([*document.troubles, *sentences, *document.doubts])


def _api_server(document: InspectDocument) -> Iterator[Text]:
    """What the loss of the API server means for pods."""
    if document.api_server is None or not document.api_server.error:
        return
    is_needed = any(resource.placement == "claim" for resource in document.resources)
    harm = "pods wait for a scheduler's choice, which it has" if is_needed else "nothing waits for it"
    sentence = f"the API server tells nothing new, and {harm}: {document.api_server.error}"
    yield terminal.styled(sentence, "yellow")


def _report(report: InspectedReport) -> Iterator[Text]:
    """The report of the cards to a scheduler, without a line where no scheduler waits for one."""
    reported_to = reporting(registered())
    if reported_to is None:
        return
    scheduler = reported_to.scheduler
    if report.mode in ("device", "feed"):
        cards = f"{report.cards} cards of {report.vendor or 'no vendor'}"
        yield terminal.styled(
            f"{cards}, {report.healthy} healthy, are reported to {scheduler} by {report.mode}: {report.why}"
        )
    elif report.mode == "none" and report.why not in reported_to.unconcerned:
        yield terminal.styled(f"no card is reported to {scheduler}: {report.why}", "yellow")
    if report.overwritten:
        program, kind = reported_to.program, reported_to.object.kind
        yield terminal.styled(f"! a {program} overwrote the {kind} that the agent had written", "yellow")
    for sentence in report.left_out[:MAX_SHOWN_SENTENCES]:
        yield terminal.styled(f"! {sentence}", "yellow")
    if (more := len(report.left_out) - MAX_SHOWN_SENTENCES) > 0:
        yield terminal.styled(f"! and {more} more that are not reported to {scheduler}", "yellow")


def _vendors(document: InspectDocument) -> list[list[Any]]:
    return [
        [
            *(vendor.name, vendor.state, memory(vendor.memory_bytes)),
            *(vendor.restarts, vendor.breaker, brief(vendor.reason)),
        ]
        for vendor in document.vendors
    ]


def _device(device: InspectedDevice, now: float) -> list[Any]:
    reasons = (health_reason(device), cordoned_by(device.cordon), foreign_slices(device))
    return [
        *(device.vendor, place(device), device.uuid, device.model),
        *(memory(device.memory_bytes), device.numa),
        *(device.health.state, brief("; ".join(filter(None, reasons))), age(device.health.since, now)),
    ]


def _resource(resource: InspectedResource, document: InspectDocument) -> list[Any]:
    is_replicated = resource.sharing == "replicas" and resource.replicas
    sharing = f"replicas x{resource.replicas}" if is_replicated else resource.sharing
    sharing = f"{sharing}, {resource.unit} GiB" if resource.unit else sharing
    session = f"{resource.session} (retired)" if resource.retired else resource.session
    reasons = (
        resource.session_reason or resource.foreign,
        resource.unit_kept,
        _kept_ids(resource, document),
        _in_other_mode(resource),
        *resource.waits,
    )
    counts = (resource.capacity, resource.allocatable, resource.allocated)
    return [resource.name, sharing, *counts, session, "; ".join(filter(None, reasons))]


def _kept_ids(resource: InspectedResource, document: InspectDocument) -> str:
    """Why the resource lists IDs that the config does not make of its cards."""
    ids = frozenset(resource.kept)
    if not ids:
        return ""
    held = (it for it in document.in_use if it.resource == resource.name and not ids.isdisjoint(it.ids))
    named = list(dict.fromkeys(pod(allocation.owner) or "one not known yet" for allocation in held))
    reason = f"kept for pods of an earlier config ({named_list(named, MAX_NAMED_PODS)})"
    return f"IDs {reason}: {len(ids)}, listed until they are gone"


def _in_other_mode(resource: InspectedResource) -> str:
    """How many cards of the resource other resources have for now."""
    modes = Counter(resource.in_other_mode.values())
    return ", ".join(f"cards given out as {name}: {count}" for name, count in sorted(modes.items()))


def _allocations(document: InspectDocument, now: float) -> Table:
    """The allocations that are not over, with their use where use is sampled."""
    columns = ["resource", "devices", "pod", "container", "state", "since", "allocation"]
    rows = [_allocation(allocation, now) for allocation in document.in_use]
    if any(allocation.use for allocation in document.in_use):
        columns.insert(4, "use")
        for row, allocation in zip(rows, document.in_use, strict=True):
            row.insert(4, use(allocation.use))
    return terminal.table("allocations", columns, rows)


def _allocation(allocation: InspectedAllocation, now: float) -> list[Any]:
    owner = allocation.owner
    return [
        allocation.resource,
        ", ".join(allocation.devices),
        pod(owner),
        owner.container if owner else "",
        ": ".join(text for text in (allocation.state, allocation.reason) if text),
        age(allocation.since, now),
        allocation.id,
    ]


def _schedulers(document: InspectDocument) -> Iterator[RenderableType]:
    """Tables of what schedulers chose and of what came of it, each only where it has a row."""
    chosen = [it for it in document.in_use if it.claim or it.handed]
    if chosen:
        columns = ["allocation", "promised to", "by", "cards", "share", "remark"]
        yield terminal.table("what schedulers chose", columns, [_choice(it) for it in chosen])
    if unknown := [[answer.pod_uid, answer.resource] for answer in document.unknown_cards]:
        yield terminal.table("pods with cards that are not here", ["pod uid", "resource"], unknown)
    if mismatches := [[pod(mismatch), mismatch.reason] for mismatch in document.unheeded]:
        yield terminal.table("placement mismatches", ["pod", "reason"], mismatches)


def _choice(allocation: InspectedAllocation) -> list[Any]:
    """What a scheduler promised, and in what the container's devices differ from that."""
    claim, handed = allocation.claim, allocation.handed
    remarks = (
        "the pod asks no device plugin" if allocation.source == "annotation" else "",
        "on another card than its device IDs name" if allocation.diverged else "",
        "" if handed is None else f"its container was given {share(handed)}",
        claim.remark if claim else "",
    )
    promise: tuple[str, ...] = ("", "", "", "")
    if claim is not None:
        container = "/".join(filter(None, (claim.namespace, claim.pod, claim.container)))
        promise = (container, claim.dialect, ", ".join(claim.devices), share(claim.parameters))
    return [allocation.id, *promise, "; ".join(filter(None, remarks))]
