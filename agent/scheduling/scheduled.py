"""What goes to and fro between who serves the kubelet and the API server, for the sake of schedulers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress

from agent.core.cell import Cell
from agent.core.claims import Candidate, merged
from agent.core.koordinator.locks import Lock

#: Seconds that an Allocate waits for a list of pods.
SOON = 0.5
#: Seconds after which who was listed and does not show among those that are followed is gone.
SHOWN_AFTER = 10.0


class Scheduled:
    """The pods bound to this node, and the locks that schedulers hold on it."""

    def __init__(
        self,
        pods: Cell[tuple[Candidate, ...]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        #: The pods that are followed.
        self.pods: Cell[tuple[Candidate, ...]] = pods or Cell(())
        #: The Node's annotations that are locks, as last seen.
        self.locks: Cell[Mapping[str, str]] = Cell({})
        #: Those that are over, with why.
        self.over: Cell[Mapping[Lock, str]] = Cell({})
        #: When those were seen first that were of a time to come, on the clock that nobody sets.
        self.ahead: Mapping[Lock, float] = {}
        #: A sentence for each lock that time alone ended, the last ones: freed, it is over for a moment only.
        self.stale: tuple[str, ...] = ()
        #: Lists the pods that wait, as the API server has them now; None while it is known to be away.
        self.ask: Callable[[], Awaitable[Sequence[Candidate]]] | None = None
        #: Why no pod is ever seen, and what would have it so; empty where they are, or will be.
        self.unseen = ""
        self._clock = clock
        #: Those that were listed last, when, and what was followed then.
        self._listed: tuple[Candidate, ...] = ()
        self._at = 0.0
        self._beside: tuple[Candidate, ...] = ()

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """The pods as they are known now, oldest first: those followed, with those listed since."""
        followed = self.pods.value
        if not self._listed:
            return followed
        if followed is self._beside:
            return merged(followed, self._listed)
        if self._clock() - self._at > SHOWN_AFTER:
            self._listed = ()
            return followed
        # What is followed comes later than the list, and does not get to all of it at once.
        known = {it.uid for it in followed}
        return merged(followed, [it for it in self._listed if it.uid not in known])

    def waited(self, now: float) -> dict[Lock, float]:
        """Seconds since those locks were seen that were of a time to come; `now` on their clock."""
        return {it: now - first for it, first in self.ahead.items()}

    async def look(self) -> None:
        """Have the pods that the API server lists now among the candidates, where it says so soon."""
        if self.ask is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(SOON):
                listed = await self.ask()
            if listed:
                self._listed, self._at, self._beside = tuple(listed), self._clock(), self.pods.value

    async def news(self) -> None:
        """Return when other pods are known."""
        await self.pods.changed()
