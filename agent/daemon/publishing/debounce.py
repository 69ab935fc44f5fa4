"""Looks anew soon after what it follows changed, once for many changes; and says once what is wrong."""

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
    """Keeps what it makes as the cells are that decide."""

    def __init__(self, cells: Iterable[Cell[Any]], settle: float, *, fails: str, again: str) -> None:
        """`settle`: seconds after a change, so that many at once are one look. The log says `fails` with
        the reason where something is wrong, and `again` once it is no more.
        """
        self._cells = tuple(cells)
        self._settle = settle
        self._fails = fails
        self._again = again
        self._news = asyncio.Event()
        #: Why not all of it is made; empty while all is well.
        self.error = ""

    async def run(self) -> None:
        """Follow the cells for ever."""
        async with anyio.create_task_group() as group:
            for cell in self._cells:
                group.start_soon(for_ever, self._hear, cell)
            while True:
                await self._news.wait()
                await anyio.sleep(self._settle)
                self._news.clear()
                await self.once()

    @abstractmethod
    async def once(self) -> None:
        """Look at all that decides, and say what follows."""

    async def _hear(self, cell: Cell[Any]) -> None:
        async for _ in cell.watch():
            self._news.set()

    def _tell(self, error: str) -> None:
        if error and error != self.error:
            log.error(self._fails, error=error)
        if self.error and not error:
            log.info(self._again)
        self.error = error
