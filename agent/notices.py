"""Where notices come from: looks at the agent now and then, and tells what has happened in between."""

from __future__ import annotations

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
    """The last Allocates that were refused, with who may have asked: the kubelet does not say."""

    def __init__(
        self, pods: Callable[[], Sequence[Candidate]], taken: Callable[[str], Collection[Place]]
    ) -> None:
        """`taken` names the containers that have an allocation of a resource."""
        self._pods = pods
        self._taken = taken
        self._number = 0
        self._last: deque[Refusal] = deque(maxlen=SHOWN)

    @property
    def last(self) -> tuple[Refusal, ...]:
        return tuple(self._last)

    def add(self, resource: str, containers: Sequence[Sequence[str]], text: str) -> None:
        """Keep it. The kubelet asks for one container at a time."""
        self._number += 1
        ids = tuple(one for its in containers for one in its)
        count = len(set(ids))
        pods = waiting(resource, count, self._pods(), self._taken(resource)) if count else ()
        asking = tuple(PodRef(it.namespace, it.name, it.uid) for it in pods)
        self._last.append(Refusal(self._number, resource, ids[:IDS], text, asking))


async def follow(
    view: Callable[[], View],
    pods: Callable[[], Sequence[Candidate]],
    tell: Callable[[Notice], None],
    every: float = 1.0,
) -> None:
    """Look for ever, `every` so many seconds; what came and went in between was no news."""
    before = View(node="", version="")
    while True:
        after = view()
        for notice in news(before, after, pods()):
            tell(notice)
        before = after
        await anyio.sleep(every)
