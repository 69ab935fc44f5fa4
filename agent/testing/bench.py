"""The test bench of a vendor: calls to the vendor's own process, and injectors of faults."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from agent.core.usage.usage_report import VendorSample
from agent.isolation import sample_answers, vendor_answers
from agent.isolation.vendor_process import BackendFailure, ContactLost, VendorProcess
from agent.vendor_api.agent import Device, HealthEvent, Settings, Vendor

PATIENCE = 30.0  # seconds for anything that has no tighter rule


class FaultInjector(Protocol):
    """How tests break a vendor's stub library. Checks that need an injector are skipped without one."""

    def inject(self, uuid: str) -> None:
        """Make the library report a fault of this device as an event."""

    def clear(self, uuid: str) -> None: ...

    def absent(self) -> Mapping[str, Any] | None:
        """Settings that hide the library from the backend; None where there are none."""


@runtime_checkable
class WatchInjector(Protocol):
    """More methods of an injector that can break the watch for events."""

    def blind(self) -> None:
        """Let waiting for events fail, or leave a device without a watch."""

    def sees(self) -> None:
        """Repair the watch."""


@runtime_checkable
class SliceInjector(Protocol):
    """More methods of an injector that can make foreign slices."""

    def plant(self, uuid: str) -> None:
        """Make a slice of this card without the agent's mark."""

    def uproot(self) -> None:
        """Remove the slice."""


@runtime_checkable
class CrashInjector(Protocol):
    """More methods of an injector that can end the vendor's process while it makes a slice."""

    def steps(self) -> Sequence[str]:
        """The steps in which `prepare` makes a slice, by the names of the library's calls."""

    def crash_at(self, step: str) -> None:
        """Let the process die once, the next time that it reaches this step."""


class NotMade(Exception):
    """Raised when a check cannot be made here; the text says why."""


class Bench:
    """A vendor under test."""

    def __init__(self, vendor: Vendor, faults: FaultInjector | None, python_path: Sequence[str]) -> None:
        self.vendor = vendor
        self.faults = faults
        self.python_path = tuple(python_path)

    @asynccontextmanager
    async def talk(
        self,
        settings: Mapping[str, Any] | None = None,
        watch: float | None = None,
        directory: Path | None = None,
    ) -> AsyncIterator[Talk]:
        """Start a process of the vendor without waiting until the backend has opened."""
        vendor = self.vendor if settings is None else replace(self.vendor, settings=Settings(settings))
        contact = VendorProcess(
            vendor, watch=watch, python_path=self.python_path, emit=_to_stderr, directory=directory
        )
        talk = Talk(contact)
        try:
            await contact.connect()
            talk.begin()
            yield talk
        finally:
            await talk.end()

    @asynccontextmanager
    async def opened(self, watch: float | None = None, directory: Path | None = None) -> AsyncIterator[Talk]:
        async with self.talk(watch=watch, directory=directory) as talk:
            await talk.opened()
            yield talk

    async def devices(self) -> tuple[Device, ...]:
        """The devices of this node.

        Raises:
            NotMade: There are none.
        """
        async with self.opened() as talk:
            devices = await talk.discover()
        if not devices:
            raise NotMade("there is no device")
        return devices

    @property
    def making(self) -> str:
        """A resource with made hardware, or the vendor's resource where there is none."""
        slices = self.vendor.makes
        return next(iter(slices.resources if slices else ()), self.vendor.resource)

    def injector(self) -> FaultInjector:
        if self.faults is None:
            raise NotMade("there is no fault injector")
        return self.faults

    def slicing(self) -> FaultInjector:
        """The injector of a vendor that makes slices. Without an injector no slice is made on the hardware.

        Raises:
            NotMade: There is no injector, or the vendor makes no slices.
        """
        faults = self.injector()
        if not self.vendor.prepares(self.making):
            raise NotMade("the vendor does not prepare")
        return faults


def _to_stderr(line: str, dropped: int) -> None:
    sys.stderr.write(f"{line}\n" if not dropped else f"({dropped} lines dropped) {line}\n")


class Talk:
    """Calls to one vendor process. If the process ends during a call, the call fails."""

    def __init__(self, contact: VendorProcess) -> None:
        self._contact = contact
        self._listening: asyncio.Task[None] | None = None
        self._blind = False
        self.heard: asyncio.Queue[HealthEvent | BackendFailure] = asyncio.Queue()
        self.overrides: frozenset[str] = frozenset()
        self.one_caller = False
        self._samples_beside = False

    def begin(self) -> None:
        self._listening = asyncio.create_task(self._contact.listen(self))

    def events(self, raw: bytes) -> None:
        if self._blind:
            self._blind = False
            self.heard.put_nowait(HealthEvent(None, None))  # as the agent takes it
        for event in vendor_answers.events(raw):
            self.heard.put_nowait(event)

    def blind(self, failure: BackendFailure) -> None:
        self._blind = True
        self.heard.put_nowait(failure)

    async def opened(self) -> None:
        raw = await self._or_the_end(self._contact.opened(PATIENCE))
        opened: vendor_answers.OpenedBackend = vendor_answers.decode("open", raw)
        self.overrides, self.one_caller = opened.methods, opened.one_caller

    def needs(self, method: str) -> None:
        if method not in self.overrides:
            raise NotMade(f"the backend has no {method}")

    def needs_use(self) -> None:
        """Raises NotMade: the backend tells nothing of use."""
        if "processes" not in self.overrides:
            self.needs("usage")

    async def ask(self, method: str, *args: Any, seconds: float = PATIENCE) -> Any:
        return vendor_answers.decode(method, await self._or_the_end(self._contact.ask(method, args, seconds)))

    async def sample(self, seconds: float) -> VendorSample:
        """Sample as the agent does: beside other calls, unless the library has one caller."""
        if self.one_caller:
            return sample_answers.sample(await self.ask("sample", seconds=seconds))
        if not self._samples_beside:
            await self.ask("start_sampling")
            self._samples_beside = True
        raw = await self._or_the_end(self._contact.sample(seconds))
        return sample_answers.sample(raw)

    async def discover(self) -> tuple[Device, ...]:
        devices: tuple[Device, ...] = await self.ask("discover")
        return devices

    async def _or_the_end(self, call: Awaitable[bytes]) -> bytes:
        assert self._listening is not None
        answer = asyncio.ensure_future(call)
        try:
            await asyncio.wait({answer, self._listening}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                await self._listening  # raises how the process ended
            return await answer
        finally:
            answer.cancel()

    async def end(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            with suppress(asyncio.CancelledError, ContactLost, vendor_answers.WrongAnswer):
                await self._listening
        await self._contact.end(grace=1.0)
