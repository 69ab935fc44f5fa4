"""Slices that vendors make while an Allocate is answered: how they are made, listed and removed."""

from __future__ import annotations

from collections.abc import Sequence

from agent.daemon.node_state import NodeState
from agent.daemon.vendors_in_service import VendorsInService
from agent.host.cdi_directory import CdiDirectory
from agent.vendor_api.agent import Partition, Request


class VendorHardware:
    """Calls the vendors' processes, and keeps back devices without their CDI specs on disk."""

    def __init__(self, vendors: VendorsInService, node: NodeState, cdi: CdiDirectory) -> None:
        self._vendors = vendors
        self._node = node
        self._cdi = cdi

    async def prepare(self, vendor: str, request: Request, uuids: Sequence[str]) -> Sequence[Partition]:
        """Make what the request needs on these cards; return once its CDI specs are on disk.

        Raises:
            VendorError: The vendor could not make the slices, or the specs could not be written.
        """
        made: Sequence[Partition] = await self._vendors.call(vendor, "prepare", request, tuple(uuids))
        await self._cdi.settle(vendor)
        return made

    async def release(self, vendor: str, allocation: str) -> None:
        """Remove the slices of this allocation.

        Raises:
            VendorError: The vendor could not remove them.
        """
        await self._vendors.call(vendor, "release", allocation)

    async def partitions(self, vendor: str) -> Sequence[Partition]:
        """All slices of the vendor's cards.

        Raises:
            VendorError: The vendor could not list them.
        """
        found: Sequence[Partition] = await self._vendors.call(vendor, "partitions")
        return found

    async def follow_specs(self) -> None:
        """Keep back the devices of a vendor while its CDI specs cannot be written, for ever."""
        async for errors in self._cdi.errors.watch():
            self._node.unwritten(errors)
