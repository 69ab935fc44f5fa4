"""The allocator as the kubelet's wire meets it: timed, and one rich log line per Allocate."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Sequence

import structlog

from agent.core.allocator import ALLOCATION, Allocator
from agent.core.errors import AllocationError
from agent.core.ledger import Ledger
from agent.core.vendor import ContainerEdits
from agent.core.view import BUCKETS

log = structlog.get_logger()

#: IDs of one container that a log line shows.
SHOWN = 16


class TimedAllocator:
    """Serves every resource of the node from one allocator."""

    def __init__(self, allocator: Allocator, ledger: Ledger) -> None:
        self._allocator = allocator
        self._ledger = ledger
        #: (resource, outcome) to [count, sum of seconds, one count per bucket].
        self.seconds: dict[tuple[str, str], list[float]] = {}

    async def allocate(self, resource: str, containers: Sequence[Sequence[str]]) -> list[ContainerEdits]:
        """Answer an AllocateRequest.

        Raises:
            AllocationError: The request is refused; the kubelet shows the text on the pod.
        """
        started = time.perf_counter()
        outcome = "error"
        try:
            edits = await self._allocator.allocate(resource, containers)
            outcome = "ok"
        except AllocationError as exc:
            outcome = "refused"
            log.warning("allocate refused", resource=resource, error=str(exc))
            raise
        finally:
            took = time.perf_counter() - started
            self._count(resource, outcome, took)
        for it in edits:
            self._tell(it.annotations[ALLOCATION], took)
        return edits

    def _tell(self, allocation_id: str, took: float) -> None:
        if (it := self._ledger.get(allocation_id)) is not None:
            log.info(
                "allocated",
                allocation=it.id,
                resource=it.resource,
                ids=it.ids[:SHOWN],
                devices=it.devices[:SHOWN],
                ms=round(took * 1000, 2),
            )

    def preferred(
        self, resource: str, available: Sequence[str], required: Sequence[str], size: int
    ) -> list[str]:
        return self._allocator.preferred(resource, available, required, size)

    async def pre_start(self, resource: str, ids: Sequence[str]) -> None:
        await self._allocator.pre_start(resource, ids)

    def _count(self, resource: str, outcome: str, took: float) -> None:
        cell = self.seconds.setdefault((resource, outcome), [0.0] * (len(BUCKETS) + 2))
        cell[0] += 1
        cell[1] += took
        bucket = bisect_left(BUCKETS, took)
        if bucket < len(BUCKETS):
            cell[2 + bucket] += 1
