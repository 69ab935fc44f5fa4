"""Whether a request can be answered at all: its IDs are there, well, and nobody else's. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from agent.core.allocation.ledger import FORGOTTEN
from agent.core.devices.resource_waits import ResourceWait
from agent.core.devices.topology import Topology
from agent.core.errors import (
    CordonedDevice,
    FormerDevice,
    InOtherMode,
    InvalidRequest,
    RetiredResource,
    UnhealthyDevice,
    UnknownDevice,
    UnknownResource,
)
from agent.core.model import AdvertisedDevice, Allocation, DeviceStatus, NodeSnapshot, Plan, Resource
from agent.scheduler_api import Candidate, Scheduler
from agent.vendor_api.agent import FOREIGN_SLICES, Device, Vendor


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything an answer depends on, as one value."""

    plan: Plan
    snapshot: NodeSnapshot
    topology: Topology
    vendors: Mapping[str, Vendor]
    #: Vendor, or resource, to why nothing of it is given out.
    withheld: Mapping[str, str] | None = None
    #: The pods bound to this node, as far as an API server tells.
    candidates: tuple[Candidate, ...] = ()
    #: Those, by namespace and name, that schedulers' locks of the node name.
    locked: frozenset[tuple[str, str]] = frozenset()
    #: The uids of the pods that waited as the kubelet began.
    found: frozenset[str] = frozenset()
    #: The cards that are to change their resource once they are free.
    waits: tuple[ResourceWait, ...] = ()
    #: Card to who has it by a scheduler's word alone.
    external: Mapping[str, Allocation] = field(default_factory=dict)
    #: Why no pod is ever seen; empty where they are, or will be.
    unseen: str = ""
    #: The registered ones, in the order in which they are heard.
    schedulers: tuple[Scheduler, ...] = ()

    @property
    def alive(self) -> frozenset[str]:
        """The uids of the pods that have not ended."""
        return frozenset(pod.uid for pod in self.candidates if not pod.ended)


def serving(scene: Scene, resource: str) -> Vendor:
    """Who serves the resource.

    Raises:
        UnknownResource: Nobody; a vendor that is left out serves nothing, though its resource may be listed.
    """
    planned = scene.plan.get(resource)
    vendor = scene.vendors.get(planned.vendor) if planned else None
    if vendor is None:
        raise UnknownResource(resource)
    return vendor


def admit(scene: Scene, resource: str, ids: Sequence[str]) -> list[Device]:
    """The card of each ID, in the order of the request.

    Raises:
        AllocationError: Naming the first ID that is unknown, unhealthy or cordoned.
    """
    statuses = {status.uuid: status for status in scene.snapshot.devices}
    planned = scene.plan.get(resource)
    if planned is None:
        raise UnknownResource(resource)
    if not ids:
        raise InvalidRequest(resource, "it names no device")
    unique = list(dict.fromkeys(ids))
    devices: list[Device] = []
    well: dict[str, Device] = {}
    for device_id, card in zip(unique, planned.cards_of(unique), strict=True):
        device = well.get(card.uuid) if card is not None and card.healthy else None
        if device is None:
            status = _well(scene, planned, device_id, card, statuses)
            device = well[status.uuid] = status.device
        devices.append(device)
    strict = planned.rule.sharing.fail_requests_greater_than_one
    if strict and len(unique) > 1 and any(planned.shares(device_id) for device_id in unique):
        raise InvalidRequest(resource, f"maximum request size for shared resources is 1; found {len(unique)}")
    return devices


def refuse_retired(scene: Scene, resource: str, uuids: Collection[str]) -> None:
    """Its IDs are listed for those who hold them; the kubelet takes them for free before we see a pod gone.

    Raises:
        RetiredResource: It would never end while a controller makes a pod anew for each that ends.
    """
    if scene.plan[resource].retired:
        waiting = (it for it in scene.waits if it.holder == resource and not it.held.isdisjoint(uuids))
        raise RetiredResource(resource, tuple(dict.fromkeys(it.resource for it in waiting)))


def refuse_former(scene: Scene, resource: str, ids: Iterable[str]) -> None:
    """IDs of a former plan or plugin are listed for those who hold them, as a whole resource may be.

    Raises:
        FormerDevice: Who gets one has the card in a way that is over, beside those who have it like that
            still, and keeps it from who has it now.
    """
    former = scene.plan[resource].former_ids
    for device_id in ids if former else ():
        if device_id in former:
            raise FormerDevice(resource, device_id)


def _well(
    scene: Scene,
    resource: Resource,
    device_id: str,
    card: AdvertisedDevice | None,
    statuses: Mapping[str, DeviceStatus],
) -> DeviceStatus:
    unserved = scene.withheld or {}
    withheld = unserved.get(resource.vendor) or unserved.get(resource.name, "")
    status = statuses.get(card.uuid) if card is not None else None
    if card is None or status is None:
        raise UnknownDevice(resource.name, device_id)
    if not card.healthy:
        health = status.health
        sick = f"{health.reason} {health.message}".strip()
        if status.told_healthy and (cordon := status.cordon) is not None:
            raise CordonedDevice(resource.name, device_id, cordon.author, cordon.reason)
        if not status.told_healthy or withheld:
            raise UnhealthyDevice(resource.name, device_id, withheld if status.told_healthy else sick)
        if card.mode and device_id not in card.held:
            if resource.rule.placement != "local" and resource.shares(device_id):
                return status  # a scheduler may have chosen another card, of which the mode counts then
            raise InOtherMode(resource.name, card.uuid, card.mode)
        if card.closed or device_id not in card.held:
            raise UnhealthyDevice(resource.name, device_id, _held_by(scene, status.device))
    return status


def _held_by(scene: Scene, device: Device) -> str:
    """Why a card that is well is nobody's to have."""
    if count := device.attributes.get(FOREIGN_SLICES):
        return f"slices that this agent did not make lie on its card ({count}): it is free when they are gone"
    it = scene.external.get(device.uuid)
    if it is None or it.owner is None:
        return FORGOTTEN
    whose = f"{it.owner.namespace}/{it.owner.pod}"
    return f"a scheduler gave it to {whose}, which asks no device plugin: it is free when that pod is gone"
