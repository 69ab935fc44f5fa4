"""What a scheduler reads on the Node of a vendor's cards, and the values that follow into it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from agent.scheduler_api.candidate import Candidate
from agent.vendor_api.backend import Device, Request


@dataclass(frozen=True, slots=True)
class Grant:
    """An allocation in use: the request, and the uuids of the allocated cards."""

    request: Request
    uuids: tuple[str, ...]
    #: Slices that the hardware made for the allocation, by the vendor's ids.
    partitions: tuple[str, ...] = ()
    #: The pod of the allocation, as the API server shows it, and the container; None where none is known.
    pod: Candidate | None = None
    container: str = ""


@dataclass(frozen=True, slots=True)
class CountedCard:
    """A card of a resource that the scheduler counts. `device.fault` is set where new pods cannot get it."""

    resource: str
    device: Device
    #: How many device IDs, or slices of the hardware, the card has for the agent's pods.
    count: int
    #: The kinds of slices that the card can make: the vendor's name to the vendor's number.
    profiles: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SchedulerFacts:
    """Annotations and extended resources of the Node that a scheduler reads.

    The functions are pure. They get the counted cards in the vendor's order, `annotations` also the
    allocations in use. A key that is None or absent in the answer is removed from the Node.
    """

    #: The annotations: key to text; None where the scheduler reads none.
    annotations: Callable[[Sequence[CountedCard], Sequence[Grant]], Mapping[str, str | None]] | None = None
    annotation_keys: tuple[str, ...] = ()
    #: The extended resources: name to number; None where the scheduler reads none.
    extended_resources: Callable[[Sequence[CountedCard]], Mapping[str, int | None]] | None = None
    extended_resource_keys: tuple[str, ...] = ()
