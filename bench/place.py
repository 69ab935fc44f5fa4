"""A place to measure at: a scripted NVML, a kubelet that keeps time, and the process under test."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import anyio
from nvml_stub import NvmlStub
from peers.process import Event
from peers.real import GoClient, Timing, built_peers

from agent.testing.simapi import SimApiServer

from .spawned import PATIENCE, Spawned, spawned
from .subjects import GPU, KUBECONFIG, NODE, Refused, Setup, Subject

MS = 1e6


@dataclass(frozen=True, slots=True)
class Running:
    """A process that is registered with the kubelet."""

    process: Spawned
    register: Event
    first: Event
    #: Processor time of all its processes by the time that the first list had come.
    cpu_seconds: float

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def start_ms(self) -> float:
        """From the spawn until the kubelet had the first list."""
        return float(self.first["t_ns"] - self.process.spawned_ns) / MS


class Place:
    """One directory with a kubelet; processes come and go."""

    def __init__(
        self, directory: Path, subject: Subject, stub: NvmlStub, kubelet: GoClient, api: SimApiServer
    ) -> None:
        self.directory = directory
        self.stub = stub
        self.kubelet = kubelet
        self.subject = subject
        self._api = api

    @property
    def role(self) -> str:
        """The column of the subject that is measured here."""
        return self.subject.role

    def forget(self) -> None:
        """Let the next process start from nothing."""
        forget(self.directory, self._api)
        self.kubelet.events.clear()

    @asynccontextmanager
    async def running(self, setup: Setup | None = None, *, resource: str = GPU) -> AsyncIterator[Running]:
        """Start the process and wait until the kubelet has its first list; end it at the end."""
        launch = self.subject.launch(self.directory, self.stub, setup or Setup())
        try:
            async with spawned(launch, self.directory / "log") as process:
                first = await process.hear(lambda within: self.event("list", resource, timeout=within))
                spent = process.cpu_seconds()
                register = await self.event("register", resource)
                yield Running(process, register, first, spent)
        finally:
            with suppress(TimeoutError):
                await self.event("end", resource, timeout=5)

    async def reported(self, running: Running) -> None:
        """Return once our agent has reported all cards to Koordinator, by the Device of the node.

        Raises:
            Refused: It does not, and what is measured would be less than its work.
        """
        if self.subject.role != "ours":
            return
        try:
            with anyio.fail_after(PATIENCE):
                await self._api.wait(lambda it: it.find("Device", NODE) is not None)
        except TimeoutError:
            end = running.process.last_words()
            raise Refused(f"no Device in time; the end of the log:\n{end}") from None

    async def event(
        self,
        kind: str,
        resource: str = GPU,
        accept: Callable[[Event], bool] = lambda event: True,
        timeout: float = PATIENCE,
    ) -> Event:
        """The next event of this kind."""
        return await self.kubelet.next(
            lambda it: it["event"] == kind and it.get("resource") == resource and accept(it), timeout
        )

    async def flip(self, card: int, unhealthy: int, resource: str = GPU) -> float:
        """Let a card report XID 79; milliseconds until the kubelet has the list that says so."""
        began = time.time_ns()
        self.stub.xid(card, 79)
        told = await self.event("list", resource, lambda it: it["unhealthy"] == unhealthy)
        return float(told["t_ns"] - began) / MS

    async def device_ids(self, resource: str = GPU) -> list[str]:
        """The device IDs of the newest list."""
        return sorted(await self.kubelet.ids(resource))

    async def allocate(self, ids: list[str], calls: int, resource: str = GPU) -> Timing:
        """So many Allocates of these IDs, one after the other.

        Raises:
            Refused: One of them failed.
        """
        return _without_errors(await self.kubelet.allocate(resource, ids, calls))

    async def allocate_each(self, ids: Sequence[str], resource: str = GPU) -> Timing:
        """One Allocate for each of these IDs, one after the other, as a kubelet gives IDs that are free.

        Raises:
            Refused: One of them failed.
        """
        return _without_errors(await self.kubelet.allocate_each(resource, ids))


def _without_errors(timing: Timing) -> Timing:
    if timing.errors:
        raise Refused(f"Allocate failed: {timing.error}")
    return timing


def forget(directory: Path, api: SimApiServer) -> None:
    """Remove what an agent leaves there for the next one."""
    shutil.rmtree(directory / "state", ignore_errors=True)
    with suppress(LookupError):
        api.delete_object("Device", NODE)


def peer() -> Path:
    """The newest peer.

    Raises:
        Refused: None is built.
    """
    if not (peers := built_peers()):
        raise Refused("build/peers is empty: build the measuring kubelet with tests/peers/build.sh")
    return peers[-1]


@asynccontextmanager
async def ground(subject: Subject, cards: int = 8) -> AsyncIterator[tuple[Path, NvmlStub, SimApiServer]]:
    """A fresh directory with a stub library, and an API server with the node; all gone afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="xb-", dir="/tmp"))
    try:
        subject.prepare(directory)
        stub = NvmlStub(directory, cards)
        async with SimApiServer() as api:
            api.put_object({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
            api.kubeconfig(directory / KUBECONFIG)
            yield directory, stub, api
    finally:
        subject.tidy()
        shutil.rmtree(directory, ignore_errors=True)


@asynccontextmanager
async def place(subject: Subject, cards: int = 8) -> AsyncIterator[Place]:
    """A fresh place, gone afterwards."""
    binary = peer()
    async with ground(subject, cards) as (directory, stub, api), GoClient(binary, directory) as kubelet:
        yield Place(directory, subject, stub, kubelet, api)


@asynccontextmanager
async def places(subjects: Iterable[Subject]) -> AsyncIterator[list[Place]]:
    """A place for each subject, for measurements in turns."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(place(it)) for it in subjects]
