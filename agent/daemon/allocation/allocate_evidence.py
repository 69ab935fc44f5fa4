"""What the allocator asks of the world: the kubelet's word, a disk, and the hardware."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Protocol

from agent.core.allocation.reconcile_evidence import CheckpointAnswer
from agent.core.model import Owner
from agent.vendor_api.agent import Partition, Request


class AllocationStore(Protocol):
    """Where the ledger outlives the process."""

    async def save(self, *, durable: bool) -> None:
        """Write the ledger; durable means that it survives a power cut."""


#: Have the hardware of a request made by this vendor on these cards; called again it changes nothing.
Prepare = Callable[[str, Request, Sequence[str]], Awaitable[Sequence[Partition]]]
#: Have the hardware of this vendor's allocation removed.
ReleaseSlices = Callable[[str, str], Awaitable[None]]
#: Let go of what is over but still lies on the hardware; whether anything was.
MakeRoom = Callable[[], Awaitable[bool]]


class KubeletEvidence(Protocol):
    """What the kubelet says, asked for where an answer depends on it."""

    @property
    def life(self) -> str:
        """Which life of the kubelet this is."""

    async def granted(self) -> Sequence[CheckpointAnswer] | None:
        """What its checkpoint holds; None where it cannot be read."""

    async def shows(self, owners: Collection[Owner]) -> Collection[Owner]:
        """Those of them whose pods it lists now; in doubt it does not."""

    async def gone(self, owners: Collection[Owner]) -> Collection[Owner]:
        """Those of them whose pods are over; in doubt they are not."""

    async def shown_with(self, resource: str, ids: Collection[str]) -> Mapping[str, tuple[str, str]]:
        """Those of the IDs with which it lists a pod now: to its namespace and name; in doubt none."""
