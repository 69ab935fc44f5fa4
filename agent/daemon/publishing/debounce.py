"""The base of all wanted values: computed again soon after a change, once for many changes."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import anyio
import structlog

from agent.core.cell import Cell
from agent.core.endless_tasks import for_ever

log = structlog.get_logger()


class Debounced(ABC):
    """Computes a value again whenever one of the cells that it depends on has changed."""

    def __init__(self, cells: Iterable[Cell[Any]], settle: float, *, fails: str, again: str) -> None:
        """`settle`: seconds from a change to the computation, so that many changes cost one.

        `fails` is the log line for an error, `again` the one for its end. Each is logged once.
        """
        self._cells = tuple(cells)
        self._settle = settle
        self._fails = fails
        self._again = again
        self._changed = asyncio.Event()
        #: Why the value is not complete; empty while it is.
        self.error = ""

    async def run(self) -> None:
        """Follow the cells for ever."""
        async with anyio.create_task_group() as group:
            for cell in self._cells:
                group.start_soon(for_ever, self._follow, cell)
            while True:
                await self._changed.wait()
                await anyio.sleep(self._settle)
                self._changed.clear()
                await self.once()

    @abstractmethod
    async def once(self) -> None:
        """Compute the value from the cells as they are now, and publish it."""

    async def _follow(self, cell: Cell[Any]) -> None:
        async for _ in cell.watch():
            self._changed.set()

    def _report(self, error: str) -> None:
        """Keep the error of this computation, and log it where it is new."""
        if error and error != self.error:
            log.error(self._fails, error=error)
        if self.error and not error:
            log.info(self._again)
        self.error = error
