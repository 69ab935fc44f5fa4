"""A place to measure at: a scripted NVML, a kubelet that keeps time, and the process under test."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from nvml_stub import NvmlStub
from peers.process import Event
from peers.real import GoClient, built_peers

from agent.testing.simapi import SimApiServer

from . import processes
from .subjects import GPU, KUBECONFIG, NODE, Launch, Refused, Subject

PATIENCE = 60.0
MS = 1e6


@dataclass(frozen=True, slots=True)
class Running:
    """A process that is registered with the kubelet."""

    pid: int
    spawned_ns: int
    register: Event
    first: Event

    @property
    def start_ms(self) -> float:
        """From the spawn until the kubelet had the first list."""
        return float(self.first["t_ns"] - self.spawned_ns) / MS


class Place:
    """One directory with a kubelet; processes come and go."""

    def __init__(
        self, directory: Path, subject: Subject, stub: NvmlStub, kubelet: GoClient, api: SimApiServer
    ) -> None:
        self.directory = directory
        self.stub = stub
        self.kubelet = kubelet
        self._subject = subject
        self._api = api

    def forget(self) -> None:
        """Let the next process start from nothing."""
        shutil.rmtree(self.directory / "state", ignore_errors=True)
        with suppress(LookupError):
            self._api.delete_object("Device", NODE)
        self.kubelet.events.clear()

    @asynccontextmanager
    async def running(
        self, vendors: Mapping[str, Any] | None = None, *, resource: str = GPU, watched: bool = False
    ) -> AsyncIterator[Running]:
        """Start the process and wait until the kubelet has its first list; end it at the end."""
        launch = self._subject.launch(self.directory, self.stub, vendors or {}, watched=watched)
        spawned_ns = time.time_ns()
        process = self._spawn(launch)
        try:
            register = await self._while_alive(process, "register", resource)
            first = await self._while_alive(process, "list", resource)
            yield Running(process.pid, spawned_ns, register, first)
        finally:
            await _end(process)
            with suppress(TimeoutError):
                await self.event("end", resource, timeout=5)

    async def told(self) -> None:
        """Return once our agent has told Koordinator of all cards, by the Device of the node.

        Raises:
            Refused: It does not, and what is measured would be less than its work.
        """
        if self._subject.is_rival:
            return
        try:
            with anyio.fail_after(PATIENCE):
                await self._api.wait(lambda it: it.find("Device", NODE) is not None)
        except TimeoutError:
            raise Refused(f"no Device in time; the end of the log:\n{self._last_words()}") from None

    async def _while_alive(self, process: subprocess.Popen[bytes], kind: str, resource: str) -> Event:
        until = time.monotonic() + PATIENCE
        while process.poll() is None and time.monotonic() < until:
            with suppress(TimeoutError):
                return await self.event(kind, resource, timeout=0.5)
        words = "did not register in time" if process.poll() is None else "ended"
        raise Refused(f"the process {words}; the end of its log:\n{self._last_words()}")

    def _spawn(self, launch: Launch) -> subprocess.Popen[bytes]:
        with (self.directory / "log").open("wb") as log:
            environment = {**os.environ, **launch.environment}
            return subprocess.Popen([*launch.command], env=environment, stdout=log, stderr=log)

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

    def _last_words(self) -> str:
        return "\n".join((self.directory / "log").read_text(errors="replace").splitlines()[-15:])


async def _end(process: subprocess.Popen[bytes]) -> None:
    family = processes.tree(process.pid)
    process.terminate()
    for _ in range(500):
        if process.poll() is not None:
            break
        await asyncio.sleep(0.01)
    else:
        process.kill()
        process.wait()
    for left in family[1:]:
        with suppress(ProcessLookupError):
            os.kill(left, 9)


@asynccontextmanager
async def place(subject: Subject, cards: int = 8) -> AsyncIterator[Place]:
    """A fresh place, gone afterwards."""
    peers = built_peers()
    if not peers:
        raise Refused("build/peers is empty: build the measuring kubelet with tests/peers/build.sh")
    directory = Path(tempfile.mkdtemp(prefix="xb-", dir="/tmp"))
    try:
        subject.prepare(directory)
        stub = NvmlStub(directory, cards)
        async with SimApiServer() as api, GoClient(peers[-1], directory) as kubelet:
            api.put_object({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
            api.kubeconfig(directory / KUBECONFIG)
            yield Place(directory, subject, stub, kubelet, api)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
