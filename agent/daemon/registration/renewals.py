"""Looks for registrations that the kubelet may ask nobody for; has made anew what core/renewal_rules says."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping

import anyio
import structlog

from agent.core.cell import Cell
from agent.core.endless_tasks import for_ever
from agent.core.renewal_rules import (
    KubeletObservation,
    Registration,
    RegistrationStanding,
    RenewalReason,
    on_list,
    on_observation,
    standing_of,
)
from agent.kubelet.directory import OtherSocket
from agent.kubelet.kubelet_errors import KubeletError

log = structlog.get_logger()

#: Asks the kubelet which of these resources have a healthy device.
Allocatable = Callable[[Collection[str]], Awaitable[Collection[str]]]


class Renewals:
    """Looks now and then, and at once when another plugin goes."""

    def __init__(
        self,
        registrations: Callable[[], Mapping[str, Registration]],
        planned: Callable[[], Collection[str]],
        allocatable: Allocatable,
        neighbours: Cell[frozenset[OtherSocket]],
        is_served: Callable[[OtherSocket], bool],
        renew: Callable[[str], None],
        every: float = 10.0,
        sure: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`registrations`: by resource, of those that the kubelet has from us now; `renew` makes one anew.

        `planned` names the resources of which it may have one later; no other is remembered.

        `neighbours` are the sockets of other plugins, `is_served` says whether somebody listens at one.
        Seconds: `every` is between looks, `sure` until it is looked again for what was missed.
        """
        self._registrations = registrations
        self._planned = planned
        self._allocatable = allocatable
        self._neighbours = neighbours
        self._is_served = is_served
        self._renew = renew
        self._every = every
        self._sure = sure
        self._clock = clock
        self._known: dict[str, RegistrationStanding] = {}
        self._served: frozenset[OtherSocket] = frozenset()
        self._wanted = asyncio.Event()

    async def run(self) -> None:
        """Look for ever."""
        async with anyio.create_task_group() as group:
            group.start_soon(for_ever, self._follow_neighbours)
            while True:
                with anyio.move_on_after(self._every):
                    await self._wanted.wait()
                self._wanted.clear()
                await self.look()

    def in_force(self, ours: Mapping[str, bool]) -> None:
        """Hear, by resource, whether the list that the kubelet has of it is ours, whenever it took one in."""
        for name, it in self._registrations().items():
            if name in ours:
                self._settle(name, *on_list(self._standing(name, it), own=ours[name]))

    async def look(self) -> None:
        """Look once, and again a moment later where a list, or the end of a plugin, may be on its way."""
        await self._look()
        while self._is_open():
            await anyio.sleep(self._sure)
            await self._look()

    async def _look(self) -> None:
        self._known = {name: known for name, known in self._known.items() if name in self._planned()}
        before = self._registrations()
        listed = await self._listed([name for name, it in before.items() if it.offers])
        its = self._registrations()
        # Seen after the answer: one that came meanwhile must not be taken for one that left.
        others = self._others(again=any(self._has_sent(name, it) for name, it in its.items()))
        for name, it in its.items():
            if it == before.get(name):  # what is said meanwhile could be from before or after the answer
                look = KubeletObservation(listed.get(name), others)
                self._settle(
                    name, *on_observation(self._standing(name, it), it, look, self._clock(), self._sure)
                )

    def _settle(self, name: str, known: RegistrationStanding, why: RenewalReason | None) -> None:
        self._known[name] = known
        if why is not None:
            log.warning("registering again", resource=name, reason=str(why))
            self._renew(name)

    def _standing(self, name: str, it: Registration) -> RegistrationStanding:
        return standing_of(self._known.get(name), it, self._served & self._neighbours.value)

    def _is_open(self) -> bool:
        now, its = self._clock(), self._registrations()
        return any(self._standing(name, it).is_open(now, self._sure) for name, it in its.items())

    def _has_sent(self, name: str, it: Registration) -> bool:
        return self._standing(name, it).registration.lists != it.lists

    async def _listed(self, names: Collection[str]) -> Mapping[str, bool]:
        """Resource to whether the kubelet lists a healthy device of it; nothing where it cannot be asked."""
        if not names:
            return {}
        try:
            found = await self._allocatable(names)
        except KubeletError:
            return {}  # evidence says so; and kubelets before 1.23 have no such call
        return {name: name in found for name in names}

    async def _follow_neighbours(self) -> None:
        """Take in who comes, however soon it goes; look where one goes."""
        async for there in self._neighbours.watch():
            if self._served - there:
                self._wanted.set()
            fresh = self._others(again=False)
            for name, it in self._registrations().items():
                self._known[name] = self._standing(name, it).with_others(fresh)

    def _others(self, *, again: bool) -> frozenset[OtherSocket]:
        """Those that are served. One that was is tried `again` where it matters: each try is a connection."""
        self._served = frozenset(
            it for it in self._neighbours.value if (it in self._served and not again) or self._is_served(it)
        )
        return self._served
