"""Keeps what we write at the API server as it is wanted, through outages, refusals and others who undo it."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Any, TypeVar

import anyio
import structlog

from agent.cluster.api_errors import ApiAway, ApiError, Busy, Conflict
from agent.cluster.server_restart import rest
from agent.core.backoff import Pauses
from agent.core.cell import Cell
from agent.core.endless_tasks import for_ever

log = structlog.get_logger()
T = TypeVar("T")

#: Seconds for which a server that is busy is left alone at most, whatever it asks.
LONGEST = 600.0

#: Undone so often in a row, by somebody who wants other values, what we write is a quarrel, and we write it
#: more and more seldom. One is over when a value stood for so many seconds.
TOO_OFTEN = 3
LONGEST_QUARREL = 60.0
QUIET = 600.0
#: One that goes on for so many seconds is told of as a failure: until then somebody may be trying something.
LASTING = 300.0


class UndoneWrites:
    """Which of the values that we wrote others undo again and again."""

    def __init__(self) -> None:
        #: What we wrote last by key, when (seconds), how often in a row it was undone, and since when.
        self._wrote: dict[str, tuple[object, float, int, float]] = {}

    def wrote(self, values: Mapping[str, object], now: float) -> Mapping[str, int]:
        """How often in a row each was undone that was so too often; none that stood for `QUIET` seconds."""
        for key, value in values.items():
            before, at, times, since = self._wrote.get(key, (None, now, 0, now))
            again = value == before and now - at < QUIET
            self._wrote[key] = value, now, times + 1 if again else 0, since if again and times else now
        return {key: times for key in values if (times := self._wrote[key][2]) >= TOO_OFTEN}

    def still(self, now: float) -> Set[str]:
        """The keys whose quarrel goes on for long, and is not over."""
        quarrels = {key: it for key, it in self._wrote.items() if it[2] >= TOO_OFTEN and now - it[1] < QUIET}
        return {key for key, (_, at, _, since) in quarrels.items() if at - since >= LASTING}


@dataclass(frozen=True, slots=True)
class UpkeepTexts:
    """How the log names what becomes of it."""

    refused: str
    waits: str
    again: str
    undone: str


class Upkeep:
    """Has it written whenever something changed that decides, and now and then.

    A server that is away is tried again, with pauses, until it has it all.
    """

    def __init__(
        self,
        write: Callable[[bool], Awaitable[str]],
        words: UpkeepTexts,
        node_name: str,
        *,
        pauses: Pauses,
        refused: Pauses,
        between: float,
        every: float,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """`write` brings it up to date, says by `wrote` what it wrote, and returns why something of ours is
        still where it is not wanted; it is told whether to look at what stands there though nothing is known
        to be done. It is called again at once where it raises Conflict.

        Seconds: `between` two writes, so that whoever writes other values makes no storm, and `every` how
        often it is looked, whatever the watch says. `pauses` where the server is away or busy, `refused`
        where it refuses.
        """
        self._write = write
        self._words = words
        self._node_name = node_name
        self._pauses = pauses
        self._refused = refused
        self._between = between
        self._every = every
        self._jitter = jitter
        self._quarrel = Pauses(2 * between, LONGEST_QUARREL, jitter)
        self._undone = UndoneWrites()
        self._rest = 0.0
        self._news = anyio.Event()
        #: Why the API server refuses it; empty while it does not.
        self.error = ""
        #: Why it waits: the server is away, or has too much to do.
        self.waits = ""
        self.writes = 0

    @property
    def undone(self) -> Set[str]:
        """The keys of what others undo as often as it is written, and have done so for long."""
        return self._undone.still(anyio.current_time())

    async def run(self, cells: Iterable[Cell[Any]], returns: Cell[int]) -> None:
        """Follow the cells that decide for ever. `returns`: how often the server was away and came back."""
        async with anyio.create_task_group() as group:
            for cell in cells:
                group.start_soon(for_ever, self._hear, cell)
            live = False
            while True:
                self._news = anyio.Event()
                before, pause = returns.value, await self.once(live=live)
                if await rest(pause, returns, before):
                    self._pauses.reset()
                with anyio.move_on_after(self._every * (0.5 + self._jitter() / 2)) as slept:
                    await self._news.wait()
                live = slept.cancelled_caught

    async def once(self, *, live: bool = False) -> float:
        """Bring it up to date; returns for how many seconds the server is to be left alone."""
        before, self._rest = self.writes, self._between
        try:
            stays = await twice(self._write, live)
        except (ApiAway, Busy, Conflict) as exc:
            self._tell("", str(exc))
            asked = exc.retry_after or 0.0 if isinstance(exc, Busy) else 0.0
            return self._again(max(self._pauses.next(), min(asked, LONGEST)))
        except ApiError as exc:
            self._tell(str(exc), "")
            return self._again(self._refused.next())
        self._tell(stays, "")
        self._pauses.reset()
        self._refused.reset()
        return self._rest if stays or self.writes > before else 0.0

    def wrote(self, values: Mapping[str, object]) -> None:
        """It was written; `values` by key are what others may undo."""
        self.writes += 1
        undone = self._undone.wrote(values, anyio.current_time())
        if fresh := sorted(key for key, times in undone.items() if times == TOO_OFTEN):
            log.warning(self._words.undone, node=self._node_name, keys=fresh[:10])
        if not undone:
            self._quarrel.reset()
        self._rest = max(self._between, self._quarrel.next()) if undone else self._between

    def _again(self, pause: float) -> float:
        self._news.set()  # it is still to be done
        return pause

    async def _hear(self, cell: Cell[Any]) -> None:
        async for _ in cell.watch():
            self._news.set()

    def _tell(self, error: str, waits: str) -> None:
        if error and error != self.error:
            log.error(self._words.refused, node=self._node_name, error=error)
        elif waits and not self.waits:
            log.warning(self._words.waits, node=self._node_name, error=waits)
        elif (self.error or self.waits) and not (error or waits):
            log.info(self._words.again, node=self._node_name)
        self.error, self.waits = error, waits


class KeptWriter:
    """What its `_upkeep` keeps as it is wanted, as whoever runs it and tells of it sees it."""

    _upkeep: Upkeep

    @property
    def error(self) -> str:
        """Why the API server refuses it; empty while it does not."""
        return self._upkeep.error

    @property
    def waits(self) -> str:
        """Why it waits: the server is away, or has too much to do."""
        return self._upkeep.waits

    @property
    def writes(self) -> int:
        return self._upkeep.writes

    async def once(self, *, live: bool = False) -> float:
        """Bring it up to date; returns for how many seconds the server is to be left alone.

        `live`: look at what stands there, also where by the watch nothing is to be done.
        """
        return await self._upkeep.once(live=live)


async def twice(write: Callable[[bool], Awaitable[T]], live: bool = False) -> T:
    """Of what reads before it writes. The kubelet writes the Node's status just when devices come and go."""
    try:
        return await write(live)
    except Conflict:
        return await write(True)
