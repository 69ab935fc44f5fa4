"""The node's devices in the words of the contract, for schedulers' plugins. Pure."""

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


def _vendor(it: VendorStatus) -> VendorOnNode:
    match it.state:
        case VendorState.STARTING:
            return VendorOnNode(it.name, "starting", it.reason)
        case VendorState.OPEN:
            return VendorOnNode(it.name, "open", it.reason)
        case _:
            return VendorOnNode(it.name, "away", it.reason)


def _card(it: DeviceStatus) -> CardOnNode:
    cordon = _said_of(it.cordon) if it.cordon is not None else ""
    return CardOnNode(it.vendor, it.device, _condition(it.health), it.told_healthy, it.gone, cordon)


def _said_of(cordon: Cordon) -> str:
    return ": ".join(filter(None, (f"by {cordon.author}", cordon.reason)))


def _condition(health: Health) -> Condition:
    return Condition(health.state, health.reason, health.message, lost=health.reason == LOST_CONTACT)
