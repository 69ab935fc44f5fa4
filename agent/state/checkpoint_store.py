"""Writes the checkpoint file whenever the ledger or the health of devices changed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import structlog

from agent.core.allocation.ledger import Ledger
from agent.core.backoff import Pauses
from agent.core.devices.inventory import Inventory
from agent.core.model import FirstList
from agent.state.checkpoint import CheckpointFile, SavedState
from agent.state.write_thread import WriteThread

log = structlog.get_logger()

#: Seconds after which a disk counts as hanging; the kubelet's answer does not wait longer for it.
PATIENCE = 2.0
#: Shortest and longest pause, in seconds, before a failed write is tried again.
PAUSES = (0.1, 30.0)


class LedgerStore:
    """Saves in a thread, one write after another. A disk that fails or hangs is reported, and fails no pod.

    `base` is the loaded state. Its parts that neither the ledger nor the inventory has are saved again.
    """

    def __init__(
        self,
        file: CheckpointFile,
        ledger: Ledger,
        inventory: Inventory,
        base: SavedState,
        patience: float = PATIENCE,
        pauses: tuple[float, float] = PAUSES,
    ) -> None:
        self._file = file
        self._ledger = ledger
        self._inventory = inventory
        self._base = base
        self._patience = patience
        self._pauses = Pauses(*pauses)
        self._turn = asyncio.Lock()
        self._writing: asyncio.Future[str] | None = None
        #: The write that timed out; later saves do not wait for it.
        self._hung: asyncio.Future[str] | None = None
        self._worker = WriteThread()
        #: Set while the disk lacks the newest state; and whether that state must survive a power cut.
        self._owed = asyncio.Event()
        self._owed_durable = False
        self.error = ""
        self.saves = 0

    async def save(self, *, durable: bool, last: bool = False) -> None:
        """Write the state as of the moment the write begins. Returns within the patience, written or not.

        Only the first caller waits for a write that hangs; until it ends, later callers return at once.
        That includes `durable` calls before hardware is made: no pod is refused because of a disk, and a
        second wait would tell no more. Only the `last` call, after which no retry follows, waits again.
        """
        try:
            async with asyncio.timeout(self._patience), self._turn:
                durable = durable or self._owed_durable
                error = self._no_answer if self._hangs and not last else await self._written(durable)
        except TimeoutError:
            self._hung, error = self._writing, self._no_answer
        if error:
            self._owed_durable = self._owed_durable or durable
            self._owed.set()
        else:
            self._owed_durable = False
            self._owed.clear()
        self._report(f"{self._file.path}: {error}" if error else "")

    async def remember(self, labels: Mapping[str, str | None], config: str) -> None:
        """Save the labels of the Node that chose the configuration, and the name of the chosen one."""
        await self._remember(replace(self._base, labels=labels, config=config))

    async def remember_first(self, first: FirstList | None) -> None:
        """Save the kubelet's pods at its start."""
        await self._remember(replace(self._base, first=first))

    async def _remember(self, base: SavedState) -> None:
        if base != self._base:
            self._base = base
            await self.save(durable=False)

    async def run(self) -> None:
        """Retry failed writes until the disk takes them, for ever."""
        while True:
            await self._owed.wait()
            self._pauses.reset()
            while self._owed.is_set():
                await self._wait_to_retry(self._pauses.next())
                if self._owed.is_set():
                    await self.save(durable=False)

    async def _wait_to_retry(self, pause: float) -> None:
        """Pause before a retry; a write that hangs is awaited, because its end may mean a working disk."""
        if self._writing is not None and not self._writing.done():
            await asyncio.wait([self._writing])
        elif self._writing is None or self._writing.result():
            await asyncio.sleep(pause)
        # A write that succeeded after its caller's patience is retried at once.

    @property
    def _hangs(self) -> bool:
        return self._hung is not None and self._hung is self._writing and not self._hung.done()

    @property
    def _no_answer(self) -> str:
        return f"the disk has not answered for {self._patience:g} s"

    async def _written(self, durable: bool) -> str:
        """Write after any earlier write has ended; returns the error, or ""."""
        if self._writing is not None:
            await asyncio.shield(self._writing)
        self._writing = self._worker.submit(partial(self._file.save, self._state(), durable=durable))
        return await asyncio.shield(self._writing)

    def _state(self) -> SavedState:
        return replace(
            self._base,
            allocations=self._ledger.all(),
            health=self._inventory.records(),
            devices=self._inventory.remembered_devices(),
            cordons=self._inventory.cordons(),
        )

    def _report(self, error: str) -> None:
        if error and error != self.error:
            log.error("checkpoint not written", error=error, remedy="free space, or replace the disk")
        if self.error and not error:
            log.info("checkpoint written again", path=str(self._file.path))
        self.error = error
        self.saves += not error
