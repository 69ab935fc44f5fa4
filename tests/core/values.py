"""Short ways to say the values that the rules take."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from agent.core.allocation.allocations_in_use import AllocationsInUse
from agent.core.allocation.taken_room import TakenRoom
from agent.core.devices.held_ids import HeldIds
from agent.core.devices.ids_in_use import ResourceUsage
from agent.core.devices.topology import DISTANCE_SCORE, LANE_SCORE, Topology
from agent.core.model import (
    AdvertisedDevice,
    Allocation,
    AllocationSource,
    AllocationState,
    DeviceStatus,
    Health,
    IdRange,
    NodeSnapshot,
    Owner,
    Resource,
    VendorState,
    VendorStatus,
)
from agent.scheduler_api import Claim
from agent.vendor_api.agent import Device, Fault, Link, Policy, ResourceRule, Sharing, State

GPU = "example.com/gpu"


def status(
    uuid: str,
    index: int = 0,
    *,
    vendor: str = "acme",
    minor: int | None = None,
    numa: int | None = None,
    healthy: bool = True,
    reason: str = "hot",
    message: str = "",
    parent: str | None = None,
    slice: int | None = None,
) -> DeviceStatus:
    health = Health(State.HEALTHY) if healthy else Health(State.UNHEALTHY, reason, message)
    device = Device(uuid, index, minor=minor, numa=numa, parent=parent, slice=slice)
    return DeviceStatus(vendor, device, health, healthy)


def node(*devices: DeviceStatus) -> NodeSnapshot:
    vendors = sorted({it.vendor for it in devices})
    return NodeSnapshot(tuple(VendorStatus(name, VendorState.OPEN) for name in vendors), devices)


def whole(uuids: Iterable[str], policy: Policy = "aligned") -> Resource:
    """Cards given out whole."""
    cards = tuple(AdvertisedDevice(uuid, IdRange(uuid), healthy=True) for uuid in uuids)
    return Resource(GPU, "acme", ResourceRule(GPU), policy, cards)


def shared(replicas: Mapping[str, int], policy: Policy = "distributed") -> Resource:
    """Cards with a number of replicas each."""
    rule = ResourceRule(GPU, sharing=Sharing("replicas", max(replicas.values(), default=1)))
    cards = tuple(AdvertisedDevice(uuid, IdRange(uuid, n), healthy=True) for uuid, n in replicas.items())
    return Resource(GPU, "acme", rule, policy, cards)


def near(pairs: Mapping[tuple[int, int], int], size: int, other: int = 10) -> Topology:
    """Cards "0", "1" and so on whose pairs have these scores, `other` where they are left out.

    A score is 100 for each lane, and 10 to 60 for the path.
    """
    paths = {score: distance for distance, score in DISTANCE_SCORE.items()}

    def link(card: int, peer: int) -> Link:
        lanes, path = divmod(pairs.get((min(card, peer), max(card, peer)), other), LANE_SCORE)
        return Link(str(peer), lanes, paths[path])

    cards = [
        Device(str(card), card, links=tuple(link(card, peer) for peer in range(size) if peer != card))
        for card in range(size)
    ]
    return Topology({card.uuid: card for card in cards})


def allocation(
    name: str,
    ids: Iterable[str],
    *,
    since: float = 0.0,
    resource: str = GPU,
    owner: Owner | None = None,
    state: AllocationState = AllocationState.DONE,
    devices: tuple[str, ...] | None = None,
    source: AllocationSource = AllocationSource.ALLOCATE,
    reason: str = "",
    life: str = "",
    partitions: tuple[str, ...] = (),
    claim: Claim | None = None,
) -> Allocation:
    listed = tuple(ids)
    return Allocation(
        name,
        resource,
        "acme",
        listed,
        tuple(it.partition("::")[0] for it in listed) if devices is None else devices,
        state,
        since,
        source,
        reason,
        owner,
        life,
        partitions=partitions,
        claim=claim,
    )


def grouped(allocations: Iterable[Allocation] = ()) -> AllocationsInUse:
    """These allocations, oldest first."""
    return AllocationsInUse.of(enumerate(allocations))


def held_ids(used: ResourceUsage) -> dict[str, dict[str, str]]:
    """Resource to device ID to the card that the ID names, for every ID in use."""
    return {
        name: {one: uuid for uuid, held in cards.items() for one in held.ids}
        for name, cards in used.held.items()
    }


def usage(
    held: Mapping[str, Mapping[str, str]] | None = None,
    diverged: Mapping[str, Mapping[str, Collection[str]]] | None = None,
    units: Mapping[str, Mapping[str, Collection[str]]] | None = None,
    *,
    vendors: Mapping[str, str] | None = None,
    external: Iterable[str] = (),
) -> ResourceUsage:
    """What is in use. `held`: resource to ID to card. `diverged`: resource to card to IDs that lie there."""
    found: dict[str, dict[str, HeldIds]] = {}
    for name, ids in (held or {}).items():
        away = {one for its in (diverged or {}).get(name, {}).values() for one in its}
        found[name] = {
            uuid: HeldIds({one: one in away for one, card in ids.items() if card == uuid})
            for uuid in dict.fromkeys(ids.values())
        }
    cards = {name: frozenset(its) for name, its in (diverged or {}).items()}
    return ResourceUsage(found, cards, units or {}, vendors=vendors or {}, external=frozenset(external))


def taking(allocations: Iterable[Allocation] = (), resource: str = GPU) -> TakenRoom:
    """What these allocations take of the resource's cards, by their IDs."""
    return TakenRoom(resource, grouped(allocations))


HOT = Fault("hot")
