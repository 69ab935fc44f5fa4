"""One vendor's process in a test: who hears it, and what is looked up of it in /proc."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio

from agent.core.model import VendorState
from agent.isolation.deadlines import Deadlines
from agent.isolation.vendor_memory_limit import MemoryLimit
from agent.isolation.vendor_supervisor import ProcessTiming, VendorSupervisor
from agent.vendor_api.agent import ContainerEdits, Device, HealthEvent, Settings, Vendor

HERE = str(Path(__file__).parents[1])
QUICK = Deadlines(open=30, discover=30, call=30, sample=30, prepare=30, events=0.05, close=2, kill=5)


class Recorder:
    """A sink that remembers, and wakes who waits."""

    def __init__(self) -> None:
        self.lists: list[tuple[Device, ...]] = []
        self.events: list[HealthEvent] = []
        self.losses: list[tuple[VendorState, str]] = []
        #: CDI specs, and after how many lists they came.
        self.specs: list[tuple[Mapping[str, str], int]] = []
        self.unmade: list[str] = []
        self._changed = asyncio.Event()

    def discovered(self, vendor: str, devices: Sequence[Device]) -> None:
        self.lists.append(tuple(devices))
        self._wake()

    def observed(self, vendor: str, events: Sequence[HealthEvent]) -> None:
        self.events.extend(events)
        self._wake()

    def specified(self, vendor: str, specs: Mapping[str, str]) -> None:
        self.specs.append((specs, len(self.lists)))

    def unspecified(self, vendor: str, reason: str) -> None:
        self.unmade.append(reason)

    def lost(self, vendor: str, state: VendorState, reason: str) -> None:
        self.losses.append((state, reason))
        self._wake()

    @property
    def faults(self) -> list[HealthEvent]:
        return [event for event in self.events if event.fault is not None]

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def until(self, condition: Callable[[], object]) -> None:
        with anyio.fail_after(30):
            while not condition():
                await self._changed.wait()


def vendor(backend: str = "Good", **settings: Any) -> Vendor:
    return Vendor(
        "acme",
        f"support.faulty_backends:{backend}",
        "acme.com/xpu",
        lambda devices, request: ContainerEdits(),
        settings=Settings(settings),
    )


@asynccontextmanager
async def serving(
    sink: Recorder,
    backend: str = "Good",
    *,
    deadlines: Deadlines = QUICK,
    every: float = 0.02,
    in_process: bool = False,
    memory_limit: int | MemoryLimit = 0,
    directory: Path | None = None,
    specs_again: tuple[float, float] = (3600.0, 3600.0),
    **settings: Any,
) -> AsyncIterator[VendorSupervisor]:
    process = VendorSupervisor(
        vendor(backend, **settings),
        sink,
        deadlines=deadlines,
        timing=ProcessTiming(every, (0.001, 0.01), specs_again),
        in_process=in_process,
        python_path=(HERE,),
        memory_limit=lambda: (
            MemoryLimit(memory_limit, "vendors.acme.memoryLimit")
            if isinstance(memory_limit, int)
            else memory_limit
        ),
        directory=directory,
    )
    task = asyncio.create_task(process.run())
    try:
        yield process
        assert not task.done(), task.result()
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


class Flag:
    """A file; while it exists, backends that know it misbehave."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.raise_()

    def __str__(self) -> str:
        return str(self.path)

    def raise_(self) -> None:
        self.path.touch()

    def lower(self) -> None:
        self.path.unlink()


def files_of(pid: int | None) -> list[str]:
    folder = f"/proc/{pid}/fd"
    found = []
    for number in os.listdir(folder):
        with suppress(FileNotFoundError):  # the one that lists the folder
            found.append(os.readlink(f"{folder}/{number}"))
    return found


def children() -> str:
    """The processes that this thread started and nobody collected."""
    return Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text()


def is_running(pid: str) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def runs_in_group(group: int | None) -> bool:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            if int(fields[2]) == group and fields[0] != "Z":
                return True
    return False


def exists(pid: int | None) -> bool:
    return Path(f"/proc/{pid}").exists()
