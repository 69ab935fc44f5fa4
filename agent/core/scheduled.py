"""What goes to and fro between who serves the kubelet and the API server, for the sake of schedulers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from agent.core.cell import Cell
from agent.core.claims import Candidate
from agent.core.koordinator.locks import Lock

#: Seconds that an Allocate waits for a list of pods.
SOON = 0.5


class Scheduled:
    """The pods bound to this node, and the locks that schedulers hold on it."""

    def __init__(self, pods: Cell[tuple[Candidate, ...]] | None = None) -> None:
        self.pods: Cell[tuple[Candidate, ...]] = pods or Cell(())
        #: The Node's annotations that are locks, as last seen.
        self.locks: Cell[Mapping[str, str]] = Cell({})
        #: Those that are over, with why.
        self.over: Cell[Mapping[Lock, str]] = Cell({})
        #: Lists the pods as the API server has them now; None while it is known to be away.
        self.ask: Callable[[], Awaitable[Sequence[Candidate]]] | None = None

    async def now(self) -> Sequence[Candidate]:
        """The pods that the API server lists now; none where it can not say so soon."""
        if self.ask is None:
            return ()
        try:
            async with asyncio.timeout(SOON):
                return await self.ask()
        except TimeoutError:
            return ()

    async def news(self) -> None:
        """Return when other pods are known."""
        await self.pods.changed()
