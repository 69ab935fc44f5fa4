"""Where notices come from: looks at the agent now and then, and tells what has happened in between."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Sequence

import anyio

from agent.core.allocation.pod_attribution import Place, waiting_for
from agent.core.allocation.refused_requests import RefusedAllocate
from agent.core.notices import Notice, PodRef, Refusal
from agent.core.publishing.agent_status import UNKNOWN, AgentStatus
from agent.core.publishing.event_texts import news
from agent.scheduler_api import Candidate

#: Refusals that are shown, and as many again that wait to be. Numbers of others are missing among them.
SHOWN = 64
#: IDs of a refusal that are shown.
IDS = 16


class RecentRefusals:
    """The last Allocates that were refused, with who may have asked: the kubelet does not say.

    A moment later the pod's status has our words; so long a refusal is not shown.
    """

    def __init__(
        self,
        pods: Callable[[], Sequence[Candidate]],
        taken: Callable[[str], Collection[Place]],
        settle: float = 3.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`taken` names the containers that have an allocation of a resource; `settle` is in seconds."""
        self._pods = pods
        self._taken = taken
        self._settle = settle
        self._clock = clock
        self._number = 0
        #: When each came; those that are not old enough yet.
        self._fresh: deque[tuple[float, Refusal]] = deque()
        self._settled: deque[Refusal] = deque(maxlen=SHOWN)

    @property
    def last(self) -> tuple[Refusal, ...]:
        """Those that are old enough to be told, oldest first."""
        self._let_settle()
        return tuple(self._settled)

    def add(self, refused: RefusedAllocate) -> None:
        """Keep it. The kubelet asks for one container at a time."""
        self._let_settle()
        self._number += 1
        ids, resource = refused.ids, refused.resource
        count = len(set(ids))
        pods = waiting_for(resource, count, self._pods(), self._taken(resource)) if count else ()
        asking = tuple(PodRef(it.namespace, it.name, it.uid) for it in pods)
        if len(self._fresh) == SHOWN:
            self._fresh.pop()  # the newest gives way: its number is missing, which tells of it
        self._fresh.append((self._clock(), Refusal(self._number, resource, ids[:IDS], refused.text, asking)))

    def _let_settle(self) -> None:
        until = self._clock() - self._settle
        while self._fresh and self._fresh[0][0] <= until:
            self._settled.append(self._fresh.popleft()[1])


async def follow(
    view: Callable[[], AgentStatus | None],
    pods: Callable[[], Sequence[Candidate]],
    tell: Callable[[Notice], None],
    every: float = 1.0,
) -> None:
    """Compare two views for ever, `every` so many seconds; what came and went in between was no news.

    `view` gives None while the agent stands by: the agent that serves tells the notices.
    """
    before = UNKNOWN
    while True:
        after = view()
        if after is not None and after != before:
            for notice in news(before, after, pods()):
                tell(notice)
            before = after
        await anyio.sleep(every)
