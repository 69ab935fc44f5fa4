"""Keeps the checkpoint file in step with the ledger and the health records."""

from __future__ import annotations

import asyncio

import structlog

from agent.checkpoint import CheckpointFile, Saved
from agent.core.inventory import Inventory
from agent.core.ledger import Ledger

log = structlog.get_logger(__name__)


class LedgerStore:
    """Saves off the loop, one write at a time. A disk that fails is said, and never fails a pod."""

    def __init__(self, file: CheckpointFile, ledger: Ledger, inventory: Inventory, boot_id: str) -> None:
        self._file = file
        self._ledger = ledger
        self._inventory = inventory
        self._boot_id = boot_id
        self._turn = asyncio.Lock()
        self.error = ""
        self.saves = 0

    async def save(self, *, durable: bool) -> None:
        """Write what is known at the moment the write begins."""
        async with self._turn:
            state = Saved(self._boot_id, self._ledger.all(), self._inventory.records())
            try:
                await asyncio.to_thread(self._file.save, state, durable=durable)
            except (OSError, ValueError) as exc:  # ValueError: a text that is no UTF-8
                self._failed(f"{self._file.path}: {exc}")
            else:
                self._worked()

    def _failed(self, error: str) -> None:
        if error != self.error:
            log.error("checkpoint not written", error=error, remedy="free space or make it writable")
        self.error = error

    def _worked(self) -> None:
        if self.error:
            log.info("checkpoint written again", path=str(self._file.path))
        self.error = ""
        self.saves += 1
