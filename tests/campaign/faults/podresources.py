"""PodResources is away, slow, stands still, or refuses us since others ask too often."""

from __future__ import annotations

import asyncio
from abc import abstractmethod

from ..bed import Bed
from ..traffic import Traffic
from .fault import Fault, Kind


class _OfLister(Fault):
    async def strike(self, bed: Bed, traffic: Traffic) -> None:
        await self.hit(bed)
        await traffic.some()
        await asyncio.sleep(self.rng.choice((0.0, 0.4, 1.0)))

    @abstractmethod
    async def hit(self, bed: Bed) -> None: ...

    async def mend(self, bed: Bed) -> None:
        await bed.lister.heal()


class Away(_OfLister):
    async def hit(self, bed: Bed) -> None:
        await bed.lister.go_away()


class Slow(_OfLister):
    async def hit(self, bed: Bed) -> None:
        bed.lister.delay = self.rng.choice((0.2, 0.6))
        self.detail = f"{bed.lister.delay:g} s"


class Stalled(_OfLister):
    """It takes the call and does not answer; what was asked before is answered late."""

    async def hit(self, bed: Bed) -> None:
        bed.lister.stall()


class Limited(_OfLister):
    """Others use up the limit that all clients of the node share."""

    async def hit(self, bed: Bed) -> None:
        bed.lister.limit()


KINDS = (
    Kind("PodResources away", Away),
    Kind("PodResources slow", Slow),
    Kind("PodResources stands still", Stalled),
    Kind("PodResources refuses", Limited),
)
