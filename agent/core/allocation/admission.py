"""Whether a request can be answered at all: its device IDs are known, healthy and free. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct

from agent.core.allocation.holder_texts import holder_name, owner_name
from agent.core.allocation.scene import Scene
from agent.core.errors import (
    ClosedDevice,
    CordonedDevice,
    InOtherMode,
    InvalidRequest,
    OutdatedDevice,
    RetiredResource,
    StillHeld,
    UnhealthyDevice,
    UnknownDevice,
    UnknownResource,
)
from agent.core.model import (
    AdvertisedDevice,
    ClosedBecause,
    DeviceStatus,
    Resource,
)
from agent.vendor_api.agent import FOREIGN_SLICES, Device, Vendor


class Admitted(Struct, frozen=True):
    """The request of one container, which can be answered in this scene."""

    scene: Scene
    resource: Resource
    #: The device IDs in the order of the request, each once.
    ids: tuple[str, ...]
    #: The device of each ID.
    devices: tuple[Device, ...]
    #: The cards of the IDs, each once, sorted.
    uuids: tuple[str, ...]

    @property
    def vendor(self) -> Vendor:
        """The vendor of the resource, which `serving_vendor` has found."""
        return self.scene.vendors[self.resource.vendor]


def serving_vendor(scene: Scene, resource: str) -> Vendor:
    """The vendor that serves the resource.

    Raises:
        UnknownResource: No vendor does. A vendor that is left out serves nothing, though its resource may
            still be listed.
    """
    planned = scene.plan.get(resource)
    vendor = scene.vendors.get(planned.vendor) if planned else None
    if vendor is None:
        raise UnknownResource(resource)
    return vendor


def admit(scene: Scene, resource: str, ids: Sequence[str]) -> Admitted:
    """Admit the request of one container.

    Raises:
        AllocationError: Naming the first ID that is unknown, unhealthy or cordoned.
    """
    statuses = {status.uuid: status for status in scene.snapshot.devices}
    planned = scene.plan.get(resource)
    if planned is None:
        raise UnknownResource(resource)
    if not ids:
        raise InvalidRequest(resource, "it names no device")
    unique = tuple(dict.fromkeys(ids))
    devices: list[Device] = []
    healthy: dict[str, Device] = {}
    for device_id, card in zip(unique, planned.cards_of(unique), strict=True):
        device = healthy.get(card.uuid) if card is not None and card.healthy else None
        if device is None:
            status = _admitted_status(scene, planned, device_id, card, statuses)
            device = healthy[status.uuid] = status.device
        devices.append(device)
    strict = planned.rule.sharing.fail_requests_greater_than_one
    if strict and len(unique) > 1 and any(planned.shares(device_id) for device_id in unique):
        raise InvalidRequest(resource, f"maximum request size for shared resources is 1; found {len(unique)}")
    return Admitted(scene, planned, unique, tuple(devices), tuple(sorted(healthy)))


def refuse_retired(scene: Scene, resource: str, uuids: Collection[str]) -> None:
    """Refuse new pods of a resource that the config no longer has.

    The IDs of such a resource stay listed for the pods that hold them. The kubelet frees an ID before the
    agent sees that its pod is gone. A controller that creates its pod again would keep the resource for ever.

    Raises:
        RetiredResource: The config no longer has the resource.
    """
    if scene.plan[resource].retired:
        waiting = (it for it in scene.waits if it.holder == resource and not it.held.isdisjoint(uuids))
        raise RetiredResource(resource, tuple(dict.fromkeys(it.resource for it in waiting)))


def refuse_outdated(scene: Scene, resource: str, ids: Iterable[str]) -> None:
    """Refuse IDs of an earlier plan or of another plugin. They stay listed for the pods that hold them.

    Raises:
        OutdatedDevice: A new pod with such an ID would use the card in a way that has ended, and would keep
            the card from the resource that has the card now.
    """
    outdated = scene.plan[resource].outdated_ids
    for device_id in ids if outdated else ():
        if device_id in outdated:
            raise OutdatedDevice(resource, device_id)


def _admitted_status(
    scene: Scene,
    resource: Resource,
    device_id: str,
    card: AdvertisedDevice | None,
    statuses: Mapping[str, DeviceStatus],
) -> DeviceStatus:
    """The status of the ID's card, unless a new container may not have the ID."""
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
        if not status.told_healthy:
            raise UnhealthyDevice(resource.name, device_id, sick)
        if withheld:
            raise ClosedDevice(resource.name, device_id, withheld)
        if card.mode and device_id not in card.held:
            if resource.rule.placement != "local" and resource.shares(device_id):
                return status  # where a scheduler chose another card, the mode of that card counts
            raise InOtherMode(resource.name, card.uuid, card.mode)
        if (holder := scene.forgotten.get(resource.name, {}).get(device_id)) is not None:
            name = owner_name(holder.owner) if holder.owner else holder_name(holder, resource.name)
            raise StillHeld(resource.name, device_id, name)
        if card.closed or device_id not in card.held:
            raise ClosedDevice(resource.name, device_id, _why_closed(scene, card, status.device))
    return status


def _why_closed(scene: Scene, card: AdvertisedDevice, device: Device) -> str:
    """Why a new container cannot have an ID of a card that is healthy, and when it can."""
    match card.closed:
        case None:  # the scene is newer than the plan, by which no pod could have the ID
            return "no pod could have it until a moment ago; create the pod again"
        case ClosedBecause.FOREIGN_SLICES:
            count = device.attributes.get(FOREIGN_SLICES, "some")
            others = f"slices that this agent did not make lie on its card ({count})"
            return f"{others}: it is free when they are gone"
        case ClosedBecause.EXTERNAL_USE:
            allocation = scene.external.get(device.uuid)
            owner = allocation.owner if allocation else None
            pod = f"{owner.namespace}/{owner.pod}" if owner else "a pod"
            given = f"a scheduler gave it to {pod}, which asks no device plugin"
            return f"{given}: it is free when that pod is gone"
        case ClosedBecause.CORDON:
            return "its card is cordoned"
