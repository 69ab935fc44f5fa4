"""The base of all wanted values: computed again soon after a change, once for many changes."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar, Generic, TypeVar

import anyio
import structlog

from agent.core.cell import Cell
from agent.core.endless_tasks import for_ever, set_on_change

log = structlog.get_logger()

T = TypeVar("T")


class Debounced(ABC, Generic[T]):
    """Keeps `wanted`: computes it again whenever one of the cells that it depends on has changed."""

    #: The log lines for an error and for its end.
    fails: ClassVar[str]
    again: ClassVar[str]

    def __init__(self, cells: Iterable[Cell[Any]], settle: float, first: T) -> None:
        """`settle`: seconds from a change to the computation, so that many changes cost one.

        `first` is the value before the first computation.
        """
        self._cells = tuple(cells)
        self._settle = settle
        self._changed = asyncio.Event()
        self.wanted: Cell[T] = Cell(first)
        #: Why the value is not complete; empty while it is.
        self.error = ""

    async def run(self) -> None:
        """Follow the cells for ever."""
        async with anyio.create_task_group() as group:
            group.start_soon(for_ever, set_on_change, self._changed, *self._cells)
            while True:
                await self._changed.wait()
                await anyio.sleep(self._settle)
                self._changed.clear()
                await self.once()

    async def once(self) -> None:
        """Compute the value from the cells as they are now, and publish it."""
        if (computed := await self._computed()) is not None:
            value, error = computed
            self.wanted.set(value)
            self._report(error)

    @abstractmethod
    async def _computed(self) -> tuple[T, str] | None:
        """The value, and why it is not complete; None while it cannot be known."""

    def _report(self, error: str) -> None:
        """Keep the error of this computation, and log it where it is new."""
        if error and error != self.error:
            log.error(self.fails, error=error)
        if self.error and not error:
            log.info(self.again)
        self.error = error
