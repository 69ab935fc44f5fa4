"""Whose use the series show: each container's, or each pod's where there would be too many series."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import structs

from agent.core.usage.known_sums import sum_of, sum_of_parts
from agent.core.usage.usage_report import ContainerUse


def distinct(containers: Iterable[ContainerUse]) -> Sequence[ContainerUse]:
    """The use by labels: a pod that ends and the pod of the same name that follows are one."""
    found: dict[tuple[str, ...], ContainerUse] = {}
    for use in containers:
        key = (use.namespace, use.pod, use.container, use.uuid, use.resource)
        found[key] = _together(found[key], use) if key in found else use
    return tuple(found.values())


def by_pod(containers: Iterable[ContainerUse]) -> Sequence[ContainerUse]:
    """The use of each pod on each card, without the names of containers."""
    return distinct(structs.replace(use, container="") for use in containers)


def _together(one: ContainerUse, other: ContainerUse) -> ContainerUse:
    """The use of both. A figure of both, or a limit, is known only where each one's is."""
    active = [it for it in (one.active_at, other.active_at) if it is not None]
    return structs.replace(
        one,
        processes=one.processes + other.processes,
        memory=sum_of((one.memory, other.memory)),
        utilization=sum_of_parts((one.utilization, other.utilization)),
        memory_limit=sum_of((one.memory_limit, other.memory_limit)),
        compute_limit=sum_of_parts((one.compute_limit, other.compute_limit)),
        active_at=max(active) if len(active) == 2 else None,
    )
