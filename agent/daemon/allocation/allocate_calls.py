"""The allocator as the kubelet's wire meets it: timed, with what it gave and refused logged."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import structlog

from agent.core.allocation.answer_annotations import ALLOCATION
from agent.core.allocation.ledger import Ledger
from agent.core.allocation.scheduler_promises import Promises
from agent.core.errors import AgentError, AllocationError, LimitsUnread, StartRefused
from agent.core.notices import ClaimSwap, PodRef, StartRefusal
from agent.core.publishing.agent_status import BUCKETS
from agent.daemon.allocation.allocator import Allocator
from agent.daemon.allocation.pod_waiter import PodWaiter
from agent.vendor_api.agent import ContainerEdits

log = structlog.get_logger()

#: Seconds from the answer to the log line.
TOLD_AFTER = 0.001
#: IDs of one container that a log line shows.
SHOWN = 16
#: Containers whose refused start is not said again; those refused longest ago go first.
REMEMBERED = 1024
#: Those of them of which people are told.
STARTS = 64

#: (resource, outcome) to [count, sum of seconds, one count per bucket].
Seconds = dict[tuple[str, str], list[float]]
#: Takes the resource and the IDs of each container of an Allocate that was refused, and our words.
Refused = Callable[[str, Sequence[Sequence[str]], str], None]


class TimedAllocator:
    """Serves every resource of the node from one allocator."""

    def __init__(
        self,
        allocator: Allocator,
        ledger: Ledger,
        refused: Refused = lambda *_: None,
        answered: Callable[[], None] = lambda: None,
        askers: PodWaiter | None = None,
    ) -> None:
        """`refused` is told of each Allocate that was, `answered` that one was not.

        `askers`: who is waited for before the resource's cards are given out.
        """
        self._askers = askers
        self._tell_answered = answered
        self._allocator = allocator
        self._ledger = ledger
        self._tell_refused = refused
        self.seconds: Seconds = {}
        self.pre_start_seconds: Seconds = {}
        #: A container's resource and IDs to why it was not started the last time.
        self._refused: dict[tuple[str, tuple[str, ...]], str] = {}
        self._starts: deque[StartRefusal] = deque(maxlen=STARTS)

    @property
    def starts_refused(self) -> tuple[StartRefusal, ...]:
        """The last containers that cannot start with what their pods ask for, oldest first."""
        return tuple(self._starts)

    @property
    def swaps(self) -> tuple[ClaimSwap, ...]:
        """The last claims that changed hands, oldest first."""
        return self._allocator.swaps.last

    @property
    def promises(self) -> Promises:
        """What schedulers promised, as of now."""
        return self._allocator.promises

    async def allocate(self, resource: str, containers: Sequence[Sequence[str]]) -> list[ContainerEdits]:
        """Answer an AllocateRequest.

        Raises:
            AllocationError: The request is refused; the kubelet shows the text on the pod.
            VendorError: The hardware cannot be made now; the pod is refused just the same.
        """
        started = time.perf_counter()
        try:
            with _timed(self.seconds, resource):
                if self._askers is not None:
                    await self._askers.hear(resource, containers)
                edits = await self._allocator.allocate(resource, containers)
        except AgentError as exc:
            log.warning("allocate refused", resource=resource, error=str(exc))
            self._tell_refused(resource, containers, str(exc))
            raise
        took = time.perf_counter() - started
        self._tell_answered()
        for it in edits:
            # The kubelet has its answer by then: it does not wait for the log.
            asyncio.get_running_loop().call_later(TOLD_AFTER, self._tell, it.annotations[ALLOCATION], took)
        return edits

    def _tell(self, allocation_id: str, took: float) -> None:
        if (it := self._ledger.get(allocation_id)) is not None:
            log.info(
                "allocated",
                allocation=it.id,
                resource=it.resource,
                ids=it.ids[:SHOWN],
                devices=it.cards[:SHOWN],
                ms=round(took * 1000, 2),
            )

    async def expect(self, resource: str, count: int) -> None:
        """Hear of the pods that may ask for so many IDs now, where the resource's cards are chosen for it."""
        if self._askers is not None:
            await self._askers.expect(resource, count)

    def preferred(
        self, resource: str, available: Sequence[str], required: Sequence[str], size: int
    ) -> list[str]:
        return self._allocator.preferred(resource, available, required, size)

    async def pre_start(self, resource: str, ids: Sequence[str]) -> None:
        """Answer a PreStartContainerRequest.

        Raises:
            AllocationError: Nothing of ours holds these IDs, or what the container asks for cannot be had.
            VendorError: The hardware cannot be made now. The kubelet tries again.
        """
        container = (resource, tuple(ids))
        try:
            with _timed(self.pre_start_seconds, resource):
                await self._pre_start(resource, ids)
        except AgentError as exc:
            self._refuse(container, exc)
            raise
        self._refused.pop(container, None)

    async def _pre_start(self, resource: str, ids: Sequence[str]) -> None:
        """Where the pod is not known yet, once more with those that the API server lists."""
        try:
            await self._allocator.pre_start(resource, ids)
        except LimitsUnread:
            if self._askers is None:
                raise
            await self._askers.look()
            await self._allocator.pre_start(resource, ids)

    def _refuse(self, container: tuple[str, tuple[str, ...]], exc: AgentError) -> None:
        """Say it once: the kubelet tries again and again."""
        reason = str(exc)
        if self._refused.pop(container, None) != reason:
            resource, ids = container
            log.warning("container start refused", resource=resource, ids=ids[:SHOWN], error=reason)
            if isinstance(exc, StartRefused):
                number = self._starts[-1].number + 1 if self._starts else 1
                self._starts.append(StartRefusal(number, PodRef(exc.namespace, exc.pod, exc.uid), str(exc)))
        self._refused[container] = reason
        if len(self._refused) > REMEMBERED:
            del self._refused[next(iter(self._refused))]


@contextmanager
def _timed(seconds: Seconds, resource: str) -> Iterator[None]:
    """Count how long the body takes, by how it ends."""
    started, outcome = time.perf_counter(), "error"
    try:
        yield
        outcome = "ok"
    except AllocationError:
        outcome = "refused"
        raise
    finally:
        took = time.perf_counter() - started
        cell = seconds.setdefault((resource, outcome), [0.0] * (len(BUCKETS) + 2))
        cell[0] += 1
        cell[1] += took
        bucket = bisect_left(BUCKETS, took)
        if bucket < len(BUCKETS):
            cell[2 + bucket] += 1
