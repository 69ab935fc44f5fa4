"""What people are told of with the cluster's own means: a notice becomes an Event on its object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from agent.scheduler_api import Claim

#: Every reason that a notice may have, and in one word what the agent did or could not do (docs/events.md).
ACTIONS: Mapping[str, str] = MappingProxyType(
    {
        "ConfigRefused": "KeepConfig",
        "ConfigTaken": "TakeConfig",
        "DeviceUnhealthy": "WithdrawDevice",
        "DeviceHealthy": "OfferDevice",
        "DeviceUnwatched": "OfferDevice",
        "DeviceCordoned": "WithdrawDevice",
        "DeviceUncordoned": "OfferDevice",
        "VendorFailed": "AskVendor",
        "VendorOpened": "AskVendor",
        "AllocateRefused": "Allocate",
        "StartRefused": "PreStartContainer",
        "ForeignPlugin": "Register",
        "ResourceWaits": "KeepDevice",
        "UnitKept": "KeepUnit",
        "UnitChanged": "ChangeUnit",
        "CheckpointSetAside": "LoadCheckpoint",
        "CheckpointRebuilt": "LoadCheckpoint",
        "SwapRepaired": "MoveClaim",
        "ChoiceUnheeded": "Allocate",
        "CardGivenTwice": "KeepDevice",
        "ShareAveraged": "Allocate",
        "LimitsDiffer": "MoveClaim",
        "LockExpired": "FreeLock",
        "ReportOverwritten": "Report",
        "ReportFailed": "Report",
        "ReportRestored": "Report",
        "CardsNotReported": "Report",
    }
)


@dataclass(frozen=True, slots=True)
class PodRef:
    """The pod that a notice is about; `uid` empty where it is not known."""

    namespace: str
    name: str
    uid: str = ""


@dataclass(frozen=True, slots=True)
class Notice:
    """`reason` is one CamelCase word, `message` a sentence. `pod` None: it is about this node."""

    reason: str
    message: str
    kind: Literal["Normal", "Warning"] = "Warning"
    pod: PodRef | None = None

    @property
    def action(self) -> str:
        """What the agent did or could not do; one CamelCase word."""
        return ACTIONS.get(self.reason, self.reason)


@dataclass(frozen=True, slots=True)
class Refusal:
    """An Allocate that was refused; the kubelet did not say who asked. `number` counts from 1.

    Where many come at once not each is kept: the numbers of the others are missing.
    """

    number: int
    resource: str
    ids: tuple[str, ...]
    #: Our words, which the kubelet repeats in the status of the pod.
    text: str
    #: The pods that waited for as much of the resource.
    waiting: tuple[PodRef, ...] = ()


@dataclass(frozen=True, slots=True)
class StartRefusal:
    """A container that cannot start with what its pod asks for. `number` counts from 1."""

    number: int
    pod: PodRef
    text: str


@dataclass(frozen=True, slots=True)
class PlacementMismatch:
    """A pod whose scheduler's choice of cards is not what it has or gets here, and why."""

    pod: PodRef
    why: str
    #: It has other cards than were chosen for it.
    moved: bool = False


@dataclass(frozen=True, slots=True)
class ClaimSwap:
    """An allocation whose claim followed what the kubelet did. `number` counts from 1."""

    number: int
    allocation: str
    resource: str
    before: Claim
    after: Claim | None
