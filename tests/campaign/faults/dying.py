"""The agent's process dies, or stands still."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from functools import partial
from random import Random

from .. import failpoints
from ..bed import LOOK, Bed
from ..hardware import Offer
from ..traffic import Traffic
from .fault import Fault, Kind, Unreached, appends

#: Seconds until the process must have come by a step.
REACHED = 5.0


class KillAt(Fault):
    """SIGKILL at one step, on the way of a pod that is admitted for it."""

    def __init__(self, step: str, rng: Random) -> None:
        super().__init__(rng)
        self.step = step
        self._nth = rng.choice((1, 1, 2)) if step.startswith(("checkpoint/", "journal/")) else 1
        self.detail = f"time {self._nth}"

    async def strike(self, bed: Bed, traffic: Traffic) -> None:
        among = bed.hardware.appended if self.step in failpoints.JOURNAL else bed.hardware.offers
        offer = self.rng.choice([it for it in among if it.prepares or self.step not in PREPARED])
        await bed.make_room(offer, 2)
        bed.agent.plan_end()
        bed.switches.arm(self.step, self._nth)
        await asyncio.gather(self._pass_by(bed, traffic, offer), bed.agent.ended(REACHED))
        bed.switches.disarm()
        if bed.switches.hit != self.step:
            bed.agent.plan_no_end()
            raise Unreached(self.step)
        await bed.agent.ended()  # of one that came by just now nobody has heard yet

    async def _pass_by(self, bed: Bed, traffic: Traffic, offer: Offer) -> None:
        """Two pods; one that is refused, as a busy node may do for a moment, is followed by another."""
        until, admitted = time.monotonic() + REACHED, 0
        while admitted < 2 and bed.agent.runs and time.monotonic() < until:
            if self.step in WHOLE:  # an operator's word is written at once, also one that changes nothing
                await bed.say("uncordon", self.rng.choice(bed.hardware.well()))
            pod = traffic.single(offer)
            if await bed.admit(pod):
                admitted += 1
                await bed.start(pod)
            else:
                await asyncio.sleep(LOOK)

    async def mend(self, bed: Bed) -> None:
        await bed.revive()


PREPARED = frozenset((*failpoints.PREPARE, *failpoints.START))
WHOLE = frozenset((*failpoints.CHECKPOINT, *failpoints.DURABLE))


class KillAtRandom(Fault):
    """SIGKILL at a random moment, most of them while a pod is admitted."""

    async def strike(self, bed: Bed, traffic: Traffic) -> None:
        delay = self.rng.expovariate(1 / 0.01)
        self.detail = f"{delay * 1000:.1f} ms after an admission began"
        traffic.begin()
        await asyncio.sleep(delay)
        await bed.agent.kill()

    async def mend(self, bed: Bed) -> None:
        await bed.revive()


class KillWhileStarting(Fault):
    """SIGKILL at a random moment of the start, again and again."""

    async def strike(self, bed: Bed, traffic: Traffic) -> None:
        delays = [self.rng.uniform(0.05, 0.6) for _ in range(2)]
        self.detail = ", ".join(f"{it * 1000:.0f} ms" for it in delays)
        await bed.agent.kill()
        for delay in delays:
            await bed.agent.start()
            await asyncio.sleep(delay)
            await bed.agent.kill()

    async def mend(self, bed: Bed) -> None:
        await bed.revive()


class Stop(Fault):
    """SIGSTOP, and SIGCONT after a while; what is asked meanwhile waits."""

    async def strike(self, bed: Bed, traffic: Traffic) -> None:
        pause = self.rng.uniform(0.05, 0.8)
        self.detail = f"{pause:.2f} s"
        bed.agent.signal(signal.SIGSTOP)
        traffic.begin()
        await asyncio.sleep(pause)

    async def mend(self, bed: Bed) -> None:
        bed.agent.signal(signal.SIGCONT)


class Terminate(Fault):
    """SIGTERM: the agent ends in order, and is started again."""

    async def strike(self, bed: Bed, traffic: Traffic) -> None:
        traffic.begin()
        await asyncio.sleep(self.rng.uniform(0, 0.02))
        await bed.agent.terminate()

    async def mend(self, bed: Bed) -> None:
        await bed.agent.start()


def any_node(bed: Bed) -> bool:
    return True


def makes_hardware(bed: Bed) -> bool:
    return any(it.prepares for it in bed.hardware.offers)


def _fits(step: str) -> Callable[[Bed], bool]:
    if step in failpoints.JOURNAL:
        return appends
    return makes_hardware if step in PREPARED else any_node


STEPS = (
    *failpoints.ALLOCATE,
    *failpoints.CHECKPOINT,
    *failpoints.PREPARE,
    *failpoints.DURABLE,
    *failpoints.JOURNAL,
    *failpoints.START,
)
KINDS = (
    *(
        Kind(
            f"kill at {step}",
            partial(KillAt, step),
            _fits(step),
            mixes=False,
        )
        for step in STEPS
    ),
    Kind("kill at a random moment", KillAtRandom),
    Kind("kill while starting", KillWhileStarting),
    Kind("stop and continue", Stop, mixes=False),
    Kind("terminate", Terminate),
)
