"""Where notices come from: looks at the agent now and then, and tells what has happened in between."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Sequence

import anyio

from agent.core.attribution import Place, waiting
from agent.core.claims import Candidate
from agent.core.news import news
from agent.core.notices import Notice, PodRef, Refusal
from agent.core.view import View

#: Refusals that are shown; who looks less often than they come misses some.
SHOWN = 64
#: IDs of a refusal that are shown.
IDS = 16


class Refusals:
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
        self._last: deque[tuple[float, Refusal]] = deque(maxlen=SHOWN)

    @property
    def last(self) -> tuple[Refusal, ...]:
        """Those that are old enough to be told, oldest first."""
        now = self._clock()
        return tuple(it for at, it in self._last if now - at >= self._settle)

    def add(self, resource: str, containers: Sequence[Sequence[str]], text: str) -> None:
        """Keep it. The kubelet asks for one container at a time."""
        self._number += 1
        ids = tuple(one for its in containers for one in its)
        count = len(set(ids))
        pods = waiting(resource, count, self._pods(), self._taken(resource)) if count else ()
        asking = tuple(PodRef(it.namespace, it.name, it.uid) for it in pods)
        refusal = Refusal(self._number, resource, ids[:IDS], text, asking)
        self._last.append((self._clock(), refusal))


async def follow(
    view: Callable[[], View],
    pods: Callable[[], Sequence[Candidate]],
    tell: Callable[[Notice], None],
    every: float = 1.0,
) -> None:
    """Look for ever, `every` so many seconds; what came and went in between was no news.

    An agent that stands by leaves the telling to the one that serves.
    """
    before = View(node="", version="")
    while True:
        after = view()
        if not after.standby:
            for notice in news(before, after, pods()):
                tell(notice)
            before = after
        await anyio.sleep(every)
