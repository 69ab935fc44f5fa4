"""What reconcile finds that must change, one thing each."""

from __future__ import annotations

from dataclasses import dataclass

from agent.core.model import Allocation, Owner


@dataclass(frozen=True, slots=True)
class RecallChange:
    """An allocation that we did not know, read back from the kubelet."""

    allocation: Allocation
    #: Why it is counted on the cards of its IDs, though its answer names cards.
    doubt: str = ""


@dataclass(frozen=True, slots=True)
class Confirm:
    """The kubelet says who has it. Then it was answered, whatever state a crash left it in."""

    allocation: str
    owner: Owner
    life: str = ""


@dataclass(frozen=True, slots=True)
class Release:
    allocation: str
    reason: str


@dataclass(frozen=True, slots=True)
class Revive:
    """One that was released, and that the kubelet still grants and shows: it was released wrongly."""

    allocation: str


@dataclass(frozen=True, slots=True)
class Doubt:
    """An allocation whose pod nobody shows, and that the kubelet's file still grants.

    The kubelet does not write that file when a pod goes: only what it writes next tells.
    """

    allocation: str
    resource: str


@dataclass(frozen=True, slots=True)
class Forget:
    """Whether the kubelet has lost its record of an allocation whose pod is there."""

    allocation: str
    forgotten: bool


@dataclass(frozen=True, slots=True)
class Remark:
    """What a person should know of an allocation in use; empty takes it back."""

    allocation: str
    text: str


@dataclass(frozen=True, slots=True)
class Find:
    """Slices on the hardware that bear the mark of an allocation, which did not know of any."""

    allocation: str
    partitions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Remove:
    """Slices that bear the mark of an allocation which is not ours any more, or never was known."""

    vendor: str
    allocation: str


Change = Confirm | Release | Revive | Doubt | Forget | Remark | Find | Remove
