"""Whose use the series show: each container's, or each pod's where there would be too many series."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from msgspec import structs

from agent.core.usage.usage_report import ContainerUse

Number = TypeVar("Number", int, float)


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
    """The use of both. A limit of both is known only where each has one."""
    active = [it for it in (one.active_at, other.active_at) if it is not None]
    return structs.replace(
        one,
        processes=one.processes + other.processes,
        memory=_sum_of_known(one.memory, other.memory),
        utilization=_sum_of_known(one.utilization, other.utilization),
        memory_limit=_sum_of_all(one.memory_limit, other.memory_limit),
        compute_limit=_sum_of_all(one.compute_limit, other.compute_limit),
        active_at=max(active, default=None),
    )


def _sum_of_known(one: Number | None, other: Number | None) -> Number | None:
    return one if other is None else other if one is None else one + other


def _sum_of_all(one: Number | None, other: Number | None) -> Number | None:
    return None if one is None or other is None else one + other
