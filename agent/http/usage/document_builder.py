"""Builds the document of /inspect/usage from the status of the agent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from agent.core.publishing.agent_status import AgentStatus
from agent.core.usage.minute_history import UsageHistory
from agent.core.usage.usage_report import CardUse, ContainerUse, ProcessUse, SamplingStatus, UsageReport
from agent.http.shown_figures import rounded, seconds_since
from agent.http.usage.joined_usage import JoinedUsage
from agent.http.usage.usage_document import (
    ContainerHistory,
    UsageDocument,
    UsedCard,
    UsingContainer,
    UsingProcess,
    VendorSampling,
)

#: The most histories of one answer: 64 containers of a whole day are 3 MB.
MAX_HISTORIES = 64
#: A container as a request names it: namespace, pod, container. None: all containers.
Named = tuple[str, ...] | None


def usage_document(
    status: AgentStatus,
    report: UsageReport,
    *,
    with_processes: bool,
    history: Sequence[Named] = (),
) -> UsageDocument:
    """The use of all cards. `history` names the containers whose minutes are wanted."""
    joined = JoinedUsage(status, report)
    histories = [*_histories(status.usage_history, history)]
    return UsageDocument(
        node=status.node,
        version=status.version,
        interval_seconds=report.interval,
        sees_node_pids=report.sees_node_pids,
        sampling=tuple(_sampling(it, report) for it in report.sampling),
        cards=tuple(map(partial(_card, joined), report.cards)),
        containers=tuple(map(partial(_container, joined), report.containers)),
        processes=tuple(map(_process, report.processes)) if with_processes else None,
        unknown=dict(report.unknown),
        history=tuple(histories[:MAX_HISTORIES]) if history else None,
        histories_left_out=max(0, len(histories) - MAX_HISTORIES),
    )


def _sampling(sampling: SamplingStatus, report: UsageReport) -> VendorSampling:
    return VendorSampling(
        vendor=sampling.vendor,
        up=sampling.is_fresh(report.interval, report.now),
        at=rounded(sampling.at),
        age_seconds=seconds_since(sampling.at, report.now),
        error=sampling.error,
        ended=sampling.ended,
        tells_processes=sampling.tells_processes,
    )


def _card(joined: JoinedUsage, card: CardUse) -> UsedCard:
    usage, known = card.usage, joined.devices.get(card.usage.uuid)
    device = known.device if known else None
    return UsedCard(
        vendor=card.vendor,
        uuid=usage.uuid,
        index=device.index if device else None,
        parent=card.parent,
        slice=device.slice if device else None,
        minor=device.minor if device else None,
        pci=device.pci if device else None,
        model=device.model if device else "",
        memory_total_bytes=usage.memory_total,
        memory_reserved_bytes=usage.memory_reserved,
        memory_used_bytes=usage.memory_used,
        **_figures(card),
        ecc_errors=dict(usage.ecc_errors),
        driver_errors=dict(usage.driver_errors),
        last_driver_error=usage.last_driver_error,
        unattributed_bytes={str(kind): count for kind, count in card.unattributed.items()},
        overcounted_bytes=card.overcounted,
        in_slices_bytes=card.in_slices,
    )


def _figures(card: CardUse) -> dict[str, float | None]:
    usage = card.usage
    figures = {
        "utilization": usage.utilization,
        "memory_utilization": usage.memory_utilization,
        "tensor_utilization": usage.tensor_utilization,
        "encoder_utilization": usage.encoder_utilization,
        "decoder_utilization": usage.decoder_utilization,
        "power_watts": usage.power,
        "energy_joules": usage.energy,
        "temperature_celsius": usage.temperature,
        "memory_temperature_celsius": usage.memory_temperature,
        "clock_hertz": usage.clock,
        "memory_clock_hertz": usage.memory_clock,
    }
    return {name: rounded(value) for name, value in figures.items()}


def _container(joined: JoinedUsage, use: ContainerUse) -> UsingContainer:
    share = joined.share_of(use)
    return UsingContainer(
        namespace=use.namespace,
        pod=use.pod,
        uid=use.uid,
        container=use.container,
        vendor=use.vendor,
        uuid=use.uuid,
        resource=use.resource,
        processes=use.processes,
        memory_bytes=use.memory,
        utilization=rounded(use.utilization),
        memory_limit_bytes=use.memory_limit,
        compute_limit=rounded(use.compute_limit),
        active_at=rounded(use.active_at),
        idle_seconds=seconds_since(use.active_at, joined.report.now),
        share=share.share if share else "",
        limits=str(share.limits) if share else "",
    )


def _process(process: ProcessUse) -> UsingProcess:
    return UsingProcess(
        pid=process.pid,
        name=process.name,
        uuid=process.uuid,
        namespace=process.namespace,
        pod=process.pod,
        container=process.container,
        memory_bytes=process.memory,
        utilization=rounded(process.utilization),
    )


def _histories(minutes: UsageHistory | None, wanted: Sequence[Named]) -> Iterable[ContainerHistory]:
    """The wanted histories. Only so many have their minutes, and the rest is not shown."""
    if minutes is None or not wanted:
        return
    keys = [key for key in minutes.keys() if None in wanted or key[:3] in wanted]  # noqa: SIM118
    for number, key in enumerate(keys):
        shown = minutes.of(*key) if number < MAX_HISTORIES else ()
        yield ContainerHistory(*key, minutes=tuple(shown))
