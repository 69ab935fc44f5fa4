"""Keeps the checkpoint file in step with the ledger and the health records."""

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
from agent.state.write_thread import Worker

log = structlog.get_logger()

#: A disk that takes longer is said to hang; the kubelet's answer does not wait for it.
PATIENCE = 2.0
#: The first and the longest pause before a write that failed is tried again, seconds.
PAUSES = (0.1, 30.0)


class LedgerStore:
    """Saves off the loop, one write after another. A disk that fails or hangs is said, and fails no pod.

    `rest` is what was loaded of that which neither the ledger nor the inventory holds; it is saved again.
    """

    def __init__(
        self,
        file: CheckpointFile,
        ledger: Ledger,
        inventory: Inventory,
        rest: SavedState,
        patience: float = PATIENCE,
        pauses: tuple[float, float] = PAUSES,
    ) -> None:
        self._file = file
        self._ledger = ledger
        self._inventory = inventory
        self._rest = rest
        self._patience = patience
        self._pauses = Pauses(*pauses)
        self._turn = asyncio.Lock()
        self._writing: asyncio.Future[str] | None = None
        #: The write that timed out. Later saves return without waiting for it.
        self._hung: asyncio.Future[str] | None = None
        self._worker = Worker()
        #: Whether the disk has not taken the newest yet, and whether that was to survive a power cut.
        self._owed = asyncio.Event()
        self._owed_durable = False
        self.error = ""
        self.saves = 0

    async def save(self, *, durable: bool, last: bool = False) -> None:
        """Write what is known at the moment the write begins. Returns within the patience, written or not.

        The patience with a write is paid once: until that write ends, who comes later returns at once.
        `durable` ones do, too, as before hardware is made: no pod is refused for a disk, and a second wait
        shows no more than the first. Only the `last` one, after which nobody tries again, waits once more.
        """
        try:
            async with asyncio.timeout(self._patience), self._turn:
                durable = durable or self._owed_durable
                error = self._silence if self._hangs and not last else await self._written(durable)
        except TimeoutError:
            self._hung, error = self._writing, self._silence
        if error:
            self._owed_durable = self._owed_durable or durable
            self._owed.set()
        else:
            self._owed_durable = False
            self._owed.clear()
        self._tell(f"{self._file.path}: {error}" if error else "")

    async def remember(self, labels: Mapping[str, str | None], config: str) -> None:
        """Save from now on which labels of the Node decided the configuration, and what that is called."""
        await self._remember(replace(self._rest, labels=labels, config=config))

    async def remember_first(self, first: FirstList | None) -> None:
        """Save from now on whom the kubelet found as it began."""
        await self._remember(replace(self._rest, first=first))

    async def _remember(self, rest: SavedState) -> None:
        if rest != self._rest:
            self._rest = rest
            await self.save(durable=False)

    async def run(self) -> None:
        """Write again what the disk did not take, until it does; then wait for the next time."""
        while True:
            await self._owed.wait()
            self._pauses.reset()
            while self._owed.is_set():
                await self._worth_a_try(self._pauses.next())
                if self._owed.is_set():
                    await self.save(durable=False)

    async def _worth_a_try(self, pause: float) -> None:
        """Wait for a disk that hangs; it may have changed its mind the moment that it answers."""
        if self._writing is not None and not self._writing.done():
            await asyncio.wait([self._writing])
        elif self._writing is None or self._writing.result():
            await asyncio.sleep(pause)
        # One that was taken after all, when its writer had just lost patience, is followed at once.

    @property
    def _hangs(self) -> bool:
        return self._hung is not None and self._hung is self._writing and not self._hung.done()

    @property
    def _silence(self) -> str:
        return f"the disk has not answered for {self._patience:g} s"

    async def _written(self, durable: bool) -> str:
        """The error of a write that begins now, after one that somebody stopped waiting for."""
        if self._writing is not None:
            await asyncio.shield(self._writing)
        self._writing = self._worker.submit(partial(self._file.save, self._state(), durable=durable))
        return await asyncio.shield(self._writing)

    def _state(self) -> SavedState:
        return replace(
            self._rest,
            allocations=self._ledger.all(),
            health=self._inventory.records(),
            devices=self._inventory.remembered_devices(),
            cordons=self._inventory.cordons(),
        )

    def _tell(self, error: str) -> None:
        if error and error != self.error:
            log.error("checkpoint not written", error=error, remedy="free space, or mend or replace the disk")
        if self.error and not error:
            log.info("checkpoint written again", path=str(self._file.path))
        self.error = error
        self.saves += not error
