"""What an Allocate needs from outside: the kubelet's evidence, the disk and the hardware."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Protocol

from agent.core.model import Owner
from agent.core.reconciling.reconcile_evidence import CheckpointAnswer
from agent.vendor_api.agent import Partition, Request


class AllocationStore(Protocol):
    """The disk that keeps the ledger over restarts."""

    async def save(self, *, durable: bool) -> None:
        """Write the ledger. `durable`: it survives a power cut."""


#: Takes vendor, request and cards: makes the hardware. A second call changes nothing.
Prepare = Callable[[str, Request, Sequence[str]], Awaitable[Sequence[Partition]]]
#: Takes vendor and allocation: removes the hardware of the allocation.
ReleaseSlices = Callable[[str, str], Awaitable[None]]
#: Removes hardware of allocations that are over; returns whether there was any.
MakeRoom = Callable[[], Awaitable[bool]]


class KubeletEvidence(Protocol):
    """Kubelet evidence: the part of the evidence that an Allocate needs at once."""

    @property
    def life(self) -> str:
        """The present life of the kubelet; empty where it is not known."""

    async def checkpoint_answers(self) -> Sequence[CheckpointAnswer] | None:
        """The answers in the kubelet's checkpoint; None where it cannot be read."""

    async def existing_owners(self, owners: Collection[Owner]) -> Collection[Owner]:
        """The owners with a pod that exists. An owner is left out where that is not known."""

    async def ended_owners(self, owners: Collection[Owner]) -> Collection[Owner]:
        """The owners with a pod that has ended. An owner is left out where that is not known."""

    async def pods_with_ids(
        self, resource: str, ids: Collection[str], owners: Collection[Owner | None]
    ) -> Mapping[str, tuple[str, str]]:
        """Device ID to the (namespace, name) of its pod, as the kubelet says now; empty where unknown.

        `owners`: the owners of the allocations that hold the IDs. Other pods may be left out.
        """
