"""Allocate and PreStartContainer as the kubelet's socket calls them: timed, counted and logged."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import structlog

from agent.core.attribution.refused_requests import RefusedAllocate
from agent.core.attribution.scheduler_promises import Promises
from agent.core.errors import AgentError, AllocationError, LimitsUnread, StartRefused
from agent.core.event_notices import ClaimSwap, PodRef, StartRefusal
from agent.core.model import Allocation
from agent.core.publishing.agent_status import BUCKETS
from agent.daemon.allocation.allocator import Allocator
from agent.daemon.allocation.pod_waiter import PodWaiter
from agent.vendor_api.agent import ContainerEdits

log = structlog.get_logger()

#: Seconds from the answer to the log line.
LOGGED_AFTER = 0.001
#: IDs of one container that a log line shows.
MAX_SHOWN_IDS = 16
#: How many refused starts are remembered, so that each is logged once. The oldest is dropped first.
MAX_REMEMBERED = 1024
#: How many of the last refused starts become notices.
MAX_SHOWN_REFUSALS = 64

#: (resource, outcome) to [count, sum of seconds, one count per bucket].
Seconds = dict[tuple[str, str], list[float]]


class AllocateCalls:
    """Serves every resource of the node from one allocator."""

    def __init__(
        self,
        allocator: Allocator,
        refused: Callable[[RefusedAllocate], None] = lambda _: None,
        answered: Callable[[], None] = lambda: None,
        pod_waiter: PodWaiter | None = None,
    ) -> None:
        """`refused` is called with each refused Allocate, `answered` after each answered one.

        `pod_waiter` delays requests for cards that a scheduler chooses.
        """
        self._allocator = allocator
        self._on_refused = refused
        self._on_answered = answered
        self._pod_waiter = pod_waiter
        self.seconds: Seconds = {}
        self.pre_start_seconds: Seconds = {}
        #: Resource and IDs of a container to why it was not started the last time.
        self._refused: dict[tuple[str, tuple[str, ...]], str] = {}
        self._starts: deque[StartRefusal] = deque(maxlen=MAX_SHOWN_REFUSALS)

    @property
    def starts_refused(self) -> tuple[StartRefusal, ...]:
        """The last containers that cannot start with what their pods ask for, oldest first."""
        return tuple(self._starts)

    @property
    def swaps(self) -> tuple[ClaimSwap, ...]:
        """The last claim swaps, oldest first."""
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
            with _count_time(self.seconds, resource):
                if self._pod_waiter is not None:
                    await self._pod_waiter.wait(resource, containers)
                answers = await self._allocator.allocate(resource, containers)
        except AgentError as exc:
            log.warning("allocate refused", resource=resource, error=str(exc))
            self._on_refused(RefusedAllocate.from_error(resource, containers, exc))
            raise
        took = time.perf_counter() - started
        self._on_answered()
        for answer in answers:
            # The kubelet has its answer by then: it does not wait for the log.
            asyncio.get_running_loop().call_later(LOGGED_AFTER, _log_answer, answer.allocation, took)
        return [answer.edits for answer in answers]

    async def expect(self, resource: str, count: int) -> None:
        """Wait, before a GetPreferredAllocation, for the pods that may ask for that many IDs."""
        if self._pod_waiter is not None:
            await self._pod_waiter.expect(resource, count)

    def preferred(
        self, resource: str, available: Sequence[str], required: Sequence[str], size: int
    ) -> list[str]:
        """Answer a GetPreferredAllocation; [] where no choice can be made."""
        return self._allocator.preferred(resource, available, required, size)

    async def pre_start(self, resource: str, ids: Sequence[str]) -> None:
        """Answer a PreStartContainerRequest.

        Raises:
            AllocationError: No allocation holds these IDs, or what the container asks for cannot be had.
            VendorError: The hardware cannot be made now. The kubelet tries again.
        """
        container = (resource, tuple(ids))
        try:
            with _count_time(self.pre_start_seconds, resource):
                await self._pre_start(resource, ids)
        except AgentError as exc:
            self._log_refusal(container, exc)
            raise
        self._refused.pop(container, None)

    async def _pre_start(self, resource: str, ids: Sequence[str]) -> None:
        """Answer once; where the pod is not known yet, ask the API server for pods and try once more."""
        try:
            await self._allocator.pre_start(resource, ids)
        except LimitsUnread:
            if self._pod_waiter is None:
                raise
            await self._pod_waiter.look()
            await self._allocator.pre_start(resource, ids)

    def _log_refusal(self, container: tuple[str, tuple[str, ...]], exc: AgentError) -> None:
        """Log a refused start once: the kubelet tries again and again."""
        reason = str(exc)
        if self._refused.pop(container, None) != reason:
            resource, ids = container
            log.warning("container start refused", resource=resource, ids=ids[:MAX_SHOWN_IDS], error=reason)
            if isinstance(exc, StartRefused):
                number = self._starts[-1].number + 1 if self._starts else 1
                self._starts.append(StartRefusal(number, PodRef(exc.namespace, exc.pod, exc.uid), str(exc)))
        self._refused[container] = reason
        if len(self._refused) > MAX_REMEMBERED:
            del self._refused[next(iter(self._refused))]


def _log_answer(allocation: Allocation, took: float) -> None:
    log.info(
        "allocated",
        allocation=allocation.id,
        resource=allocation.resource,
        ids=allocation.ids[:MAX_SHOWN_IDS],
        devices=allocation.cards[:MAX_SHOWN_IDS],
        ms=round(took * 1000, 2),
    )


@contextmanager
def _count_time(seconds: Seconds, resource: str) -> Iterator[None]:
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
