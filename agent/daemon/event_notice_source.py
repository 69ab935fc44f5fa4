"""Where notices come from: two statuses are compared now and then, and refusals are kept for them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

from agent.cluster.pod_state import PodState
from agent.core.allocation.container_allocations import containers_with_allocation
from agent.core.allocation.ledger import Ledger
from agent.core.attribution.refused_requests import RefusedAllocate
from agent.core.attribution.waiting_pods import waiting_for
from agent.core.endless_tasks import sleep_in_step
from agent.core.event_notices import Notice, PodRef, Refusal
from agent.core.publishing.agent_status import UNKNOWN, AgentStatus
from agent.core.publishing.event_texts import notices
from agent.scheduler_api import Candidate

#: How many refusals are shown, and how many more are delayed. Gaps in their numbers tell of others.
MAX_SHOWN_REFUSALS = 64
#: How many device IDs of a refusal are shown.
MAX_SHOWN_IDS = 16


class RecentRefusals:
    """The last refused Allocates, with the pods that may have asked: the kubelet does not name the pod.

    A refusal is shown after a delay: by then the status of the pod that asked has the refusal's text.
    """

    def __init__(
        self,
        pod_state: PodState,
        ledger: Ledger,
        delay: float = 3.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`delay`: seconds until a refusal is shown."""
        self._pod_state = pod_state
        self._ledger = ledger
        self._delay = delay
        self._clock = clock
        self._number = 0
        #: Refusals that are still delayed, each with the time at which it came.
        self._fresh: deque[tuple[float, Refusal]] = deque()
        self._settled: deque[Refusal] = deque(maxlen=MAX_SHOWN_REFUSALS)

    @property
    def last(self) -> tuple[Refusal, ...]:
        """The refusals that are shown, oldest first."""
        self._let_settle()
        return tuple(self._settled)

    def add(self, refused: RefusedAllocate) -> None:
        """Keep the refusal of these containers' device IDs. The kubelet asks for one container at a time."""
        self._let_settle()
        self._number += 1
        ids, resource = refused.ids, refused.resource
        count = len(set(ids))
        candidates = self._pod_state.candidates
        served = containers_with_allocation(self._ledger.in_use(), resource, candidates)
        pods = waiting_for(resource, count, candidates, served) if count else ()
        asking = tuple(PodRef(it.namespace, it.name, it.uid) for it in pods)
        if len(self._fresh) == MAX_SHOWN_REFUSALS:
            self._fresh.pop()  # the newest: the gap in the numbers shows that it is missing
        refusal = Refusal(self._number, resource, ids[:MAX_SHOWN_IDS], refused.text, asking)
        self._fresh.append((self._clock(), refusal))

    def _let_settle(self) -> None:
        until = self._clock() - self._delay
        while self._fresh and self._fresh[0][0] <= until:
            self._settled.append(self._fresh.popleft()[1])


async def follow(
    status: Callable[[], AgentStatus | None],
    pods: Callable[[], Sequence[Candidate]],
    publish: Callable[[Notice], None],
    every: float = 1.0,
) -> None:
    """Compare the status with the one before, every so many seconds, for ever; publish what changed.

    `status` returns None while the agent is a standby: the agent that serves publishes the notices.
    """
    before = UNKNOWN
    while True:
        after = status()
        if after is not None and after != before:
            for notice in notices(before, after, pods()):
                publish(notice)
            before = after
        await sleep_in_step(every)
