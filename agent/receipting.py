"""Which annotations pods are to have for their schedulers: pods and allocations in, what is owed out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import anyio
import structlog

from agent.core.cell import Cell
from agent.core.claims import Candidate, Dialect
from agent.core.ledger import Ledger
from agent.core.promises import DIALECTS
from agent.core.receipts import Known, Owed, receipts
from agent.core.vendor import Vendor

log = structlog.get_logger()

#: What is wrong with receipts, of as many pods as are named.
SAID = 3


class Receipting:
    """Keeps `owed` as pods, allocations and vendors are. Whoever writes to pods reads it."""

    def __init__(
        self,
        pods: Cell[tuple[Candidate, ...]],
        ledger: Ledger,
        configured: Cell[tuple[str, ...]],
        vendors: Callable[[], Iterable[Vendor]],
        *,
        settle: float = 0.02,
    ) -> None:
        """`configured` changes with the dialects. `settle`: seconds after a change, so that many are one."""
        self._pods = pods
        self._ledger = ledger
        self._configured = configured
        self._vendors = vendors
        self._settle = settle
        self._news = asyncio.Event()
        self._dialects: Mapping[tuple[str, str], Dialect] = {}
        #: Of the hundred pods of a node one or two change at a time.
        self._known: dict[str, Known] = {}
        self.owed: Cell[tuple[Owed, ...]] = Cell(())
        #: Why not all can be made; empty while all is well.
        self.error = ""

    async def run(self) -> None:
        """Follow pods, allocations and vendors for ever."""
        async with anyio.create_task_group() as group:
            for cell in (self._pods, self._ledger.changes, self._configured):
                group.start_soon(self._hear, cell)
            while True:
                await self._news.wait()
                await anyio.sleep(self._settle)
                self._news.clear()
                self.once()

    def once(self) -> None:
        """Look, and say what follows."""
        # Of one name it is the vendor's own, which is heard first.
        its = {
            (vendor.name, it.name): it for vendor in self._vendors() for it in (*DIALECTS, *vendor.dialects)
        }
        if its != self._dialects:
            self._dialects, self._known = its, {}
        found = receipts(self._pods.value, self._ledger.in_use(), lambda *name: its.get(name), self._known)
        self.owed.set(found.owed)
        more = len(found.wrong) - SAID
        self._tell("; ".join((*found.wrong[:SAID], *([f"and {more} more"] if more > 0 else []))))

    async def _hear(self, cell: Cell[Any]) -> None:
        async for _ in cell.watch():
            self._news.set()

    def _tell(self, error: str) -> None:
        if error and error != self.error:
            log.error("receipts not made", error=error)
        if self.error and not error:
            log.info("receipts are made again")
        self.error = error
