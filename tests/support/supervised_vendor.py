"""A vendor's process under its supervisor, for tests in which the process is lost and replaced."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

import anyio

from agent.core.model import VendorState
from agent.isolation.deadlines import Deadlines
from agent.isolation.vendor_supervisor import ProcessTiming, VendorSupervisor
from agent.vendor_api.agent import Device, HealthEvent, Vendor

PATIENCE = 60.0  # seconds


class Supervised:
    """A supervisor's sink: the lists of devices, and why contact was lost."""

    def __init__(self) -> None:
        self.process: VendorSupervisor
        self.lists: list[Sequence[Device]] = []
        self.losses: list[str] = []
        self._changed = asyncio.Event()

    def discovered(self, vendor: str, devices: Sequence[Device]) -> None:
        self.lists.append(devices)
        self._wake()

    def observed(self, vendor: str, events: Sequence[HealthEvent]) -> None:
        """Not what these tests are about."""

    def specified(self, vendor: str, specs: Mapping[str, str]) -> None:
        """Nor are CDI specs."""

    def unspecified(self, vendor: str, reason: str) -> None:
        """Nor that there are none."""

    def lost(self, vendor: str, state: VendorState, reason: str) -> None:
        self.losses.append(reason)
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def until(self, condition: Callable[[], object]) -> None:
        with anyio.fail_after(PATIENCE):
            while not condition():
                await self._changed.wait()


@asynccontextmanager
async def supervised(vendor: Vendor, call: float) -> AsyncIterator[Supervised]:
    """Run the vendor's process, in which each call but the first ones has so many seconds."""
    sink = Supervised()
    sink.process = VendorSupervisor(
        vendor, sink, timing=ProcessTiming(0.1, (0.001, 0.01)), deadlines=Deadlines(events=0.05, call=call)
    )
    running = asyncio.create_task(sink.process.run())
    try:
        await sink.until(lambda: sink.lists)
        yield sink
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
