"""The share that each container has of a card, and what keeps the container to that share. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct

from agent.core.allocation.vendor_requests import answer_parameters, request_of
from agent.core.devices.memory_units import counted_in
from agent.core.model import Allocation, AllocationState
from agent.core.publishing.agent_status import AgentStatus
from agent.vendor_api.agent import Device

#: The parameters of a claim that are amounts of a card.
_AMOUNTS = ("core", "memory", "ratio")
#: The variable by which a container's programs load a library that keeps them to a limit.
_PRELOAD = "LD_PRELOAD"


class LimitKind(StrEnum):
    """What keeps a container to its share of a card."""

    ENFORCED = "enforced"  # the hardware or the driver: the share is a slice
    COOPERATIVE = "cooperative"  # a library in the container, which programs can avoid
    OBSERVED = "observed"  # nothing; use above the limit is seen and reported
    NONE = "none"  # there is no limit, or use is not sampled


class AllocatedShare(Struct, frozen=True):
    """What one container has of one card by one resource. Names are empty while the owner is not known."""

    namespace: str
    pod: str
    container: str
    uuid: str
    resource: str
    #: `1` is the whole card, `slice` a slice; else replicas (`1/4`), units of memory (`8x1Gi`), or the
    #: amounts of a claim (`core=50,memory=17179869184`).
    share: str
    limits: LimitKind


def allocated_shares(status: AgentStatus, sampled: Collection[str]) -> Iterator[AllocatedShare]:
    """The shares of all allocations in use. `sampled`: the vendors with processes that are watched."""
    devices = {it.uuid: it.device for it in status.snapshot.devices}
    preloads: dict[object, bool] = {}
    for allocation in status.allocations:
        if allocation.state is not AllocationState.RELEASED:
            holder = allocation.owner if allocation.owner and allocation.owner.pod else allocation.claim
            names = (holder.namespace, holder.pod, holder.container) if holder else ("", "", "")
            counts = _counts(status, allocation)
            cards = [devices[uuid] for uuid in allocation.cards if uuid in devices]
            for uuid in allocation.cards:
                share = _share(status, allocation, devices.get(uuid), counts.get(uuid, 1))
                limits = _limits(status, allocation, cards, share, preloads)
                is_watched = limits is not LimitKind.OBSERVED or allocation.vendor in sampled
                kind = limits if is_watched else LimitKind.NONE
                yield AllocatedShare(*names, uuid, allocation.resource, share, kind)


def _counts(status: AgentStatus, allocation: Allocation) -> Mapping[str, int]:
    """Card to the number of the allocation's device IDs there."""
    resource = status.resources.get(allocation.resource)
    if len(allocation.cards) == 1 or resource is None or allocation.diverged:
        return dict.fromkeys(allocation.cards, max(1, len(allocation.ids) // max(1, len(allocation.cards))))
    return Counter(resource.uuids_of(allocation.ids).values())


def _share(status: AgentStatus, allocation: Allocation, device: Device | None, count: int) -> str:
    if allocation.partitions or (device is not None and device.parent is not None):
        return "slice"
    amounts = answer_parameters(allocation)
    if texts := [f"{name}={amounts[name]}" for name in _AMOUNTS if amounts.get(name)]:
        return ",".join(texts)
    resource = status.resources.get(allocation.resource)
    sharing = resource.rule.sharing if resource is not None else None
    if unit := allocation.unit or (counted_in(sharing) if sharing else ""):
        return f"{count}x{unit}Gi"
    if sharing is not None and sharing.kind == "replicas" and sharing.replicas > 1:
        return f"{count}/{sharing.replicas}"
    return "1"


def _limits(
    status: AgentStatus,
    allocation: Allocation,
    cards: Sequence[Device],
    share: str,
    preloads: dict[object, bool],
) -> LimitKind:
    """What keeps the container to the share, as if use were sampled."""
    if share == "slice":
        return LimitKind.ENFORCED
    if share == "1" or "/" in share:
        return LimitKind.NONE  # a whole card, or a replica, which has no limit
    key = (allocation.vendor, share)
    if key not in preloads:
        preloads[key] = _preloads(status, allocation, cards)
    return LimitKind.COOPERATIVE if preloads[key] else LimitKind.OBSERVED


def _preloads(status: AgentStatus, allocation: Allocation, cards: Sequence[Device]) -> bool:
    """Whether containers with this share get a library that keeps them to the share."""
    vendor = status.vendors.get(allocation.vendor)
    if vendor is None or not cards:
        return False
    try:
        return _PRELOAD in vendor.container_edits(cards, request_of(allocation)).env
    except Exception:  # contributors' code; this answer goes to no container
        return False
