"""Delays an Allocate until a pod that could own it is known, where a scheduler chooses the cards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from agent.cluster.pod_state import PodState
from agent.core.allocation.admission import admit
from agent.core.attribution.pod_attribution import is_awaited, is_promised
from agent.core.attribution.scheduler_promises import Promises
from agent.core.cell import Cell
from agent.core.errors import AllocationError
from agent.core.model import Plan

#: Seconds that a request waits for a claim, over GetPreferredAllocation and Allocate, where it needs one.
CLAIMED_WITHIN = 2.0
#: Seconds after which the API server is asked for pods again, where no other pod became known.
ASK_AGAIN = 0.25


class PodWaiter:
    """Waits until a pod that could own a request is known. Other requests are served meanwhile."""

    def __init__(
        self,
        plan: Cell[Plan],
        promises: Callable[[], Promises],
        pods: PodState,
        *,
        within: float = CLAIMED_WITHIN,
    ) -> None:
        """`promises` returns the present promises. `within`: seconds that a request waits for its claim."""
        self._plan = plan
        self._promises = promises
        self._pods = pods
        self._within = within
        #: (resource, number of IDs) to when a request for them waits no more, on the loop's clock.
        self._until: dict[tuple[str, int], float] = {}

    async def look(self) -> None:
        """Ask the API server for the pods that it has now."""
        await self._pods.look()

    async def expect(self, resource: str, count: int) -> None:
        """Wait before a GetPreferredAllocation. The Allocate after it waits for as long as is left."""
        self._until.pop((resource, count), None)
        if self._is_chosen(resource):
            await self._wait_for_pod(self._promises(), resource, count)

    async def wait(self, resource: str, containers: Sequence[Sequence[str]]) -> None:
        """Wait before an Allocate with these IDs. An Allocate that will be refused does not wait."""
        if not self._is_chosen(resource):
            return
        counts = [len(set(ids)) for ids in containers]
        try:
            known: Promises | None = self._promises()
            if known and _is_admitted(known, resource, containers):
                for count in counts:
                    known = await self._wait_for_pod(known or self._promises(), resource, count)
        finally:
            for count in counts:
                self._until.pop((resource, count), None)

    def _is_chosen(self, resource: str) -> bool:
        """Whether a scheduler may choose the cards of the resource."""
        planned = self._plan.value.get(resource)
        return planned is not None and planned.rule.placement != "local"

    async def _wait_for_pod(self, promises: Promises, resource: str, count: int) -> Promises | None:
        """Wait for a pod that could send this request; return the promises if they still hold."""
        planned = promises.scene.plan.get(resource)
        if planned is None or planned.vendor not in promises.scene.vendors:
            return promises
        if planned.rule.placement == "auto" and not is_awaited(promises, resource, count):
            await self._pods.look()
            return None
        if planned.rule.placement == "claim":
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._deadline(resource, count)):
                    return await self._wait_for_promise(promises, resource, count)
            return None
        return promises

    def _deadline(self, resource: str, count: int) -> float:
        """Until when to wait. The deadline of a pod that never sent its Allocate is dropped."""
        now = asyncio.get_running_loop().time()
        until = self._until.get((resource, count))
        if until is None or now > until + self._within:
            until = now + self._within
        self._until[resource, count] = until
        return until

    async def _wait_for_promise(self, promises: Promises, resource: str, count: int) -> Promises:
        """Wait until a pod is known that was promised this number of IDs."""
        while not is_promised(promises, resource, count):
            changed = asyncio.ensure_future(self._pods.changed())
            try:
                await self._pods.look()
                promises = self._promises()
                if not is_promised(promises, resource, count):
                    await asyncio.wait((changed,), timeout=ASK_AGAIN)
                    promises = self._promises()
            finally:
                changed.cancel()
        return promises


def _is_admitted(promises: Promises, resource: str, containers: Sequence[Sequence[str]]) -> bool:
    try:
        for ids in containers:
            admit(promises.scene, resource, ids)
    except AllocationError:
        return False
    return True
