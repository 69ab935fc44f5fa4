"""Pods come and go while nobody looks."""

from __future__ import annotations

from ..bed import Bed
from ..traffic import Traffic
from .fault import Fault, Kind


class WhileAway(Fault):
    """Pods are asked for and deleted while no agent runs."""

    async def strike(self, bed: Bed, traffic: Traffic) -> None:
        await bed.agent.kill()
        for uid in self.rng.sample(sorted(bed.pods), self.rng.randint(0, len(bed.pods))):
            await bed.delete(uid)
        await traffic.some()

    async def mend(self, bed: Bed) -> None:
        await bed.revive()


class SameIds(Fault):
    """A pod goes, and the next one gets the same IDs at once; in half of the cases the agent dies over it."""

    async def strike(self, bed: Bed, traffic: Traffic) -> None:
        offer = self.rng.choice(bed.hardware.offers)
        killed = self.rng.random() < 0.5
        self.detail = f"{offer.name}{', then killed' if killed else ''}"
        while (free := bed.free(offer)) > 0 and await bed.admit(traffic.single(offer)):
            if bed.free(offer) >= free:
                break
        holders = [
            uid for uid, pod in bed.pods.items() if any(offer.name in it.limits for it in pod.containers)
        ]
        for uid in holders[:2]:
            await bed.delete(uid)
            await bed.admit(traffic.single(offer))
        if killed:
            await bed.agent.kill()

    async def mend(self, bed: Bed) -> None:
        await bed.revive()


class Burst(Fault):
    """Several pods at once, and some of them gone before anybody knows their names."""

    async def strike(self, bed: Bed, traffic: Traffic) -> None:
        for _ in range(self.rng.randint(3, 6)):
            traffic.begin()
        await traffic.end()
        for uid in self.rng.sample(sorted(bed.pods), len(bed.pods) // 2):
            await bed.delete(uid)


KINDS = (
    Kind("pods come and go while the agent is away", WhileAway),
    Kind("same IDs for the next pod", SameIds),
    Kind("burst of pods", Burst),
)
