"""The kubelet restarts, or something happens to what lies between it and us."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from peers.faults import second_stream
from peers.real import RealKubelet

from agent.testing.kubelet import SimKubelet

from .. import kubelets
from ..bed import Bed
from ..traffic import Traffic
from .fault import Fault, Kind


class _OfKubelet(Fault):
    async def mend(self, bed: Bed) -> None:
        await kubelets.rise(bed.kubelet)
        await bed.agent.start()


class Restart(_OfKubelet):
    """The kubelet dies and comes back, at once or after a while."""

    async def strike(self, bed: Bed, traffic: Traffic) -> None:
        down = self.rng.choice((0.0, 0.0, 0.4))
        self.detail = f"down for {down:g} s"
        if self.rng.random() < 0.5:
            traffic.begin()
            await asyncio.sleep(self.rng.uniform(0, 0.01))
        await kubelets.die(bed.kubelet)
        await asyncio.sleep(down)


class RestartInOrder(_OfKubelet):
    async def strike(self, bed: Bed, traffic: Traffic) -> None:
        if kubelets.lives(bed.kubelet):
            await kubelets.restart_in_order(bed.kubelet)


class RestartTwice(_OfKubelet):
    """The kubelet restarts while the agent is busy with its last restart."""

    async def strike(self, bed: Bed, traffic: Traffic) -> None:
        pause = self.rng.uniform(0, 0.2)
        self.detail = f"{pause * 1000:.0f} ms apart"
        for _ in range(2):
            await kubelets.die(bed.kubelet)
            await kubelets.rise(bed.kubelet)
            await asyncio.sleep(pause)


class KubeletSocketDeleted(_OfKubelet):
    """Somebody removes kubelet.sock; the kubelet makes it again at its next start only."""

    async def strike(self, bed: Bed, traffic: Traffic) -> None:
        (bed.kubelet.plugin_dir / "kubelet.sock").unlink(missing_ok=True)
        await traffic.some()
        await kubelets.die(bed.kubelet)


class OwnSocketDeleted(Fault):
    """Somebody removes our sockets."""

    async def strike(self, bed: Bed, traffic: Traffic) -> None:
        own = sorted(bed.kubelet.plugin_dir.glob("xpu-*.sock"))
        gone = self.rng.sample(own, self.rng.randint(1, len(own))) if own else []
        self.detail = f"{len(gone)} of {len(own)}"
        for path in gone:
            path.unlink(missing_ok=True)


class DirectoryRecreated(_OfKubelet):
    """The plugin directory is made anew; the kubelet's checkpoint is kept, or on a drained node lost."""

    async def strike(self, bed: Bed, traffic: Traffic) -> None:
        kept = self.rng.random() < 0.5
        self.detail = "checkpoint kept" if kept else "drained, checkpoint lost"
        if not kept:
            for uid in [*bed.pods, *bed.finished]:
                await bed.delete(uid)
        if not kept:
            await bed.kubelet.recreate_directory()
            return
        await kubelets.die(bed.kubelet)
        kubelets.recreate(bed.kubelet.plugin_dir, bed.kubelet.checkpoint)


class Stranger(Fault):
    """A client that is not the kubelet asks for the list, too, and hangs up."""

    async def strike(self, bed: Bed, traffic: Traffic) -> None:
        for path in sorted(bed.kubelet.plugin_dir.glob("xpu-*.sock"))[:1]:
            self.detail = path.name.split("-")[1][:8]
            with suppress(Exception):  # who is not there cannot be asked
                async with asyncio.timeout(2.0), second_stream(path) as lists:
                    await anext(lists)


class StreamCut(Fault):
    """The connection breaks between two messages, or in the middle of a list or of an answer to Allocate."""

    async def strike(self, bed: Bed, traffic: Traffic) -> None:
        offer = self.rng.choice(bed.hardware.offers)
        inside = self.rng.random() < 0.6
        self.detail = f"{offer.name}{', inside a message' if inside else ''}"
        assert isinstance(bed.kubelet, SimKubelet)
        with suppress(*kubelets.Down, StopIteration):
            if not inside:
                bed.kubelet.drop_stream(offer.name)
                return
            await bed.make_room(offer)
            bed.kubelet.cut_next_message(offer.name)
            await bed.admit(traffic.single(offer))


class Frozen(Fault):
    """The kubelet's process stands still for a while; it may be killed then, with a stream half read."""

    async def strike(self, bed: Bed, traffic: Traffic) -> None:
        assert isinstance(bed.kubelet, RealKubelet)
        pause, self._killed = self.rng.uniform(0.05, 0.8), self.rng.random() < 0.3
        self.detail = f"{pause:.2f} s{', then killed' if self._killed else ''}"
        await bed.kubelet.freeze()
        await asyncio.sleep(pause)

    async def mend(self, bed: Bed) -> None:
        assert isinstance(bed.kubelet, RealKubelet)
        if self._killed:
            await bed.kubelet.kill()
            await bed.kubelet.start()
        else:
            bed.kubelet.thaw()


class ApiAway(Fault):
    """The kubelet restarts while the API server is away: it knows static pods alone, and frees nothing."""

    async def strike(self, bed: Bed, traffic: Traffic) -> None:
        killed = self.rng.random() < 0.4
        self.detail = "agent killed, too" if killed else ""
        await kubelets.die(bed.kubelet)
        await bed.kubelet.start(api_away=True)
        if killed:
            await bed.agent.kill()
            await bed.agent.start()
        if self.rng.random() < 0.3 and bed.pods:
            await bed.delete(self.rng.choice(sorted(bed.pods)))
        await asyncio.sleep(self.rng.uniform(0.2, 1.5))

    async def mend(self, bed: Bed) -> None:
        await bed.kubelet.api_back()


class RegistrationRefused(Fault):
    """The kubelet refuses to register for a while, after a restart."""

    async def strike(self, bed: Bed, traffic: Traffic) -> None:
        assert isinstance(bed.kubelet, SimKubelet)
        bed.kubelet.refuse_registration("not now")
        await kubelets.die(bed.kubelet)
        await kubelets.rise(bed.kubelet)
        await asyncio.sleep(self.rng.uniform(0.1, 0.4))

    async def mend(self, bed: Bed) -> None:
        assert isinstance(bed.kubelet, SimKubelet)
        bed.kubelet.refuse_registration(None)


def is_real(bed: Bed) -> bool:
    return isinstance(bed.kubelet, RealKubelet)


def is_simulated(bed: Bed) -> bool:
    return isinstance(bed.kubelet, SimKubelet)


KINDS = (
    Kind("kubelet restarts", Restart),
    Kind("kubelet restarts in order", RestartInOrder),
    Kind("kubelet restarts twice", RestartTwice),
    Kind("kubelet.sock deleted", KubeletSocketDeleted),
    Kind("own socket deleted", OwnSocketDeleted),
    Kind("plugin directory recreated", DirectoryRecreated, mixes=False),
    Kind("second ListAndWatch of another client", Stranger),
    Kind("kubelet frozen", Frozen, is_real, mixes=False),
    Kind("kubelet restarts without the API server", ApiAway, mixes=False),
    Kind("stream cut in the middle", StreamCut, is_simulated),
    Kind("registration refused for a while", RegistrationRefused, is_simulated),
)
