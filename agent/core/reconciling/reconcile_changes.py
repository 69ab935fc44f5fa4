"""The changes that reconciling finds, one value for each kind. Pure."""

from __future__ import annotations

from msgspec import Struct

from agent.core.model import Allocation, Owner


class RecoveredAllocation(Struct, frozen=True):
    """An allocation that the ledger lacks was recovered from the kubelet."""

    allocation: Allocation
    #: Why the cards that its answer names are ignored; then the allocation counts on the cards of its IDs.
    why_cards_ignored: str = ""


class Confirm(Struct, frozen=True):
    """The kubelet says which container has the allocation: it was answered, whatever a crash left."""

    allocation: str
    owner: Owner
    life: str = ""


class Release(Struct, frozen=True):
    """The allocation is over."""

    allocation: str
    reason: str


class Revive(Struct, frozen=True):
    """An allocation was released wrongly: the kubelet still grants and shows it."""

    allocation: str


class AskKubelet(Struct, frozen=True):
    """Have the kubelet write its checkpoint: no other source shows the pod of a granted allocation.

    The kubelet does not write that file when a pod ends. The next writing shows whether the pod is gone.
    """

    allocation: str
    resource: str
    #: The allocation is too young to be released: the kubelet may be asked again after the grace.
    is_young: bool = False


class SetForgotten(Struct, frozen=True):
    """The kubelet has lost its record of the allocation of a living pod, or has that record again."""

    allocation: str
    forgotten: bool


class Remark(Struct, frozen=True):
    """What a person should know of an allocation in use; an empty text removes an earlier remark."""

    allocation: str
    text: str


class Find(Struct, frozen=True):
    """Slices on the hardware have the mark of an allocation that knew no slices."""

    allocation: str
    partitions: tuple[str, ...]


class Remove(Struct, frozen=True):
    """Slices on the hardware have the mark of an allocation that is over or was never known."""

    vendor: str
    allocation: str


Change = Confirm | Release | Revive | AskKubelet | SetForgotten | Remark | Find | Remove
