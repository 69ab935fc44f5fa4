"""Decides which locks of schedulers on the Node are over; `cluster/node_lock_writer` removes them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any

import anyio

from agent.cluster.pod_state import PodState
from agent.core.allocation.ledger import Ledger
from agent.core.allocation.node_lock_rules import locks_dated_ahead, locks_on_node, stale_sentences, why_over
from agent.core.cell import Cell
from agent.core.endless_tasks import for_ever

#: How many locks that time alone ended are still shown.
MAX_SHOWN_LOCKS = 16


class NodeLockKeeper:
    """Looks at the locks when pods or locks change, when asked, and from time to time."""

    def __init__(
        self,
        pods: PodState,
        ledger: Ledger,
        keys: Callable[[], Collection[str]],
        clock: Callable[[], float],
        *,
        wall: Callable[[], float] = time.time,
        every: float = 30.0,
    ) -> None:
        """`keys`: the locks that the agent frees. `every`: seconds, since time alone may end a lock as well.

        `clock`: Unix seconds that never jump. `wall`: Unix seconds, which schedulers write into locks.
        """
        self._pods = pods
        self._locks = pods.locks
        self._ledger = ledger
        self._keys = keys
        self._clock = clock
        self._wall = wall
        self._every = every
        self._wanted = anyio.Event()

    def look_again(self) -> None:
        """Look again soon: an Allocate was answered or refused, or external use changed."""
        if self._locks.annotations.value:
            self._wanted.set()

    async def run(self) -> None:
        """Follow pods and locks, for ever."""
        async with anyio.create_task_group() as group:
            cells: tuple[Cell[Any], ...] = (self._pods.pods, self._locks.annotations)
            for cell in cells:
                group.start_soon(for_ever, self._watch, cell)
            while True:
                self._wanted = anyio.Event()
                self.once()
                with anyio.move_on_after(self._every):
                    await self._wanted.wait()

    async def _watch(self, cell: Cell[Any]) -> None:
        async for _ in cell.watch():
            self._wanted.set()

    def once(self) -> None:
        """Decide which locks are over now."""
        pods, now, seen = self._pods.pods.value, self._wall(), self._clock()
        held = locks_on_node(self._locks.annotations.value, self._keys())
        self._locks.dated_ahead = locks_dated_ahead(held, self._locks.dated_ahead, now, seen)
        waited, in_use = self._locks.waited(seen), self._ledger.in_use()
        reasons = {lock: why_over(lock, pods, in_use, now, waited.get(lock, 0.0)) for lock in held}
        over = {lock: why for lock, why in reasons.items() if why}
        known = self._locks.stale
        stale = (*known, *(it for it in stale_sentences(over) if it not in known))
        self._locks.stale = stale[-MAX_SHOWN_LOCKS:]
        self._locks.over.set(over)
