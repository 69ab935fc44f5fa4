"""The node's clock jumps, both ways, by much and by little."""

from __future__ import annotations

from ..bed import Bed
from ..traffic import Traffic
from .fault import Fault, Kind

JUMPS = (5.0, 3600.0, 86_400.0 * 400, 86_400.0 * 3650)


class _Jump(Fault):
    def shift(self, bed: Bed) -> None:
        jump = self.rng.choice(JUMPS) * self.rng.choice((1, -1))
        self.detail = f"{jump:+g} s"
        bed.switches.shift(jump)


class WhileRunning(_Jump):
    async def strike(self, bed: Bed, traffic: Traffic) -> None:
        self.shift(bed)
        await traffic.some()


class BetweenLives(_Jump):
    async def strike(self, bed: Bed, traffic: Traffic) -> None:
        await bed.agent.kill()
        self.shift(bed)

    async def mend(self, bed: Bed) -> None:
        await bed.revive()


KINDS = (Kind("clock jumps", WhileRunning), Kind("clock jumps between two lives", BetweenLives))
