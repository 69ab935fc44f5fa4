"""The vendor's library crashes, hangs, lies, or goes away."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from random import Random

from ..bed import Bed
from ..hardware import AnyCards, EnflameCards, MetaXCards, NvidiaCards
from ..traffic import Traffic
from .fault import Fault, Kind

#: What the driver takes along where it really goes: its slices.
KEPT = (MetaXCards, EnflameCards)


class _OfVendor(Fault):
    """Strikes one vendor of the node."""

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self.cards: AnyCards | None = None

    async def strike(self, bed: Bed, traffic: Traffic) -> None:
        name = self.rng.choice(sorted(bed.hardware.vendors))
        self.detail = name
        self.cards = bed.hardware.vendors[name]
        await self.hit(self.cards, bed, traffic)

    @abstractmethod
    async def hit(self, cards: AnyCards, bed: Bed, traffic: Traffic) -> None: ...

    async def mend(self, bed: Bed) -> None:
        assert self.cards is not None
        self.cards.behave()


class Segfault(_OfVendor):
    async def hit(self, cards: AnyCards, bed: Bed, traffic: Traffic) -> None:
        cards.segfault()
        traffic.begin()
        await asyncio.sleep(self.rng.uniform(0, 0.4))


class Hang(_OfVendor):
    """A call does not return, for less or for more time than the agent has patience."""

    async def hit(self, cards: AnyCards, bed: Bed, traffic: Traffic) -> None:
        pause = self.rng.choice((0.2, 0.7, 1.5))
        self.detail += f", {pause:g} s"
        cards.hang()
        traffic.begin()
        await asyncio.sleep(pause)


class HangInPrepare(_OfVendor):
    """The library hangs while it makes hardware; in half of the cases the agent is killed over it."""

    async def hit(self, cards: AnyCards, bed: Bed, traffic: Traffic) -> None:
        call = self.rng.choice(("prepare", "release", "partitions"))
        killed = self.rng.random() < 0.5
        self.detail += f", in {call}{', then killed' if killed else ''}"
        cards.hang_in(call)
        traffic.begin()
        if bed.pods:
            await bed.delete(self.rng.choice(sorted(bed.pods)))
        await asyncio.sleep(self.rng.uniform(0, 1.2))
        if killed:
            await bed.agent.kill()

    async def mend(self, bed: Bed) -> None:
        await super().mend(bed)
        await bed.agent.start()


class Garbage(_OfVendor):
    async def hit(self, cards: AnyCards, bed: Bed, traffic: Traffic) -> None:
        cards.garbage()
        await traffic.some()
        await asyncio.sleep(self.rng.uniform(0, 0.3))


class DriverGone(_OfVendor):
    """The driver is unloaded under running pods, and loaded again: proof for every broken card of it.

    MetaX's and Enflame's are only not found; "driver loaded anew" takes their slices, too.
    """

    async def hit(self, cards: AnyCards, bed: Bed, traffic: Traffic) -> None:
        cards.hide() if isinstance(cards, KEPT) else cards.unload()
        pause = self.rng.choice((0.1, 0.4, 1.0))
        self.detail += f", {pause:g} s"
        traffic.begin()
        await asyncio.sleep(pause)

    async def mend(self, bed: Bed) -> None:
        assert self.cards is not None
        self.cards.show() if isinstance(self.cards, KEPT) else self.cards.load()
        if isinstance(self.cards, NvidiaCards):  # whose faults end with that, if the agent saw it
            for card in [it for it in bed.hardware.broken if it.vendor == self.cards.vendor]:
                bed.hardware.reset(card)
            bed.forgetful = True


class LoadedAnew(Fault):
    """The driver is loaded anew: all slices are gone, and containers start again."""

    async def strike(self, bed: Bed, traffic: Traffic) -> None:
        its = next(it for it in bed.hardware.vendors.values() if isinstance(it, KEPT))
        its.unload()
        traffic.begin()
        await asyncio.sleep(self.rng.choice((0.1, 0.4, 1.0)))
        its.load()
        bed.hardware.broken -= {it for it in bed.hardware.broken if it.vendor == its.vendor}
        bed.forgetful = True
        bed.takes_stock()

    async def mend(self, bed: Bed) -> None:
        await bed.starts_all()


class CardGone(_OfVendor):
    """A card is not listed any more, and comes back."""

    async def hit(self, cards: AnyCards, bed: Bed, traffic: Traffic) -> None:
        its = [it for it in bed.hardware.cards() if it.vendor == cards.vendor]
        self.gone = self.rng.choice(its).index
        pause = self.rng.choice((0.1, 0.4, 1.0))
        self.detail += f" card {self.gone}, {pause:g} s"
        cards.remove(self.gone)
        traffic.begin()
        await asyncio.sleep(pause)

    async def mend(self, bed: Bed) -> None:
        assert self.cards is not None
        self.cards.restore(self.gone)


class Renumbered(_OfVendor):
    """Every card of the vendor gets another minor, under the agent or while it is away."""

    async def hit(self, cards: AnyCards, bed: Bed, traffic: Traffic) -> None:
        away = self.rng.random() < 0.5
        self.detail += " while the agent is away" if away else ""
        if away:
            await bed.agent.kill()
        cards.renumber()
        await traffic.some()

    async def mend(self, bed: Bed) -> None:
        await bed.revive()


def is_kept(bed: Bed) -> bool:
    return any(isinstance(it, KEPT) for it in bed.hardware.vendors.values())


def is_sliced(bed: Bed) -> bool:
    return any(it.prepares for it in bed.hardware.offers)


KINDS = (
    Kind("vendor segfaults", Segfault),
    Kind("vendor hangs", Hang),
    Kind("vendor hangs over slices", HangInPrepare, is_sliced, mixes=False),
    Kind("vendor answers garbage", Garbage),
    Kind("driver gone and back", DriverGone, mixes=False),
    Kind("driver loaded anew", LoadedAnew, is_kept, mixes=False),
    Kind("card gone and back", CardGone),
    Kind("minors renumbered", Renumbered),
)
