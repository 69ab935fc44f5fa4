"""Enflame's tool, or who runs it, dies while a slice is made or removed; others make slices, too."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from random import Random

from scenarios.enflame import DRS

from ..bed import CAP, LOOK, Bed
from ..enflame import EnflameCards
from ..hardware import Offer
from ..traffic import Traffic
from .fault import Fault, Kind, Unreached

#: Commands of the tool by which each slice comes ...
STEPS = tuple((command, when) for command in ("create", "destroy") for when in ("before", "after"))
#: ... and by which a card's first and last one do, where nobody else has one there.
SWITCHES = tuple((command, "after") for command in ("drs-on", "drs-off"))
REMOVING, SWITCHING = {"destroy", "drs-off"}, {"drs-on", "drs-off"}


def cards(bed: Bed) -> EnflameCards:
    found = bed.hardware.vendors["enflame"]
    assert isinstance(found, EnflameCards)
    return found


def has_enflame(bed: Bed) -> bool:
    return "enflame" in bed.hardware.vendors


async def _admitted(bed: Bed, traffic: Traffic) -> str:
    """The uid of a pod with a slice, asked for until it is had; empty where it is not."""
    (offer,) = (it for it in bed.hardware.offers if it.name == DRS)
    until = time.monotonic() + CAP
    while bed.agent.runs and time.monotonic() < until:
        pod = traffic.single(offer)
        if await bed.admit(pod):
            return pod.uid
        await asyncio.sleep(LOOK)
    return ""


class DiesAt(Fault):
    """The tool or its caller dies before or after a command took effect, now and then with the agent."""

    def __init__(self, command: str, when: str, caller: bool, rng: Random) -> None:
        super().__init__(rng)
        self._command, self._when, self._caller = command, when, caller
        self._both = caller and rng.random() < 0.5
        self.detail = "and the agent" if self._both else ""

    async def strike(self, bed: Bed, traffic: Traffic) -> None:
        its = cards(bed)
        (offer,) = (it for it in bed.hardware.offers if it.name == DRS)
        await bed.make_room(offer, 4)
        if self._command in SWITCHING:
            await self._alone(bed, traffic, offer)
        removes = self._command in REMOVING
        uid = await _admitted(bed, traffic) if removes else ""
        if removes and not uid:
            raise Unreached("no pod is admitted")
        before = its.stub.killed()
        its.dies_at(self._command, self._when, caller=self._caller)
        passing = asyncio.create_task(bed.delete(uid) if removes else _admitted(bed, traffic))

        async def died() -> bool:
            return its.stub.killed() > before

        reached = await bed.comes(died, CAP)
        if reached and self._both:
            await bed.agent.kill()
        await passing
        its.stub.efsmi_works()
        if not reached:
            raise Unreached(self._command)

    async def _alone(self, bed: Bed, traffic: Traffic, offer: Offer) -> None:
        """Let nobody have a slice anywhere, and every card be whole: the next slice switches its card."""
        its = cards(bed)
        await traffic.end()
        await bed.make_room(offer, len(offer.cards) * offer.replicas)
        await bed.settle()
        for name in bed.hardware.foreign():
            its.take(name)
        for slot in offer.cards:
            its.stub.set_drs(slot, on=False)
        bed.takes_stock()

    async def mend(self, bed: Bed) -> None:
        await bed.revive()
        if self._command in SWITCHING:
            await bed.settle()  # what is being made is nobody's yet
            cards(bed).foreigners_come()
            bed.takes_stock()


class MadeByHand(Fault):
    """A person makes a slice and takes it away again; in half of the cases the agent is killed."""

    async def strike(self, bed: Bed, traffic: Traffic) -> None:
        await bed.settle()  # what is being made is nobody's yet
        self._name = cards(bed).make()
        if not self._name:
            raise Unreached("no card is sliced that has room")
        bed.takes_stock()
        killed = self.rng.random() < 0.5
        self.detail = f"{self._name}{', then killed' if killed else ''}"
        await traffic.some()
        if killed:
            await bed.agent.kill()
            await bed.revive()
        await bed.settle()

    async def mend(self, bed: Bed) -> None:
        cards(bed).take(self._name)
        bed.takes_stock()


KINDS = (
    *(
        Kind(
            f"{whom} dies {when} {command}",
            partial(DiesAt, command, when, caller),
            has_enflame,
            mixes=False,
        )
        for whom, caller in (("efsmi", False), ("efsmi's caller", True))
        for command, when in (*STEPS, *SWITCHES)
    ),
    Kind("slice made by hand", MadeByHand, has_enflame, mixes=False),
)
