"""A node to measure at: the kubelet's real device manager, the process under test, and pods."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from nvml_stub import NvmlStub
from peers.real import RealKubelet

from agent.testing.node_kubelet import Container, Pod
from agent.testing.simapi import SimApiServer

from .place import forget, ground, peer
from .spawned import PATIENCE, Spawned
from .subjects import GPU, Refused, Setup, Subject

#: How often the kubelet is asked whether its count is as wanted, seconds.
LOOK_EVERY = 0.005
#: Pods between two words on how far a node is.
SAID_EVERY = 250


@dataclass(frozen=True, slots=True)
class AllocateCalls:
    """How many Allocates the kubelet has called since its start, and the seconds that it waited for them."""

    calls: float
    seconds: float


class Node:
    """One directory with a real device manager; a plugin serves `devices` IDs there."""

    def __init__(
        self, subject: Subject, stub: NvmlStub, kubelet: RealKubelet, api: SimApiServer, setup: Setup
    ) -> None:
        self.subject = subject
        self.kubelet = kubelet
        self.directory = kubelet.plugin_dir.parent
        self.devices = setup.cards * max(setup.replicas, 1)
        self.process: Spawned | None = None
        #: The pods on the node, the oldest first.
        self.pods: list[Pod] = []
        self._stub = stub
        self._api = api
        #: How the plugin is started.
        self.setup = setup
        self._numbers = itertools.count()

    @property
    def role(self) -> str:
        """The column of the subject that is measured here."""
        return self.subject.role

    @property
    def running(self) -> Spawned:
        """The process under test, which has been started."""
        assert self.process is not None, "the plugin has not been started"
        return self.process

    async def start(self) -> float:
        """Start the plugin; milliseconds until the kubelet counts all of its devices as allocatable."""
        began = time.monotonic()
        self.spawn()
        await self.allocatable()
        return (time.monotonic() - began) * 1000

    def spawn(self) -> None:
        """Start the plugin, and wait for nothing."""
        launch = self.subject.launch(self.directory, self._stub, self.setup)
        self.process = Spawned(launch, self.directory / "log")

    async def allocatable(self) -> None:
        """Wait until the kubelet counts all devices as allocatable."""
        await self.running.hear(lambda within: self._counted(self.devices, within))

    async def _counted(self, wanted: int, within: float) -> None:
        async with asyncio.timeout(within):
            while True:
                counts = (await self.kubelet.capacity()).get(GPU)
                if (counts.allocatable if counts else 0) == wanted:
                    return
                await asyncio.sleep(LOOK_EVERY)

    async def kill(self) -> None:
        """Kill the plugin, and wait until the kubelet knows: a count of before would look like a new one."""
        self.running.kill()
        await self._counted(0, PATIENCE)

    async def crash(self) -> float:
        """Kill the plugin and start it again; milliseconds until all devices are allocatable again."""
        began = time.monotonic()
        await self.kill()
        self.spawn()
        await self.allocatable()
        return (time.monotonic() - began) * 1000

    async def stop(self) -> None:
        """End the plugin in good order."""
        if self.process is not None:
            await self.process.end()

    async def forget(self) -> None:
        """End the plugin, and let the next one start from nothing."""
        await self.stop()
        await self._counted(0, PATIENCE)
        forget(self.directory, self._api)

    async def admit(self) -> float:
        """Let the kubelet admit a pod with one device; milliseconds until the kubelet has.

        Raises:
            Refused: The pod was not admitted.
        """
        number = next(self._numbers)
        pod = Pod(f"training-job-{number:05d}-worker-0", (Container({GPU: 1}),))
        began = time.perf_counter()
        admission = await self.kubelet.admit(pod)
        took = (time.perf_counter() - began) * 1000
        if not admission.admitted:
            raise Refused(f"pod {number} was not admitted: {admission.reason}: {admission.message}")
        self.pods.append(pod)
        return took

    async def delete(self, pod: Pod) -> None:
        """Delete the pod; the kubelet frees its device when it next counts."""
        self.pods.remove(pod)
        await self.kubelet.delete(pod.uid)

    async def allocate_calls(self) -> AllocateCalls:
        """The kubelet's own account of its Allocate calls."""
        return AllocateCalls(**await self.kubelet.allocations(GPU))

    async def kubelet_book(self) -> dict[str, frozenset[str]]:
        """Pod UID to the device IDs that the kubelet has given the pod."""
        return {pod.uid: (await self.kubelet.devices(pod.uid))["main"][GPU] for pod in self.pods}

    async def fill(self, pods: int, says: Callable[[str], None]) -> None:
        """Admit pods until the node has so many."""
        while len(self.pods) < pods:
            await self.admit()
            if len(self.pods) % SAID_EVERY == 0:
                says(f"{self.subject.name}: {len(self.pods)} of {pods} pods")


@asynccontextmanager
async def node(subject: Subject, setup: Setup) -> AsyncIterator[Node]:
    """A fresh node with no plugin yet, gone afterwards with the plugin."""
    binary = peer()
    async with (
        ground(subject, setup.cards) as (directory, stub, api),
        RealKubelet(binary, directory) as kubelet,
    ):
        measured = Node(subject, stub, kubelet, api, setup)
        try:
            yield measured
        finally:
            await measured.stop()


@asynccontextmanager
async def nodes(subjects: Iterable[Subject], setup: Setup) -> AsyncIterator[list[Node]]:
    """A node for each subject, for measurements in turns."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(node(it, setup)) for it in subjects]
