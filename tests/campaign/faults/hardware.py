"""Cards break until they are reset; slices vanish, and strange ones appear."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from ..bed import Bed
from ..hardware import Card, NvidiaCards
from ..traffic import Traffic
from .fault import Fault, Kind, Unreached


class Sticky(Fault):
    """A card reports what only a reset ends; the agent may be killed once that is written."""

    async def strike(self, bed: Bed, traffic: Traffic) -> None:
        well = bed.hardware.well()
        if len(well) <= len(bed.hardware.cards()) // 2:
            raise Unreached("too few cards are well")
        card = self.rng.choice(well)
        killed = self.rng.random() < 0.5
        self.detail = f"{card.vendor} card {card.index}{', then killed' if killed else ''}"
        bed.hardware.fail(card)
        bed.forgetful = True  # until it is seen: nobody may have listened
        await bed.settle()
        if killed:
            await bed.comes(lambda: _is_written(bed, bed.hardware.uuid(card)))
            await bed.agent.kill()

    async def mend(self, bed: Bed) -> None:
        await bed.revive()


async def _is_written(bed: Bed, uuid: str) -> bool:
    text = bed.checkpoint.read_text() if bed.checkpoint.exists() else ""
    return f'"{uuid}":{{"fault":{{' in text


class _OfBroken(Fault):
    """Something happens to a card that is broken."""

    async def strike(self, bed: Bed, traffic: Traffic) -> None:
        broken = sorted(bed.hardware.broken, key=_place)
        if not broken:
            raise Unreached("no card is broken")
        card = self.rng.choice(broken)
        self.detail = f"{card.vendor} card {card.index}"
        await self.hit(card, bed, traffic)

    @abstractmethod
    async def hit(self, card: Card, bed: Bed, traffic: Traffic) -> None: ...


class Reset(_OfBroken):
    """A broken card is reset, with proof."""

    async def hit(self, card: Card, bed: Bed, traffic: Traffic) -> None:
        bed.hardware.reset(card)
        await traffic.some()


class Cleared(_OfBroken):
    """An operator's word ends the fault of a card that looks well."""

    async def hit(self, card: Card, bed: Bed, traffic: Traffic) -> None:
        bed.hardware.heal(card)
        if await bed.say("clear", card):
            bed.hardware.announce(card)
            raise Unreached("the agent did not take it")
        bed.hardware.broken.discard(card)


class Cordoned(Fault):
    """An operator cordons a card, or gives it back; the agent may be killed as soon as it has answered."""

    async def strike(self, bed: Bed, traffic: Traffic) -> None:
        its = bed.hardware.cordoned
        back = bool(its) and self.rng.random() < len(its) / 2
        card = self.rng.choice(sorted(its, key=_place) if back else bed.hardware.cards())
        verb = "uncordon" if back else "cordon"
        killed = self.rng.random() < 0.5
        self.detail = f"{verb} {card.vendor} card {card.index}{', then killed' if killed else ''}"
        if refusal := await bed.say(verb, card):
            raise Unreached(refusal)
        (its.discard if back else its.add)(card)
        if killed:
            await bed.agent.kill()

    async def mend(self, bed: Bed) -> None:
        await bed.revive()


def _place(card: Card) -> tuple[str, int]:
    return card.vendor, card.index


class SliceLost(Fault):
    """Somebody removes a slice under a container; it is made again when the container starts anew."""

    async def strike(self, bed: Bed, traffic: Traffic) -> None:
        cards = next(it for it in bed.hardware.vendors.values() if not isinstance(it, NvidiaCards))

        def made() -> list[Mapping[str, Any]]:
            return [it for it in cards.there() if it["allocation"] is not None]

        if not made():
            offer = next(it for it in bed.hardware.offers if it.prepares)
            await bed.make_room(offer)
            await bed.admit(traffic.single(offer))
        if not (ours := made()):
            raise Unreached("there are no slices")
        lost = self.rng.choice(ours)
        self.detail = lost["id"]
        cards.take(lost["id"])
        self._uids = list(bed.pods)
        self._lost = lost["allocation"]

    async def mend(self, bed: Bed) -> None:
        await bed.comes(lambda: _is_remarked(bed, self._lost))
        for uid in self._uids:
            if uid in bed.pods:
                await bed.start(bed.pods[uid])


async def _is_remarked(bed: Bed, allocation: str) -> bool:
    """Whether the agent says what is missing."""
    shown = (await bed.document()).get("allocations", ())
    return any(it["id"] == allocation and "gone" in it["reason"] for it in shown)


def is_sliced(bed: Bed) -> bool:
    return any(it.prepares for it in bed.hardware.offers)


KINDS = (
    Kind("card breaks until it is reset", Sticky, mixes=False),
    Kind("card is reset", Reset, mixes=False),
    Kind("operator clears a fault", Cleared, mixes=False),
    Kind("operator cordons", Cordoned, mixes=False),
    Kind("slice lost under a container", SliceLost, is_sliced, mixes=False),
)
