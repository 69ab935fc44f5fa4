"""PodResources is away, slow, or refuses us since others ask too often."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, suppress

from agent.kubelet.errors import KubeletError
from agent.kubelet.podresources import LIST
from agent.kubelet.rpc import call
from agent.testing.kubelet import SimKubelet

from .. import kubelets
from ..bed import Bed
from ..traffic import Traffic
from .fault import Fault, Kind


class Away(Fault):
    """The socket is somewhere else for a while, and pods come and go."""

    async def strike(self, bed: Bed, traffic: Traffic) -> None:
        self._stack = ExitStack()
        if bed.kubelet.pod_resources_socket.exists():
            self._stack.enter_context(kubelets.moved(bed.kubelet.pod_resources_socket))
        await traffic.some()
        await asyncio.sleep(self.rng.choice((0.0, 0.5, 1.0)))

    async def mend(self, bed: Bed) -> None:
        self._stack.close()


class Slow(Fault):
    async def strike(self, bed: Bed, traffic: Traffic) -> None:
        assert isinstance(bed.kubelet, SimKubelet)
        bed.kubelet.pod_resources_delay = self.rng.choice((0.2, 0.6))
        self.detail = f"{bed.kubelet.pod_resources_delay:g} s"
        await traffic.some()
        await asyncio.sleep(0.5)

    async def mend(self, bed: Bed) -> None:
        assert isinstance(bed.kubelet, SimKubelet)
        bed.kubelet.pod_resources_delay = 0.0


class Limited(Fault):
    """Others use up the limit that all clients of the node share."""

    async def strike(self, bed: Bed, traffic: Traffic) -> None:
        asked = refused = 0
        over = asyncio.get_running_loop().time() + 0.6

        async def ask() -> None:
            nonlocal asked, refused
            while asyncio.get_running_loop().time() < over:
                asked += 1
                try:
                    await call(bed.kubelet.pod_resources_socket, LIST, b"", timeout=1.0)
                except KubeletError:
                    refused += 1
                    await asyncio.sleep(0.005)

        with suppress(ExceptionGroup):
            await asyncio.gather(*(ask() for _ in range(6)), traffic.some())
        self.detail = f"{refused} of {asked} refused"


def is_simulated(bed: Bed) -> bool:
    return isinstance(bed.kubelet, SimKubelet)


KINDS = (
    Kind("PodResources away", Away),
    Kind("PodResources slow", Slow, is_simulated),
    Kind("PodResources refuses", Limited),
)
