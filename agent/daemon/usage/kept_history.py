"""Keeps the history of use on disk, every few minutes and at the end of the agent."""

from __future__ import annotations

from functools import partial

import anyio
import structlog

from agent.core.usage.minute_history import UsageHistory
from agent.state.usage_history_file import UsageHistoryFile
from agent.state.write_thread import WriteThread

log = structlog.get_logger(__name__)

#: Seconds between two writes, and for how long the end of the agent waits for one.
EVERY, PATIENCE = 300.0, 1.0


class KeptHistory:
    """Writes the history in a thread. A disk that fails or hangs costs what a restart then lacks."""

    def __init__(self, file: UsageHistoryFile, history: UsageHistory, every: float = EVERY) -> None:
        """`every`: seconds between two writes."""
        self._file = file
        self._history = history
        self._every = every
        self._worker = WriteThread()
        self._error = ""

    async def run(self) -> None:
        """Write now and then, for ever, and once at the end."""
        try:
            while True:
                await anyio.sleep(self._every)
                await self.write()
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(PATIENCE):
                await self.write()

    async def write(self) -> None:
        """Write the history as of now."""
        error = await self._worker.submit(partial(self._file.write, self._history.saved()))
        if error and error != self._error:
            log.warning("usage history not written", error=error, then="it is tried again later")
        self._error = error
