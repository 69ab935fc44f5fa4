"""Messages for people. The Event writer makes a Kubernetes Event of each notice."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from msgspec import Struct

from agent.scheduler_api.claims import Claim

#: Each reason that a notice can have, and the action of its Event: one word for what the agent did or could
#: not do (docs/events.md).
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
        "LimitExceeded": "Sample",
        "IdleAccelerator": "Sample",
    }
)


class PodRef(Struct, frozen=True):
    """The pod that a notice is about; `uid` is empty where it is not known."""

    namespace: str
    name: str
    uid: str = ""


class Notice(Struct, frozen=True):
    """`reason` is one CamelCase word, `message` a sentence. A notice without a pod is about this node."""

    reason: str
    message: str
    kind: Literal["Normal", "Warning"] = "Warning"
    pod: PodRef | None = None

    @property
    def action(self) -> str:
        """What the agent did or could not do; one CamelCase word."""
        return ACTIONS.get(self.reason, self.reason)


class Refusal(Struct, frozen=True):
    """An Allocate that was refused. The kubelet does not say for which pod it asks. `number` counts from 1.

    When many refusals come at once, not all are kept. A gap in the numbers shows how many are missing.
    """

    number: int
    resource: str
    ids: tuple[str, ...]
    #: The agent's error text, which the kubelet repeats in the status of the pod.
    text: str
    #: The pods that were waiting for this amount of the resource.
    waiting: tuple[PodRef, ...] = ()


class StartRefusal(Struct, frozen=True):
    """A container that cannot start with what its pod requests. `number` counts from 1."""

    number: int
    pod: PodRef
    text: str


class PlacementMismatch(Struct, frozen=True):
    """A pod that has, or gets, other cards than its scheduler chose; `why` is a sentence."""

    pod: PodRef
    why: str
    #: The pod already has the other cards.
    moved: bool = False


class ClaimSwap(Struct, frozen=True):
    """A change of an allocation's claim: the kubelet gave the IDs to another pod. `number` counts from 1."""

    number: int
    allocation: str
    resource: str
    before: Claim
    after: Claim | None
