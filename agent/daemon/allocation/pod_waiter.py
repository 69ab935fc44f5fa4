"""The pods that may be behind an Allocate: where none of them is known, they are waited for before it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from agent.cluster.pod_state import PodState
from agent.core.allocation.admission import admit
from agent.core.allocation.scheduler_promises import Promises
from agent.core.errors import AllocationError

#: Seconds that a request waits for a claim, over GetPreferredAllocation and Allocate, where it needs one.
CLAIMED_WITHIN = 2.0
#: Seconds until it is asked again for pods, where nothing is heard.
ASK_AGAIN = 0.25


class PodWaiter:
    """Waits until the candidates have who may ask for so many IDs; nothing is held meanwhile."""

    def __init__(
        self, promises: Callable[[], Promises], scheduled: PodState, *, within: float = CLAIMED_WITHIN
    ) -> None:
        self._promises = promises
        self._scheduled = scheduled
        self._within = within
        #: Until when a request for so many IDs of a resource waits for its claim, on the loop's clock.
        self._until: dict[tuple[str, int], float] = {}

    async def look(self) -> None:
        """Have the pods among the candidates that the API server has now."""
        await self._scheduled.look()

    async def expect(self, resource: str, count: int) -> None:
        """Wait for who sends a GetPreferredAllocation; its Allocate then waits for as long as is left."""
        self._until.pop((resource, count), None)
        await self._hear(resource, count)

    async def hear(self, resource: str, containers: Sequence[Sequence[str]]) -> None:
        """Wait for who sends an Allocate with these IDs; for nobody where it is refused anyhow."""
        counts = [len(set(ids)) for ids in containers]
        try:
            if self._is_well(resource, containers):
                for count in counts:
                    await self._hear(resource, count)
        finally:
            for count in counts:
                self._until.pop((resource, count), None)

    def _is_well(self, resource: str, containers: Sequence[Sequence[str]]) -> bool:
        scene = self._promises().scene
        try:
            for ids in containers:
                admit(scene, resource, ids)
        except AllocationError:
            return False
        return True

    async def _hear(self, resource: str, count: int) -> None:
        promises = self._promises()
        planned = promises.scene.plan.get(resource)
        if planned is None or planned.vendor not in promises.scene.vendors:
            return
        if planned.rule.placement == "auto" and not promises.asks(resource, count):
            await self._scheduled.look()
        elif planned.rule.placement == "claim":
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._patience(resource, count)):
                    await self._promised(resource, count)

    def _patience(self, resource: str, count: int) -> float:
        """Until when; what another pod left that never came to its Allocate is no longer good."""
        now = asyncio.get_running_loop().time()
        until = self._until.get((resource, count))
        if until is None or now > until + self._within:
            until = now + self._within
        self._until[resource, count] = until
        return until

    async def _promised(self, resource: str, count: int) -> None:
        while not self._promises().is_promised(resource, count):
            news = asyncio.ensure_future(self._scheduled.news())
            try:
                await self._scheduled.look()
                if not self._promises().is_promised(resource, count):
                    await asyncio.wait((news,), timeout=ASK_AGAIN)
            finally:
                news.cancel()
