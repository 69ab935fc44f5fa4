"""The cards of a node as a scheduler may be told of them: how each is, and which vendors list them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agent.vendor_api.backend import Device, State

#: `starting`: nobody knows yet; `away`: the vendor's library, driver or process is not there.
VendorIs = Literal["starting", "open", "away"]


@dataclass(frozen=True, slots=True)
class VendorOnNode:
    """A vendor in service. `reason`: why it is not open, as far as that is known."""

    name: str
    state: VendorIs
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Condition:
    """How a card is. `lost`: only the contact with what watches the card is lost."""

    state: State
    reason: str = ""
    message: str = ""
    lost: bool = False


@dataclass(frozen=True, slots=True)
class CardOnNode:
    """A device that a vendor lists: a card, or a slice of one (`device.parent`)."""

    vendor: str
    device: Device
    condition: Condition
    #: What the kubelet is told: whether new pods may get the device.
    healthy: bool
    #: Known to be there no more; it stays while pods have it.
    gone: bool = False
    #: Who keeps it from new pods, and why; empty where nobody does.
    cordon: str = ""

    @property
    def uuid(self) -> str:
        return self.device.uuid


@dataclass(frozen=True, slots=True)
class AbsentCard:
    """A device that is not listed, and remembered nevertheless."""

    uuid: str
    condition: Condition


@dataclass(frozen=True, slots=True)
class NodeCards:
    """All of these at one moment."""

    vendors: tuple[VendorOnNode, ...] = ()
    cards: tuple[CardOnNode, ...] = ()
    absent: tuple[AbsentCard, ...] = ()

    def of(self, vendor: str) -> tuple[CardOnNode, ...]:
        return tuple(it for it in self.cards if it.vendor == vendor)
