"""Converts the snapshot into the values of `scheduler_api`, for scheduler plugins. Pure."""

from __future__ import annotations

from agent.core.devices.health_rules import LOST_CONTACT
from agent.core.model import Cordon, DeviceStatus, Health, NodeSnapshot, VendorState, VendorStatus
from agent.scheduler_api.node_cards import AbsentCard, CardOnNode, Condition, NodeCards, VendorOnNode


def node_cards(snapshot: NodeSnapshot) -> NodeCards:
    return NodeCards(
        tuple(map(_vendor, snapshot.vendors)),
        tuple(map(_card, snapshot.devices)),
        tuple(AbsentCard(it.uuid, _condition(it.health)) for it in snapshot.absent),
    )


def _vendor(vendor: VendorStatus) -> VendorOnNode:
    match vendor.state:
        case VendorState.STARTING:
            return VendorOnNode(vendor.name, "starting", vendor.reason)
        case VendorState.OPEN:
            return VendorOnNode(vendor.name, "open", vendor.reason)
        case _:
            return VendorOnNode(vendor.name, "away", vendor.reason)


def _card(status: DeviceStatus) -> CardOnNode:
    cordon = _cordon_text(status.cordon) if status.cordon is not None else ""
    return CardOnNode(
        status.vendor, status.device, _condition(status.health), status.told_healthy, status.gone, cordon
    )


def _cordon_text(cordon: Cordon) -> str:
    return ": ".join(filter(None, (f"by {cordon.author}", cordon.reason)))


def _condition(health: Health) -> Condition:
    return Condition(health.state, health.reason, health.message, lost=health.reason == LOST_CONTACT)
