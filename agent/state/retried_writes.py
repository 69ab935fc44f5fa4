"""Writes the checkpoint or its journal whenever the ledger or the health of devices changed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from functools import partial

import structlog
from msgspec.structs import replace

from agent.core.allocation.ledger import Ledger
from agent.core.allocation.ledger_change import LedgerChange
from agent.core.backoff import Pauses
from agent.core.devices.inventory import Inventory
from agent.core.model import FirstList
from agent.state.checkpoint import SavedState
from agent.state.journaled_checkpoint import JournaledCheckpoint
from agent.state.write_thread import WriteThread

log = structlog.get_logger()

#: Seconds after which a disk counts as hanging; the kubelet's answer does not wait longer for it.
PATIENCE = 2.0
#: Shortest and longest pause, in seconds, before a failed write is tried again.
PAUSES = (0.1, 30.0)
#: Seconds without a write after which the journal is folded into the checkpoint, if that is worth it.
QUIET = 60.0


class LedgerStore:
    """Saves in a thread, one write after another. A disk that fails or hangs is reported, and fails no pod.

    `base` is the loaded state. Its parts that neither the ledger nor the inventory has are saved again.
    """

    def __init__(
        self,
        file: JournaledCheckpoint,
        ledger: Ledger,
        inventory: Inventory,
        base: SavedState,
        patience: float = PATIENCE,
        pauses: tuple[float, float] = PAUSES,
        quiet: float = QUIET,
    ) -> None:
        self._file = file
        self._ledger = ledger
        self._inventory = inventory
        self._base = base
        self._patience = patience
        self._pauses = Pauses(*pauses)
        self._quiet = quiet
        #: The changes that may lack on disk, by the id of the allocation.
        self._unwritten: dict[str, LedgerChange] = {}
        self._turn = asyncio.Lock()
        self._writing: asyncio.Future[str] | None = None
        #: The write that timed out; later saves do not wait for it.
        self._hung: asyncio.Future[str] | None = None
        self._worker = WriteThread()
        #: Set while the disk lacks the newest state; and whether that state must survive a power cut.
        self._owed = asyncio.Event()
        self._owed_durable = False
        #: Set while the journal is worth folding; and while it is so long that it is folded at once.
        self._foldable, self._too_long = asyncio.Event(), asyncio.Event()
        #: Whether the last save was asked for: a task that saves after that leaves no journal either.
        self._is_ending = False
        self.error = ""
        self.saves = 0

    async def save(self, *, durable: bool, last: bool = False) -> None:
        """Write the state as of the moment the write begins. Returns within the patience, written or not.

        The `last` call, after which no retry follows, leaves no journal.

        Only the first caller waits for a write that hangs; until it ends, later callers return at once.
        That includes `durable` calls before hardware is made: no pod is refused because of a disk, and a
        second wait would tell no more. Only the `last` call waits again.
        """
        self._is_ending = self._is_ending or last
        await self._save(durable=durable, last=last)

    async def _save(self, *, durable: bool, last: bool = False, whole: bool = False) -> None:
        try:
            async with asyncio.timeout(self._patience), self._turn:
                durable = durable or self._owed_durable
                error = self._no_answer if self._hangs and not last else await self._written(durable, whole)
        except TimeoutError:
            self._hung, error = self._writing, self._no_answer
        if error:
            self._owed_durable = self._owed_durable or durable
            self._owed.set()
        else:
            self._owed_durable = False
            self._owed.clear()
        self._report(f"{self._file.path}: {error}" if error else "")
        _set(self._foldable, when=self._file.is_worth_folding)
        _set(self._too_long, when=self._file.is_long)

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

    async def fold_journal(self) -> None:
        """Write a checkpoint when the journal is long, or the agent has been quiet for a while, for ever."""
        while True:
            await self._foldable.wait()
            await self._quiet_or_too_long()
            await self._save(durable=False, whole=True)
            if self.error:
                await asyncio.sleep(self._quiet)

    async def _quiet_or_too_long(self) -> None:
        saves = -1
        while saves != self.saves and not self._too_long.is_set():
            saves = self.saves
            with suppress(TimeoutError):
                await asyncio.wait_for(self._too_long.wait(), self._quiet)

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

    async def _written(self, durable: bool, whole: bool) -> str:
        """Write after any earlier write has ended; returns the error, or ""."""
        if self._writing is not None and not await asyncio.shield(self._writing):
            self._unwritten = {}
        state = self._state()
        self._take_changes()
        save = partial(self._file.save, durable=durable, whole=whole or self._is_ending)
        self._writing = self._worker.submit(partial(save, state, (*self._unwritten.values(),)))
        return await asyncio.shield(self._writing)

    def _take_changes(self) -> None:
        for change in self._ledger.take_changes():
            earlier = self._unwritten.get(change.id)
            merged = change if earlier is None else change.since(earlier)
            if change.is_moved or merged.is_empty:
                self._unwritten.pop(change.id, None)  # what moved comes after all others
            if not merged.is_empty:
                self._unwritten[change.id] = merged

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


def _set(event: asyncio.Event, *, when: bool) -> None:
    if when:
        event.set()
    else:
        event.clear()
