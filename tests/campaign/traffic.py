"""Pods that come and go while faults happen."""

from __future__ import annotations

import asyncio
from random import Random
from uuid import UUID

from agent.testing.node_kubelet import Container, Pod

from .bed import Bed
from .hardware import Offer

#: A node with more pods than these deletes sooner than it admits.
PODS = 5
#: The kubelet has no deadline for an admission; one that takes longer would freeze a node.
PATIENCE = 30.0


class Hung(Exception):
    """Raised when an admission does not end."""


class Traffic:
    """Draws pods from a seed, and keeps the admissions that are under way."""

    def __init__(self, bed: Bed, rng: Random) -> None:
        self._bed = bed
        self._rng = rng
        self._running: set[asyncio.Task[bool]] = set()

    async def some(self) -> None:
        """A few pods more or less, one after another."""
        for _ in range(self._rng.randint(1, 3)):
            await self.one()

    async def one(self) -> None:
        if self._rng.random() < len(self._bed.pods) / PODS - 0.2:
            await self._end(self._rng.choice(sorted(self._bed.pods)))
        else:
            await self._bed.admit(self.pod())

    async def _end(self, uid: str) -> None:
        """Delete the pod, or let it end by itself; one that ended goes later."""
        if self._rng.random() < 0.25:
            await self._bed.finish(uid)
        elif self._bed.finished and self._rng.random() < 0.3:
            await self._bed.delete(self._bed.finished[0])
        else:
            await self._bed.delete(uid)

    def begin(self) -> None:
        """Ask for a pod, and do not wait: what is asked may be about to die."""
        self._running.add(asyncio.create_task(self._bed.admit(self.pod())))

    async def end(self) -> None:
        """Wait for what is under way.

        Raises:
            Hung: An admission does not end.
        """
        running, self._running = self._running, set()
        if not running:
            return
        _, hung = await asyncio.wait(running, timeout=PATIENCE)
        for it in hung:
            it.cancel()
        if hung:
            raise Hung(f"{len(hung)} admissions do not end within {PATIENCE:g} s")
        await asyncio.gather(*running)

    def pod(self, offer: Offer | None = None) -> Pod:
        """A pod of one of the shapes that the kubelet treats in ways of their own."""
        shape = self._rng.choice(("one", "one", "one", "two", "init", "sidecar"))
        first = self._container("main", offer)
        containers: tuple[Container, ...]
        match shape:
            case "two":
                containers = (first, self._container("beside", offer))
            case "init":
                containers = (Container(first.limits, "before", init=True), first)
            case "sidecar":
                containers = (Container(self._container("", offer).limits, "aside", restartable=True), first)
            case _:
                containers = (first,)
        number = self._rng.getrandbits(128)
        return Pod(f"pod-{number >> 96:08x}", containers, uid=str(UUID(int=number)), static=number % 8 == 0)

    def single(self, offer: Offer) -> Pod:
        """A pod of one container with one ID of the resource."""
        number = self._rng.getrandbits(128)
        return Pod(f"one-{number >> 96:08x}", (Container({offer.name: 1}),), uid=str(UUID(int=number)))

    def _container(self, name: str, offer: Offer | None) -> Container:
        offer = offer or self._rng.choice(self._bed.hardware.offers)
        return Container({offer.name: self._rng.choice((1, 1, 1, 2))}, name)
