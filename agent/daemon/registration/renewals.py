"""Registers resources again that the kubelet may have lost: it may have no live endpoint for them.

`core/registration/renewal_rules` decides from what is observed here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping

import anyio
import structlog

from agent.core.endless_tasks import for_ever
from agent.core.registration.renewal_rules import (
    KubeletObservation,
    Registration,
    RegistrationStanding,
    RenewalReason,
    on_list,
    on_observation,
    standing_of,
)
from agent.daemon.registration.other_device_plugins import ServedSockets
from agent.daemon.registration.sessions import Sessions
from agent.kubelet.kubelet_errors import KubeletError
from agent.kubelet.kubelet_view import KubeletView

log = structlog.get_logger()


class Renewals:
    """Looks at the registrations now and then, and at once when another plugin goes."""

    def __init__(
        self,
        sessions: Sessions,
        kubelet: KubeletView,
        sockets: ServedSockets,
        every: float = 10.0,
        again: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`sockets` are those of other plugins. Only resources with a session are remembered.

        `every`: seconds between looks. `again`: seconds until devices, or another plugin, that one look
        missed are looked for again.
        """
        self._sessions = sessions
        self._kubelet = kubelet
        self._sockets = sockets
        self._every = every
        self._again = again
        self._clock = clock
        self._known: dict[str, RegistrationStanding] = {}
        #: Set when another plugin goes.
        self._wanted = asyncio.Event()

    async def run(self) -> None:
        """Look for ever."""
        async with anyio.create_task_group() as group:
            group.start_soon(for_ever, self._follow_sockets)
            while True:
                with anyio.move_on_after(self._every):
                    await self._wanted.wait()
                self._wanted.clear()
                await self.look()

    def in_force(self, is_own: Mapping[str, bool]) -> None:
        """Take in, by resource, whether the list that the kubelet has is this agent's.

        Called after each look at the lists that the kubelet has.
        """
        for name, registration in self._sessions.registrations().items():
            if name in is_own:
                self._settle(name, *on_list(self._standing(name, registration), own=is_own[name]))

    async def look(self) -> None:
        """Look once, and again a moment later while the kubelet may still take in a list, or a plugin end."""
        await self._look()
        while self._is_open():
            await anyio.sleep(self._again)
            await self._look()

    async def _look(self) -> None:
        self._known = {name: known for name, known in self._known.items() if name in self._sessions.statuses}
        before = self._sessions.registrations()
        listed = await self._listed([name for name, it in before.items() if it.offers])
        after = self._sessions.registrations()
        # Looked at after the answer: a plugin that came meanwhile must not be taken for one that has gone.
        others = self._sockets.look(again=any(self._has_sent(name, it) for name, it in after.items()))
        for name, registration in after.items():
            # Of a registration that changed meanwhile the answer may be from before or after the change.
            if registration == before.get(name):
                known = self._standing(name, registration)
                observed = KubeletObservation(listed.get(name), others)
                self._settle(name, *on_observation(known, registration, observed, self._clock(), self._again))

    def _settle(self, name: str, known: RegistrationStanding, why: RenewalReason | None) -> None:
        self._known[name] = known
        if why is not None:
            log.warning("registering again", resource=name, reason=str(why))
            self._sessions.renew(name)

    def _standing(self, name: str, registration: Registration) -> RegistrationStanding:
        return standing_of(self._known.get(name), registration, self._sockets.present)

    def _is_open(self) -> bool:
        now, registrations = self._clock(), self._sessions.registrations()
        return any(self._standing(name, it).is_open(now, self._again) for name, it in registrations.items())

    def _has_sent(self, name: str, registration: Registration) -> bool:
        """Whether a list was sent since all was well for the last time."""
        return self._standing(name, registration).registration.lists != registration.lists

    async def _listed(self, names: Collection[str]) -> Mapping[str, bool]:
        """Resource to whether the kubelet lists a healthy device of it; empty where it does not answer."""
        if not names:
            return {}
        try:
            found = await self._kubelet.allocatable(names)
        except KubeletError:
            return {}  # logged with the evidence; kubelets before 1.23 have no such call
        return {name: name in found for name in names}

    async def _follow_sockets(self) -> None:
        """Take in each plugin that comes, however soon it goes; look where one goes."""
        async for present in self._kubelet.other_sockets.watch():
            if self._sockets.last - present:
                self._wanted.set()
            served = self._sockets.look(again=False)
            for name, registration in self._sessions.registrations().items():
                self._known[name] = self._standing(name, registration).with_others(served)
