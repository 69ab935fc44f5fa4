"""The use of the node's cards at one moment: what views show, and what the rules of use look at. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct, field

from agent.vendor_api.agent import ProcessUsage, Usage

#: A sample that is older than so many intervals says nothing of now: what it says is shown no more.
INTERVALS = 3


class VendorSample(Struct, frozen=True):
    """What one vendor's process said of use at one moment. None: the vendor cannot tell, or failed to."""

    usages: tuple[Usage, ...] | None = None
    processes: tuple[ProcessUsage, ...] | None = None
    #: `usage` or `processes` to why the method failed, or what of its answer was left out.
    complaints: Mapping[str, str] = field(default_factory=dict)


class SamplingStatus(Struct, frozen=True):
    """How the sampling of one vendor goes."""

    vendor: str
    #: Unix time of the last sample in seconds; None before the first one.
    at: float | None = None
    #: Why there is no new sample, or what was wrong with the last one; empty where all is well.
    error: str = ""
    #: Whether the vendor is sampled no more; `error` says why and until when.
    ended: bool = False
    #: Whether the vendor tells which processes use its cards.
    tells_processes: bool = False

    def is_fresh(self, interval: float, now: float) -> bool:
        """Whether the last sample speaks of `now`. `interval`: seconds between two samples."""
        return self.at is not None and not self.ended and now - self.at <= INTERVALS * interval


class Unattributed(StrEnum):
    """Memory in use on a card that no container is charged for."""

    HOST = "host"  # processes of the node, outside of pods
    UNKNOWN_POD = "unknown-pod"  # processes of pods whose names are not known, or whose cgroup is hidden
    UNMEASURED = "unmeasured"  # the rest, where the memory of some process is not known
    DRIVER = "driver"  # the rest, where the memory of all processes is known


class ContainerUse(Struct, frozen=True):
    """The use of one card, or slice, by one container. None: it is not known."""

    namespace: str
    pod: str
    uid: str
    #: Empty where only the pod is known.
    container: str
    vendor: str
    uuid: str
    #: The resource of the allocation; empty where the container has no allocation on the card.
    resource: str = ""
    processes: int = 0
    memory: int | None = None  # bytes
    utilization: float | None = None  # 0..1
    #: What was granted: bytes, and a part of the card from 0 to 1. None: no limit was granted.
    memory_limit: int | None = None
    compute_limit: float | None = None
    #: When the container last used the card, in Unix seconds; at first, when it was first seen. None where
    #: utilization is not known.
    active_at: float | None = None


class CardUse(Struct, frozen=True):
    """The use of one card, or slice.

    What containers use, `unattributed` and `in_slices` together, less `overcounted`, is `usage.memory_used`.
    """

    vendor: str
    usage: Usage
    #: The card of a slice; None for a card.
    parent: str | None = None
    unattributed: Mapping[Unattributed, int] = field(default_factory=dict)  # bytes
    #: By how many bytes the processes together exceed the memory in use: they share memory, or were measured
    #: a moment earlier.
    overcounted: int = 0
    #: Bytes that are in use on the slices of the card; the slices have their own `CardUse`.
    in_slices: int = 0


class ProcessUse(Struct, frozen=True):
    """One process on a card, for the operator of the node alone."""

    pid: int
    uuid: str
    #: The process's name; empty where it is not known.
    name: str = ""
    #: Empty for a process outside of pods.
    namespace: str = ""
    pod: str = ""
    container: str = ""
    memory: int | None = None
    utilization: float | None = None


class UsageReport(Struct, frozen=True):
    """The use of all cards, from the last sample of each vendor, if that sample speaks of now."""

    #: Seconds between two samples.
    interval: float
    #: When the report was made, in Unix seconds by the clock of the samples: what ages are counted from.
    now: float
    sampling: tuple[SamplingStatus, ...] = ()
    cards: tuple[CardUse, ...] = ()
    containers: tuple[ContainerUse, ...] = ()
    processes: tuple[ProcessUse, ...] = ()
    #: The number of processes whose `card`, `owner`, `memory` or `utilization` is not known, by that word.
    unknown: Mapping[str, int] = field(default_factory=dict)
    #: Whether the agent has the PIDs of the machine, by which libraries name processes.
    sees_node_pids: bool = True

    @property
    def sampled(self) -> frozenset[str]:
        """The vendors of the cards, containers and processes here."""
        return frozenset(it.vendor for it in self.sampling if it.is_fresh(self.interval, self.now))
