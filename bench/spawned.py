"""A plugin's process under test, from its spawn to its end."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TypeVar

from . import processes
from .subjects import Launch, Refused

PATIENCE = 60.0
T = TypeVar("T")


class Spawned:
    """A process that writes its output to `log`."""

    def __init__(self, launch: Launch, log: Path) -> None:
        self._log = log
        self.spawned_ns = time.time_ns()
        with log.open("wb") as file:
            # Compiled modules are kept, or each start would compile them again.
            kept = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
            environment = {**kept, **launch.environment}
            self._process = subprocess.Popen([*launch.command], env=environment, stdout=file, stderr=file)

    @property
    def pid(self) -> int:
        return self._process.pid

    def cpu_seconds(self) -> float:
        """Processor time of the process and its children since the spawn."""
        own = processes.cpu_seconds([self.pid])  # first: to look for the children takes milliseconds
        return own + processes.cpu_seconds(processes.tree(self.pid)[1:])

    async def hear(self, ask: Callable[[float], Awaitable[T]]) -> T:
        """What `ask` returns, which is called again after each TimeoutError while the process lives.

        `ask` gets the seconds after which it is to raise that.

        Raises:
            Refused: The process ended, or time is up.
        """
        until = time.monotonic() + PATIENCE
        while self._process.poll() is None and time.monotonic() < until:
            with suppress(TimeoutError):
                return await ask(0.5)
        words = "did not register in time" if self._process.poll() is None else "ended"
        raise Refused(f"the process {words}; the end of its log:\n{self.last_words()}")

    def last_words(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])

    def kill(self) -> None:
        """End the process as a crash would."""
        self._process.kill()
        self._process.wait()

    async def end(self) -> None:
        """End the process in good order, and what it leaves behind."""
        if self._process.poll() is not None:
            return
        family = processes.tree(self.pid)
        self._process.terminate()
        for _ in range(500):
            if self._process.poll() is not None:
                break
            await asyncio.sleep(0.01)
        else:
            self.kill()
        for left in family[1:]:
            with suppress(ProcessLookupError):
                os.kill(left, 9)


@asynccontextmanager
async def spawned(launch: Launch, log: Path) -> AsyncIterator[Spawned]:
    """The process, until the end of the block."""
    process = Spawned(launch, log)
    try:
        yield process
    finally:
        await process.end()
