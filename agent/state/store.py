"""Keeps the checkpoint file in step with the ledger and the health records."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from functools import partial

import structlog

from agent.core.inventory import Inventory
from agent.core.ledger import Ledger
from agent.state.checkpoint import CheckpointFile, Saved

log = structlog.get_logger()

#: A disk that takes longer is said to hang; the kubelet's answer does not wait for it.
PATIENCE = 2.0


class LedgerStore:
    """Saves off the loop, one write after another. A disk that fails or hangs is said, and fails no pod."""

    def __init__(
        self,
        file: CheckpointFile,
        ledger: Ledger,
        inventory: Inventory,
        boot_id: str,
        patience: float = PATIENCE,
    ) -> None:
        self._file = file
        self._ledger = ledger
        self._inventory = inventory
        self._boot_id = boot_id
        self._patience = patience
        self._turn = asyncio.Lock()
        self._writing: asyncio.Future[str] | None = None
        self._owed: asyncio.Task[None] | None = None
        self._writer = _Writer()
        self.error = ""
        self.saves = 0

    async def save(self, *, durable: bool) -> None:
        """Write what is known at the moment the write begins."""
        async with self._turn:
            try:
                async with asyncio.timeout(self._patience):
                    error = await self._written(durable)
            except TimeoutError:
                error = f"the disk has not answered for {self._patience:g} s"
                self._again_when_it_answers()
            self._tell(f"{self._file.path}: {error}" if error else "")

    async def _written(self, durable: bool) -> str:
        """The error of a write that begins now, after one that somebody stopped waiting for."""
        if self._writing is not None:
            await asyncio.shield(self._writing)
        state = Saved(self._boot_id, self._ledger.all(), self._inventory.records(), self._inventory.named())
        self._writing = self._writer.submit(partial(self._file.save, state, durable=durable))
        return await asyncio.shield(self._writing)

    def _again_when_it_answers(self) -> None:
        """What came while the disk hung must not wait for the next change."""
        if self._owed is None and self._writing is not None:
            self._owed = asyncio.create_task(self._pay(self._writing))

    async def _pay(self, late: asyncio.Future[str]) -> None:
        await asyncio.shield(late)
        self._owed = None
        await self.save(durable=False)

    def _tell(self, error: str) -> None:
        if error and error != self.error:
            log.error("checkpoint not written", error=error, remedy="free space, or mend or replace the disk")
        if self.error and not error:
            log.info("checkpoint written again", path=str(self._file.path))
        self.error = error
        self.saves += not error


class _Writer:
    """One thread, so that writes never meet; a daemon, so that a disk that hangs does not stop the end."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, write: Callable[[], None]) -> asyncio.Future[str]:
        """Run the write; the future is its error, or ""."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[str] = loop.create_future()

        def work() -> None:
            error = ""
            try:
                write()
            except (OSError, ValueError) as exc:  # ValueError: a text that is no UTF-8
                error = str(exc)
            if not loop.is_closed():
                loop.call_soon_threadsafe(done.set_result, error)

        self._work.put(work)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="checkpoint", daemon=True)
            self._thread.start()
        return done

    def _run(self) -> None:
        while True:
            self._work.get()()
