"""The use of a vendor's cards, as the functions of exporters get it.

Loaded with the first exporter that the config switches on. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from agent.vendor_api.backend import Device, Usage


class ContainerUsage(NamedTuple):
    """The use of one card, or slice, by one container. None: not known, and for a limit: none was granted.

    A tuple, which costs less than a dataclass: a scrape makes up to a few thousand.
    """

    namespace: str
    pod: str
    #: Empty where only the pod is known.
    container: str
    uuid: str
    #: The resource of the allocation; empty where the container has no allocation on the card.
    resource: str = ""
    processes: int = 0
    memory: int | None = None  # bytes
    utilization: float | None = None  # 0..1
    memory_limit: int | None = None  # bytes
    compute_limit: float | None = None  # 0..1
    #: When the container last used the card, in Unix seconds.
    active_at: float | None = None


@dataclass(frozen=True, slots=True)
class NodeUsage:
    """The use of one vendor's cards on this node, at one moment."""

    node: str
    #: When the samples were read, in Unix seconds.
    now: float
    #: The vendor's devices by uuid, in their order: cards, and slices with their `parent`.
    devices: Mapping[str, Device]
    #: The figures of each sampled card and slice. A slice that others made is not in `devices`.
    cards: tuple[Usage, ...] = ()
    #: Each container on each card, once. Containers of one pod are one where a node has too many series.
    containers: tuple[ContainerUsage, ...] = ()
    #: The uuids of the cards that several containers have, or can have by the resource.
    shared: frozenset[str] = frozenset()


def percent(ratio: float | None) -> int | None:
    """Whole percent, as most exporters have ratios."""
    return None if ratio is None else round(ratio * 100)


def mib(count: int | None) -> int | None:
    """Bytes in whole MiB."""
    return None if count is None else count >> 20
