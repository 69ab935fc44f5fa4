"""The cards of a node with their condition, and the vendors that list them: input of a report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agent.vendor_api.backend import Device, State

#: `starting`: not known yet; `away`: the vendor's library, driver or process is missing.
VendorIs = Literal["starting", "open", "away"]


@dataclass(frozen=True, slots=True)
class VendorOnNode:
    """A vendor in service. `reason`: why the vendor is not open, if known."""

    name: str
    state: VendorIs
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Condition:
    """The condition of a card. `lost`: the vendor's process that watches the card cannot be asked."""

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
    #: The health that the kubelet is told: whether new pods may get the device.
    healthy: bool
    #: Whether the device was removed. It stays in the list while pods have it.
    gone: bool = False
    #: Author and reason of a cordon; empty without a cordon.
    cordon: str = ""

    @property
    def uuid(self) -> str:
        return self.device.uuid


@dataclass(frozen=True, slots=True)
class AbsentCard:
    """A device that the agent remembers and the vendor no longer lists."""

    uuid: str
    condition: Condition


@dataclass(frozen=True, slots=True)
class NodeCards:
    """All cards of the node at one moment."""

    vendors: tuple[VendorOnNode, ...] = ()
    cards: tuple[CardOnNode, ...] = ()
    absent: tuple[AbsentCard, ...] = ()

    def of(self, vendor: str) -> tuple[CardOnNode, ...]:
        return tuple(it for it in self.cards if it.vendor == vendor)
