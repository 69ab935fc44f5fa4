"""The agent's process as the campaign holds it: every end of it is either planned or a violation."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

TESTS = Path(__file__).parents[1]
PATIENCE = 30.0


class Agent:
    """One process after another, with a log for all of them."""

    def __init__(self, config: Path, log: Path, environment: Mapping[str, str]) -> None:
        self.log = log
        self._config = config
        path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(TESTS))))
        self._environment = {**os.environ, **environment, "NODE_NAME": "node", "PYTHONPATH": path}
        self._process: asyncio.subprocess.Process | None = None
        self._planned = False
        #: How the process ended where nobody had planned it.
        self.unplanned: list[str] = []
        self.starts = 0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process and self.runs else None

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start it unless it runs."""
        if self.runs:
            return
        self.look()
        self._planned = False
        self.starts += 1
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "campaign.node", str(self._config)),
                env=self._environment,
                stdout=log,
                stderr=log,
            )

    def look(self) -> None:
        """Note an end that nobody planned."""
        if self._process is not None and self._process.returncode is not None and not self._planned:
            self.unplanned.append(f"the agent's process ended with {self._process.returncode}")
            self._planned = True

    def plan_end(self) -> None:
        """From now on the end of this process is wanted."""
        self.look()
        self._planned = True

    def plan_no_end(self) -> None:
        """What was planned did not come: an end would be a violation again."""
        if self.runs:
            self._planned = False

    async def ended(self, patience: float = PATIENCE) -> bool:
        """Whether it ends within the patience."""
        if self._process is None:
            return True
        try:
            async with asyncio.timeout(patience):
                await self._process.wait()
        except TimeoutError:
            return False
        return True

    async def kill(self) -> None:
        """SIGKILL: no goodbye, no last write."""
        await self._end(signal.SIGKILL)

    async def terminate(self) -> None:
        """SIGTERM: the agent ends in order."""
        await self._end(signal.SIGTERM)

    async def _end(self, number: signal.Signals) -> None:
        self.plan_end()
        self.signal(number)
        if not await self.ended():
            self.unplanned.append(f"{number.name} did not end the agent within {PATIENCE:g} s")
            self.signal(signal.SIGKILL)
            await self.ended()

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    # What it costs

    def memory(self) -> int:
        """Proportional set size of the agent's own process, bytes; 0 while it does not run."""
        try:
            rollup = Path(f"/proc/{self.pid}/smaps_rollup").read_text()
        except OSError:
            return 0
        return next(int(line.split()[1]) << 10 for line in rollup.splitlines() if line.startswith("Pss:"))

    def descriptors(self) -> int:
        try:
            return len(os.listdir(f"/proc/{self.pid}/fd"))
        except OSError:
            return 0

    def last_words(self, lines: int = 15) -> str:
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])


def children(pid: int | str) -> list[int]:
    """The children of all threads of a process."""
    found: list[int] = []
    with suppress(FileNotFoundError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found
