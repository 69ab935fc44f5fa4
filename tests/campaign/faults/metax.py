"""The process of MetaX's library dies between the steps of making and of removing a slice."""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random

from ..bed import CAP, Bed
from ..hardware import Offer
from ..metax import STEPS, MetaXCards
from ..traffic import Traffic
from .fault import Fault, Kind, Unreached


def cards(bed: Bed) -> MetaXCards:
    found = bed.hardware.vendors["metax"]
    assert isinstance(found, MetaXCards)
    return found


def has_metax(bed: Bed) -> bool:
    return "metax" in bed.hardware.vendors


class DiesAt(Fault):
    """The vendor's process dies before or after a call took effect; in half of the cases the agent, too."""

    def __init__(self, symbol: str, when: str, rng: Random) -> None:
        super().__init__(rng)
        self._symbol, self._when = symbol, when
        self._both = rng.random() < 0.5
        self.detail = "and the agent" if self._both else ""

    async def strike(self, bed: Bed, traffic: Traffic) -> None:
        its = cards(bed)
        offer = self.rng.choice([it for it in bed.hardware.offers if it.vendor == its.vendor])
        await bed.make_room(offer, 2)
        removes = self._symbol == "RemoveSgpu"
        pod = traffic.single(offer)
        if removes and not await bed.admit(pod):
            raise Unreached("no pod is admitted")
        before = its.stub.killed()
        its.dies_at(self._symbol, self._when)
        passing = asyncio.create_task(bed.delete(pod.uid) if removes else self._asks(bed, traffic, offer))

        async def died() -> bool:
            return its.stub.killed() > before

        reached = await bed.comes(died, CAP)
        if reached and self._both:
            await bed.agent.kill()
        await passing
        its.stub.clear(self._symbol)
        if not reached:
            raise Unreached(self._symbol)

    async def _asks(self, bed: Bed, traffic: Traffic, offer: Offer) -> None:
        for _ in range(3):
            if bed.agent.runs and await bed.admit(traffic.single(offer)):
                return

    async def mend(self, bed: Bed) -> None:
        await bed.revive()


KINDS = (
    *(
        Kind(
            f"library dies {when} {symbol}",
            partial(DiesAt, symbol, when),
            has_metax,
            mixes=False,
        )
        for symbol, when in STEPS
    ),
)
