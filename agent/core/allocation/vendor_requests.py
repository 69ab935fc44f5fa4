"""What a vendor's plugin is asked for an allocation, and whether its answers differ. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from agent.core.allocation.scene import Scene
from agent.core.model import Allocation
from agent.vendor_api.agent import ContainerEdits, Device, Request, Vendor


def devices_of(scene: Scene, uuids: Iterable[str]) -> list[Device]:
    """The devices with these UUIDs that the node knows."""
    return [status.device for status in map(scene.snapshot.device, uuids) if status is not None]


def request_of(allocation: Allocation) -> Request:
    """The request behind an allocation: with the parameters of its claim, or else of its answer."""
    claim = allocation.claim
    parameters = (allocation.handed or {}) if claim is None else claim.parameters
    return Request(allocation.id, allocation.resource, allocation.ids, parameters)


def answer_parameters(allocation: Allocation) -> Mapping[str, str]:
    """The parameters that the container was answered with."""
    if allocation.handed is not None:
        return allocation.handed
    return allocation.claim.parameters if allocation.claim else {}


def names_no_card(
    scene: Scene, vendor: Vendor, resource: str, ids: Sequence[str], cards: Sequence[Sequence[str]]
) -> bool:
    """Whether the answer is the same for each of these sets of cards, since hardware is made for it."""
    if not vendor.prepares(resource) or not cards:
        return False
    request = Request("", resource, tuple(ids))
    try:
        answers = [vendor.container_edits(devices_of(scene, uuids), request) for uuids in cards]
    except Exception:  # contributors' code
        return False
    return bool(answers[0].cdi_devices) and all(answer == answers[0] for answer in answers)


def edits_with(
    scene: Scene, allocation: Allocation, parameters: Mapping[str, str]
) -> ContainerEdits | Mapping[str, str]:
    """What the container gets with these parameters; the parameters where its vendor cannot answer."""
    vendor = scene.vendors.get(allocation.vendor)
    if vendor is None:
        return parameters
    devices = devices_of(scene, allocation.cards)
    request = replace(request_of(allocation), parameters=parameters, partitions=allocation.partitions)
    try:
        return vendor.container_edits(devices, request)
    except Exception:  # contributors' code; this answer goes to no container
        return parameters
