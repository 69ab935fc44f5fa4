"""A program of the node that runs until it is stopped: its command, its log, its process id."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from .place import TOOLS, Place
from .until import until


class Unit:
    """All that is known of it is in files, so who joins the node later can stop and start it as well.

    It runs on its own: who starts it may end before it, and all units end with the node.
    """

    def __init__(self, place: Place, name: str, command: Sequence[str | Path]) -> None:
        self.name = name
        self.log = place.logs / f"{name}.log"
        self._command = [str(it) for it in command]
        self._work = place.work
        self._pid = place.work / f"{name}.pid"

    @property
    def pid(self) -> int | None:
        """The process; none where it does not run."""
        try:
            pid = int(self._pid.read_text())
            # One that has ended and is not buried yet does not run.
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (OSError, ValueError):
            return None
        return None if state == "Z" else pid

    def start(self, env: Mapping[str, str] | None = None) -> None:
        assert self.pid is None, f"{self.name} runs already"
        path = f"{TOOLS}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        with self.log.open("ab") as log:
            started = subprocess.Popen(
                self._command,
                cwd=self._work,
                env={"PATH": path, "HOME": "/root", **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        started.returncode = 0  # nobody waits for it here; the node's first process buries it
        self._pid.write_text(str(started.pid))

    async def end(self, with_signal: signal.Signals = signal.SIGTERM) -> None:
        """Stop it, and come back when it is gone."""
        pid = self.pid
        if pid is not None:
            os.kill(pid, with_signal)
            await until(self._gone, bool, f"{self.name} (process {pid}) to end")

    async def restart(self) -> None:
        await self.end()
        self.start()

    def last_words(self, lines: int = 15) -> str:
        try:
            text = self.log.read_text(errors="replace")
        except OSError:
            text = ""
        return "\n".join([f"{self.name}, from {self.log}:", *text.splitlines()[-lines:]])

    async def _gone(self) -> bool:
        # Where it is a child of this process it is for us to bury it.
        with contextlib.suppress(ChildProcessError, OSError, ValueError):
            os.waitpid(int(self._pid.read_text()), os.WNOHANG)  # noqa: ASYNC222
        return self.pid is None
