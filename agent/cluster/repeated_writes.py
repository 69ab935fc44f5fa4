"""Keeps values at the API server as wanted, through outages, refusals and clients that undo writes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Set
from typing import Any, TypeVar

import anyio
import structlog
from msgspec import Struct

from agent.cluster.api_errors import ApiAway, ApiError, Busy, Conflict
from agent.cluster.server_restart import pause_until_return
from agent.core.backoff import Pauses
from agent.core.cell import Cell
from agent.core.endless_tasks import for_ever, set_on_change
from agent.core.errors import SchedulerError

log = structlog.get_logger()
T = TypeVar("T")

#: The longest pause that a busy server's Retry-After is followed for, in seconds.
LONGEST = 600.0

#: A value that another client undid so often in a row is contested, and is written more and more seldom. That
#: ends when a value stood for `QUIET` seconds.
TOO_OFTEN = 3
LONGEST_CONTEST = 60.0
QUIET = 600.0
#: A contest that lasts so many seconds is reported as a failure; before, an operator may be trying something.
LASTING = 300.0


class UndoneWrites:
    """Counts how often other clients undid values that the agent wrote."""

    def __init__(self) -> None:
        #: By key: the last value written, when (seconds), how often in a row it was undone, and since when.
        self._wrote: dict[str, tuple[object, float, int, float]] = {}

    def wrote(self, values: Mapping[str, object], now: float) -> Mapping[str, int]:
        """Note a write. Returns how often in a row its keys were undone, for those undone too often."""
        for key, value in values.items():
            before, at, times, since = self._wrote.get(key, (None, now, 0, now))
            again = value == before and now - at < QUIET
            self._wrote[key] = value, now, times + 1 if again else 0, since if again and times else now
        return {key: times for key in values if (times := self._wrote[key][2]) >= TOO_OFTEN}

    def lasting(self, now: float) -> Set[str]:
        """The keys that have been contested for long, and still are."""
        contested = {key: it for key, it in self._wrote.items() if it[2] >= TOO_OFTEN and now - it[1] < QUIET}
        return {key for key, (_, at, _, since) in contested.items() if at - since >= LASTING}


class RepeatedWriteTexts(Struct, frozen=True):
    """Log texts of one writer: writes are refused, are delayed, work again, or are undone by others."""

    refused: str
    delayed: str
    recovered: str
    undone: str


class RepeatedWrites:
    """Calls `write` after each change of a cell that decides, and from time to time.

    While the server is away it tries again with pauses.
    """

    def __init__(
        self,
        write: Callable[[bool], Awaitable[str]],
        words: RepeatedWriteTexts,
        node_name: str,
        *,
        pauses: Pauses,
        refused: Pauses,
        between: float,
        every: float,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """`write` brings the API object up to date, reports each write by `wrote`, and returns why a value
        of the agent stays in an object that should not have it. Its argument says whether
        to read the object although no change is known. After a Conflict `write` is called again at once.

        Seconds: `between` two writes, so that two contesting clients cause no storm, and `every` for a look
        without a change. `pauses` are for a server that is away or busy, `refused` for one that refuses.
        """
        self._write = write
        self._words = words
        self._node_name = node_name
        self._pauses = pauses
        self._refused = refused
        self._between = between
        self._every = every
        self._jitter = jitter
        self._contest_pauses = Pauses(2 * between, LONGEST_CONTEST, jitter)
        self._undone = UndoneWrites()
        self._rest = 0.0
        self._changed = asyncio.Event()
        #: Why the API server refuses writes, or a scheduler's plugin fails to word them; empty otherwise.
        self.error = ""
        #: Why writes are delayed: the server is away, or busy; empty while they are not.
        self.delayed = ""
        self.writes = 0

    @property
    def undone(self) -> Set[str]:
        """The keys that other clients have undone for long, as often as they were written."""
        return self._undone.lasting(anyio.current_time())

    async def run(self, cells: Iterable[Cell[Any]], returns: Cell[int]) -> None:
        """Follow the cells, for ever. `returns` counts how often the server was away and came back."""
        async with anyio.create_task_group() as group:
            group.start_soon(for_ever, set_on_change, self._changed, *cells)
            live = False
            while True:
                self._changed.clear()
                before, pause = returns.value, await self.once(live=live)
                if await pause_until_return(pause, returns, before):
                    self._pauses.reset()
                with anyio.move_on_after(self._every * (0.5 + self._jitter() / 2)) as slept:
                    await self._changed.wait()
                live = slept.cancelled_caught

    async def once(self, *, live: bool = False) -> float:
        """Bring the object up to date; returns the seconds for which the server is to be left alone."""
        before, self._rest = self.writes, self._between
        try:
            stays = await twice(self._write, live)
        except (ApiAway, Busy, Conflict) as exc:
            self._report("", str(exc))
            requested = exc.retry_after or 0.0 if isinstance(exc, Busy) else 0.0
            return self._again(max(self._pauses.next(), min(requested, LONGEST)))
        except (ApiError, SchedulerError) as exc:
            self._report(str(exc), "")
            return self._again(self._refused.next())
        self._report(stays, "")
        self._pauses.reset()
        self._refused.reset()
        return self._rest if stays or self.writes > before else 0.0

    def wrote(self, values: Mapping[str, object]) -> None:
        """Note a write; `values` by key are those that other clients may undo."""
        self.writes += 1
        undone = self._undone.wrote(values, anyio.current_time())
        if fresh := sorted(key for key, times in undone.items() if times == TOO_OFTEN):
            log.warning(self._words.undone, node=self._node_name, keys=fresh[:10])
        if not undone:
            self._contest_pauses.reset()
        self._rest = max(self._between, self._contest_pauses.next()) if undone else self._between

    def _again(self, pause: float) -> float:
        self._changed.set()  # the write is still to be done
        return pause

    def _report(self, error: str, delayed: str) -> None:
        if error and error != self.error:
            log.error(self._words.refused, node=self._node_name, error=error)
        elif delayed and not self.delayed:
            log.warning(self._words.delayed, node=self._node_name, error=delayed)
        elif (self.error or self.delayed) and not (error or delayed):
            log.info(self._words.recovered, node=self._node_name)
        self.error, self.delayed = error, delayed


class RepeatingWriter:
    """Base of writers that work through `RepeatedWrites`, with the values that are shown of them."""

    _writes: RepeatedWrites

    @property
    def error(self) -> str:
        """Why writes are refused, or cannot be made; empty while they succeed."""
        return self._writes.error

    @property
    def delayed(self) -> str:
        """Why writes are delayed: the server is away, or busy; empty while they are not."""
        return self._writes.delayed

    @property
    def writes(self) -> int:
        return self._writes.writes

    async def once(self, *, live: bool = False) -> float:
        """Bring the object up to date; returns the seconds for which the server is to be left alone.

        `live` reads the object although the watch shows no difference.
        """
        return await self._writes.once(live=live)


async def twice(write: Callable[[bool], Awaitable[T]], live: bool = False) -> T:
    """Call `write` again after a Conflict: the kubelet writes the Node's status whenever devices change."""
    try:
        return await write(live)
    except Conflict:
        return await write(True)
