"""The status of an agent that serves: read from its parts at one moment."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.core.publishing.agent_status import AgentStatus, Counters

if TYPE_CHECKING:
    from agent.daemon.composition import Composition


def running_status(parts: Composition, base: AgentStatus) -> AgentStatus:
    """The status `base` with all that the parts know now but the use of the cards."""
    handler = parts.handler
    return replace(
        status_without_figures(parts, base),
        processes={name: process.status for name, process in parts.vendors.processes.items()},
        counters=_counters(parts),
        allocate_seconds={key: tuple(values) for key, values in handler.seconds.items()},
        pre_start_seconds={key: tuple(values) for key, values in handler.pre_start_seconds.items()},
        usage_history=parts.usage.history,
    )


def with_use(parts: Composition, status: AgentStatus) -> AgentStatus:
    """The status with the use of the cards as of now, and the exporters that are to show the use."""
    exporters = frozenset(parts.config.value.config.metrics.compat)
    return replace(status, usage=parts.usage.report, exporters=exporters)


def status_without_figures(parts: Composition, base: AgentStatus) -> AgentStatus:
    """The same without what changes all the time: counts, durations and the memory of processes.

    So the status of an agent that has nothing to do is equal from one look to the next.
    """
    node, pod_state, handler = parts.node, parts.pod_state, parts.handler
    return replace(
        parts.publisher.seen(base),
        snapshot=node.snapshot.value,
        allocations=parts.ledger.all(),
        vendors=node.vendors,
        pods=pod_state.candidates,
        schedulers=node.schedulers,
        other_plugins=parts.other_plugins.found,
        foreign_slices=parts.reconciler.foreign,
        resources=node.plan.value,
        sessions={name: status.value for name, status in parts.sessions.statuses.items()},
        checkpoint_error=parts.store.error,
        evidence_errors=parts.reconciler.complaints,
        cdi_error=node.cdi_error,
        pods_unseen=pod_state.unseen,
        placement_mismatches=parts.mismatches.mismatches,
        unknown_cards=tuple(parts.recovery.answers_without_cards.values()),
        complaints=node.complaints,
        doubts=node.doubts,
        resource_waits=node.waits,
        kept_units=node.kept_units,
        labels_awaited=parts.config.value.labels_awaited,
        set_aside=parts.set_aside.message if parts.set_aside else "",
        rebuilt=parts.recovery.is_done,
        read_back=parts.reconciler.actions["recall"],
        refusals=parts.refusals.last,
        swaps=handler.swaps,
        starts_refused=handler.starts_refused,
        stale_locks=pod_state.locks.stale,
        usage_alarms=parts.usage.alarms,
    )


def _counters(parts: Composition) -> Counters:
    counters: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {
        ("reconcile_actions", (("action", action),)): count
        for action, count in parts.reconciler.actions.items()
    }
    counters["checkpoint_saves", ()] = parts.store.saves
    counters["device_infos_writes", ()] = parts.publisher.device_infos_writes
    if parts.set_aside:
        counters["checkpoint_set_aside", (("why", parts.set_aside.why),)] = 1
    for source, count in parts.reconciler.unreadable.items():
        counters["evidence_unreadable", (("source", source),)] = count
    for name, process in parts.vendors.processes.items():
        counters["vendor_restarts", (("vendor", name),)] = process.restarts
    for name, stats in parts.sessions.stats.items():
        for field in fields(stats):
            counters[f"plugin_{field.name}", (("resource", name),)] = getattr(stats, field.name)
    return counters
