"""Nodes with NVIDIA's cards as values, and what the agent makes of them without a process or a kubelet."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from agent.core.allocation.answer_annotations import ALLOCATION
from agent.core.allocation.ledger import Ledger
from agent.core.allocation.scene import Scene
from agent.core.devices.cards_of_resources import Offer
from agent.core.devices.plan import plan
from agent.core.devices.topology import topology
from agent.core.model import DeviceStatus, Health, NodeSnapshot, Owner, Resource, VendorState, VendorStatus
from agent.core.reconciling.reconcile_evidence import CheckpointAnswer
from agent.daemon.allocation.allocator import Allocator
from agent.vendor_api.agent import (
    ContainerEdits,
    Device,
    Fault,
    Offering,
    Partition,
    Request,
    ResourceRule,
    State,
    Vendor,
)
from agent.vendors.nvidia.plugin import register_backend

H100, A100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB"
#: A card and a MIG device as NVIDIA's settings name them; the other uuids of these nodes are short.
CARD, SLICE = "GPU-b1028956-cfa2-0990-bf4a-5da9abb51763", "MIG-1c028956-cfa2-0990-bf4a-5da9abb51763"
LOST = Fault("lost", "NVML: GPU is lost")


def gpu(index: int, model: str = H100, fault: Fault | None = None, **attributes: str) -> Device:
    """A card that cannot be split unless `mig_mode` says how it is."""
    told = _told(attributes)
    capable = "true" if "mig-mode" in told else "false"
    return Device(
        uuid=f"GPU-{index}",
        index=index,
        minor=index,
        model=model,
        paths=(f"/dev/nvidia{index}",),
        attributes={"mig-capable": capable, **told},
        fault=fault,
    )


def split(index: int, model: str = H100, fault: Fault | None = None) -> Device:
    """A card in MIG mode."""
    return gpu(index, model, fault, mig_mode="enabled")


def mig(
    card: int, number: int, profile: str = "1g.10gb", fault: Fault | None = None, **attributes: str
) -> Device:
    """A MIG device of a card."""
    cap = 100 * card + 9 * number
    return Device(
        uuid=f"MIG-{card}-{number}",
        index=card,
        model=H100,
        paths=(
            f"/dev/nvidia{card}",
            f"/dev/nvidia-caps/nvidia-cap{cap}",
            f"/dev/nvidia-caps/nvidia-cap{cap + 1}",
        ),
        attributes={"mig-profile": profile, **_told(attributes)},
        fault=fault,
        parent=f"GPU-{card}",
        slice=number,
    )


def _told(attributes: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in attributes.items()}


def lost(index: int) -> Device:
    """A card of which nothing is known but that it was there."""
    return Device(f"GPU-{index}", index, fault=LOST)


def offered(settings: Mapping[str, Any], devices: Sequence[Device], *rules: ResourceRule) -> Offering:
    vendor = register_backend(settings)
    assert vendor.offers.resources is not None
    return vendor.offers.resources(rules, devices)


def listed(offering: Offering, devices: Iterable[Device]) -> dict[str, list[str]]:
    """The IDs that the kubelet is told of each resource."""
    return {name: _ids(it) for name, it in plan([_offer(offering)], _snapshot(devices)).items()}


def _ids(resource: Resource) -> list[str]:
    return [device_id for card in resource.cards for device_id in card]


def _offer(offering: Offering) -> Offer:
    return Offer("nvidia", offering.rules)


def _snapshot(devices: Iterable[Device]) -> NodeSnapshot:
    well, sick = Health(State.HEALTHY), Health(State.UNHEALTHY, "lost")
    return NodeSnapshot(
        (VendorStatus("nvidia", VendorState.OPEN),),
        tuple(DeviceStatus("nvidia", it, sick if it.fault else well, it.fault is None) for it in devices),
    )


async def allocated(
    settings: Mapping[str, Any], devices: Sequence[Device], resource: str, ids: Sequence[str]
) -> ContainerEdits:
    """What a container that gets these IDs is given, less the agent's own annotation."""
    vendor, snapshot = register_backend(settings), _snapshot(devices)
    planned = plan([_offer(offered(settings, devices))], snapshot)
    scene = Scene(planned, snapshot, topology(snapshot), {"nvidia": vendor})
    ledger = Ledger()
    allocator = Allocator(lambda: scene, ledger, _NoDisk(), lambda: 0.0, _prepare, _release, _NoKubelet())
    [answer] = await allocator.allocate(resource, [ids])
    edits = answer.edits
    annotations = {key: value for key, value in edits.annotations.items() if key != ALLOCATION}
    return ContainerEdits(edits.env, edits.device_nodes, edits.mounts, annotations, edits.cdi_devices)


def given(settings: Mapping[str, Any], devices: Sequence[Device], allocation: str = "a1") -> ContainerEdits:
    """What a container with these devices gets, in their order."""
    vendor: Vendor = register_backend(settings)
    ids = tuple(it.uuid for it in devices)
    return vendor.container_edits(devices, Request(allocation, vendor.resource, ids))


class _NoDisk:
    async def save(self, *, durable: bool) -> None:
        pass


class _NoKubelet:
    life = ""

    async def checkpoint_answers(self) -> Sequence[CheckpointAnswer] | None:
        raise AssertionError("NVIDIA's containers start without us")

    async def existing_owners(self, owners: Collection[Owner]) -> Collection[Owner]:
        raise AssertionError("nobody holds anything")

    async def ended_owners(self, owners: Collection[Owner]) -> Collection[Owner]:
        raise AssertionError("nobody holds anything")

    async def pods_with_ids(
        self, resource: str, ids: Collection[str], owners: object
    ) -> Mapping[str, tuple[str, str]]:
        raise AssertionError("nobody holds anything")


async def _prepare(vendor: str, request: Request, uuids: Sequence[str]) -> Sequence[Partition]:
    raise AssertionError("NVIDIA's cards need no preparation")


async def _release(vendor: str, allocation: str) -> None:
    raise AssertionError("NVIDIA's cards need no release")
