"""The pods of this node, shared by the code that answers the kubelet and the API client that follows them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress

from agent.cluster.node_lock_state import NodeLockState
from agent.core.allocation.known_pods import KnownPods
from agent.core.cell import Cell
from agent.core.model import FirstList
from agent.scheduler_api.candidate import PodList, merged

#: Seconds that an Allocate waits for a list of pods.
SOON = 0.5
#: Seconds after which a list of pods counts no more: a pod that is still not followed by then is gone.
SHOWN_AFTER = 10.0
#: Seconds from a kubelet's socket to its first list of pods. A kubelet lists pods once it has read its Node.
#: At its start it has not, and looks again after a second (pkg/kubelet/config/apiserver.go,
#: WaitForAPIServerSyncPeriod; the same in 1.32, 1.35 and 1.36); it serves its socket early in that second.
LISTS_AFTER = 0.9
#: Seconds after that list during which the waiting pods are taken for the pods in it.
SEEN_WITHIN = 0.5


class PodState:
    """The pods bound to this node, and which of them the kubelet found when it started."""

    def __init__(
        self,
        pods: Cell[KnownPods] | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        lists_after: float = LISTS_AFTER,
    ) -> None:
        """`clock` is monotonic, `wall` gives Unix seconds."""
        #: The pods that are followed.
        self.pods: Cell[KnownPods] = pods or Cell(KnownPods())
        #: The locks that schedulers hold on the node for its pods.
        self.locks = NodeLockState()
        #: Whether all pods were listed once, and the resourceVersion up to which they are followed.
        self.followed: Cell[bool] = Cell(False)
        self.reached = 0
        #: Whether schedulers choose the cards of a planned resource: then the pods are followed at once.
        self.wanted: Cell[bool] = Cell(False)
        #: Lists the pods as the API server has them now; returns None where the API server does not answer.
        #: None while the API server is known to be away.
        self.ask: Callable[[], Awaitable[PodList | None]] | None = None
        #: Whether the API server is away: the known pods are old then, and a kubelet lists none either.
        self.is_away = False
        #: Why the agent never sees a pod, and what would help; empty where it does see pods, or will.
        self.unseen = ""
        self._clock = clock
        self._wall = wall
        self._lists_after = lists_after
        #: The pods that the last kubelet found at its start, once known. Kept over restarts of the agent.
        self.first: Cell[FirstList | None] = Cell(None)
        #: When the socket of the last kubelet was made, Unix nanoseconds.
        self._began_ns = 0
        #: The last list, and when it came.
        self._listed: PodList | None = None
        self._at = 0.0
        #: The followed pods, their resourceVersion and the list, and the candidates that were merged of them.
        self._merged: tuple[tuple[KnownPods, int, PodList], KnownPods] | None = None

    @property
    def candidates(self) -> KnownPods:
        """The known pods, oldest first: the followed ones, with the ones that were listed since."""
        if self._listed is not None and self._clock() - self._at > SHOWN_AFTER:
            self._listed = self._merged = None
        followed, listed = self.pods.value, self._listed
        if listed is None:
            return followed
        parts = followed, self.reached, listed
        if self._merged is None or self._merged[0] != parts:
            self._merged = parts, followed.updated(merged(*parts))
        return self._merged[1]

    def follow_to(self, version: int) -> None:
        """The pods are followed up to this resourceVersion.

        The first pods that are followed after the list of the kubelet tell at once which pods it found: pods
        that are bound later in the second of that list have the same time.
        """
        self.reached = version
        since_list = self._wall() - self._listed_at
        if since_list >= (SEEN_WITHIN if self.followed.value else 0.0):
            self._keep(self._found_by_times(self.candidates))
        self.followed.set(True)

    async def kubelet_began(self, began_ns: int) -> None:
        """Return once the kubelet that serves its socket since `began_ns` has listed the pods.

        `began_ns`: Unix nanoseconds. Until that list a kubelet asks for no pod of the API server. Which pods
        it finds is seen here while it lists them, or was seen by an earlier process of the agent. For a
        kubelet that started long before, the times of the pods tell, once the pods are followed.
        """
        self._began_ns = began_ns
        left = self._listed_at - self._wall()
        if left > -SEEN_WITHIN:
            await asyncio.sleep(min(max(left, 0.0), self._lists_after))  # the clock may have been set
            if self.followed.value and not self.is_away:
                self._keep(pod.uid for pod in self.candidates.waiting)
        elif self.followed.value and not self.is_away:
            self._keep(self._found_by_times(self.candidates))

    def found(self, candidates: KnownPods) -> frozenset[str]:
        """The uids of the pods that the kubelet found at its start.

        Where the first list was not seen, these are the candidates that their times show to be in it.
        """
        known = self._known()
        return self._found_by_times(candidates) if known is None else frozenset(known.pods)

    def _found_by_times(self, candidates: KnownPods) -> frozenset[str]:
        """The candidates that waited when the kubelet listed the pods.

        Times are whole seconds. Pods of the second of the list count as found: more pods are bound while a
        kubelet is away than in the rest of that second.
        """
        return frozenset(pod.uid for pod in candidates.waiting if 0 < pod.bound <= self._listed_at)

    @property
    def _listed_at(self) -> float:
        """When the last kubelet first listed the pods, or will, Unix seconds."""
        return self._began_ns / 1e9 + self._lists_after if self._began_ns else 0.0

    def _known(self) -> FirstList | None:
        """The first list of the last kubelet."""
        first = self.first.value
        return first if first is not None and first.began_ns == self._began_ns else None

    def _keep(self, uids: Iterable[str]) -> None:
        if self._began_ns and self._known() is None:
            self.first.set(FirstList(self._began_ns, tuple(sorted(uids))))

    async def look(self) -> None:
        """Add the pods that the API server lists now to the candidates, if it answers soon."""
        if self.ask is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(SOON):
                listed = await self.ask()
            if listed is not None and (self._listed is None or listed.version >= self._listed.version):
                self._listed, self._at = listed, self._clock()

    async def changed(self) -> None:
        """Return when the followed pods change."""
        await self.pods.changed()
