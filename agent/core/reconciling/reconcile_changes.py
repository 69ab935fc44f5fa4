"""The changes that reconciling finds, one value for each kind. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from agent.core.model import Allocation, Owner


@dataclass(frozen=True, slots=True)
class RecoveredAllocation:
    """An allocation that the ledger lacks was read back from the kubelet."""

    allocation: Allocation
    #: Why the cards that its answer names are not used; then it counts on the cards of its IDs.
    why_cards_ignored: str = ""


@dataclass(frozen=True, slots=True)
class Confirm:
    """The kubelet says which container has it: it was answered, whatever state a crash left it in."""

    allocation: str
    owner: Owner
    life: str = ""


@dataclass(frozen=True, slots=True)
class Release:
    """The allocation is over."""

    allocation: str
    reason: str


@dataclass(frozen=True, slots=True)
class Revive:
    """An allocation was released wrongly: the kubelet still grants and shows it."""

    allocation: str


@dataclass(frozen=True, slots=True)
class AskKubelet:
    """No source shows the pod of an allocation that the kubelet's checkpoint still grants.

    The kubelet does not write that file when a pod goes: the next writing shows whether the pod is gone.
    """

    allocation: str
    resource: str


@dataclass(frozen=True, slots=True)
class SetForgotten:
    """The kubelet has lost its record of the allocation of a living pod, or has it again."""

    allocation: str
    forgotten: bool


@dataclass(frozen=True, slots=True)
class Remark:
    """What a person should know of an allocation in use; an empty text takes it back."""

    allocation: str
    text: str


@dataclass(frozen=True, slots=True)
class Find:
    """Slices on the hardware have the mark of an allocation that knew no slices."""

    allocation: str
    partitions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Remove:
    """Slices on the hardware have the mark of an allocation that is over or was never known."""

    vendor: str
    allocation: str


Change = Confirm | Release | Revive | AskKubelet | SetForgotten | Remark | Find | Remove
