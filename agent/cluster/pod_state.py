"""What goes to and fro between who serves the kubelet and the API server, for the sake of schedulers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress

from agent.core.allocation.node_locks import Lock
from agent.core.cell import Cell
from agent.core.model import FirstList
from agent.scheduler_api import Candidate, PodList, merged

#: Seconds that an Allocate waits for a list of pods.
SOON = 0.5
#: Seconds after which a list counts no more: who does not show among those that are followed is gone.
SHOWN_AFTER = 10.0
#: Seconds from a kubelet's socket to its first list of pods. A kubelet lists them once it has read its Node.
#: As it begins it has not, and looks again after a second (pkg/kubelet/config/apiserver.go,
#: WaitForAPIServerSyncPeriod; the same in 1.32, 1.35 and 1.36); it serves its socket early in that second.
LISTS_AFTER = 0.9
#: Seconds after that list in which those that wait are taken for those that were in it.
SEEN_WITHIN = 0.5


class PodState:
    """The pods bound to this node, and the locks that schedulers hold on it."""

    def __init__(
        self,
        pods: Cell[tuple[Candidate, ...]] | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        lists_after: float = LISTS_AFTER,
    ) -> None:
        #: The pods that are followed.
        self.pods: Cell[tuple[Candidate, ...]] = pods or Cell(())
        #: The Node's annotations that are locks, as last seen.
        self.locks: Cell[Mapping[str, str]] = Cell({})
        #: Those that are over, with why.
        self.over: Cell[Mapping[Lock, str]] = Cell({})
        #: When those were seen first that were of a time to come, on the clock that nobody sets.
        self.ahead: Mapping[Lock, float] = {}
        #: A sentence for each lock that time alone ended, the last ones: freed, it is over for a moment only.
        self.stale: tuple[str, ...] = ()
        #: Whether all of them were listed once, and the resourceVersion up to which they are followed.
        self.followed: Cell[bool] = Cell(False)
        self.reached = 0
        #: Whether a resource is planned whose cards schedulers choose: then they are to be followed at once.
        self.wanted: Cell[bool] = Cell(False)
        #: Lists the pods, as the API server has them now, or None where it does not say; None while it is
        #: known to be away.
        self.ask: Callable[[], Awaitable[PodList | None]] | None = None
        #: Whether the API server is away: what is known of pods is old then, and a kubelet lists none either.
        self.is_away = False
        #: Why no pod is ever seen, and what would have it so; empty where they are, or will be.
        self.unseen = ""
        self._clock = clock
        self._wall = wall
        self._lists_after = lists_after
        #: Whom the kubelet found that began last, once that is known. It is kept over restarts of the agent.
        self.first: Cell[FirstList | None] = Cell(None)
        #: When the socket of the kubelet came that began last, Unix nanoseconds.
        self._began_ns = 0
        #: The last list, and when it came.
        self._listed: PodList | None = None
        self._at = 0.0

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """The pods as they are known now, oldest first: those followed, with those listed since."""
        if self._listed is not None and self._clock() - self._at > SHOWN_AFTER:
            self._listed = None
        followed = self.pods.value
        return followed if self._listed is None else merged(followed, self.reached, self._listed)

    def follow_to(self, version: int) -> None:
        """The pods are followed up to this resourceVersion."""
        self.reached = version
        if self._wall() >= self._listed_at + SEEN_WITHIN:
            self._keep(self._found_by_times(self.candidates))
        self.followed.set(True)

    async def kubelet_began(self, began_ns: int) -> None:
        """A kubelet serves its socket since then, Unix nanoseconds; return once it has listed the pods.

        Until then it asks for no pod of the API server. Which pods it finds is seen here as it lists them, or
        was, by the agent before this one. Of a kubelet that began long before, the times tell it, as the pods
        are followed first.
        """
        self._began_ns = began_ns
        left = self._listed_at - self._wall()
        if left > -SEEN_WITHIN:
            await asyncio.sleep(min(max(left, 0.0), self._lists_after))  # the clock may have been set
            if self.followed.value and not self.is_away:
                self._keep(pod.uid for pod in self.candidates if pod.waits)
        elif self.followed.value and not self.is_away:
            self._keep(self._found_by_times(self.candidates))

    def found(self, candidates: Iterable[Candidate]) -> frozenset[str]:
        """The uids of the pods that the kubelet found as it began, of these where the times tell it."""
        known = self._known()
        return self._found_by_times(candidates) if known is None else frozenset(known.pods)

    def _found_by_times(self, candidates: Iterable[Candidate]) -> frozenset[str]:
        """Times are of whole seconds. Pods of the second of the list count as found: more are bound while a
        kubelet is away than in what is left of a second.
        """
        return frozenset(pod.uid for pod in candidates if pod.waits and 0 < pod.bound <= self._listed_at)

    @property
    def _listed_at(self) -> float:
        """When the kubelet that began last listed the pods, or is to, Unix seconds."""
        return self._began_ns / 1e9 + self._lists_after if self._began_ns else 0.0

    def _known(self) -> FirstList | None:
        """Whom the kubelet found that began last."""
        first = self.first.value
        return first if first is not None and first.began_ns == self._began_ns else None

    def _keep(self, uids: Iterable[str]) -> None:
        if self._began_ns and self._known() is None:
            self.first.set(FirstList(self._began_ns, tuple(sorted(uids))))

    def waited(self, now: float) -> dict[Lock, float]:
        """Seconds since those locks were seen that were of a time to come; `now` on their clock."""
        return {it: now - first for it, first in self.ahead.items()}

    async def look(self) -> None:
        """Have the pods that the API server lists now among the candidates, where it says so soon."""
        if self.ask is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(SOON):
                listed = await self.ask()
            if listed is not None and (self._listed is None or listed.version >= self._listed.version):
                self._listed, self._at = listed, self._clock()

    async def news(self) -> None:
        """Return when other pods are known."""
        await self.pods.changed()
