"""A child process spoken to in JSON lines: numbered commands and answers, and events in between."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

#: One line holds a whole device list, which may be as long as a gRPC message.
LINE_LIMIT = 64 * 1024 * 1024
#: How long a peer may take to come up or to go; it takes some milliseconds.
PATIENCE = 30.0

Event = Mapping[str, Any]


class PeerError(Exception):
    """The peer answered a command with an error, here in its own words."""


class PeerDown(Exception):
    """The peer is not running, or went away before it answered."""


class PeerProcess:
    """One run of a peer; its standard error goes to `log`."""

    def __init__(self, *command: str | Path, log: Path) -> None:
        self.events: list[Event] = []
        self.running = False
        self._command = command
        self._log = log
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._news = asyncio.Condition()
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None

    async def start(self) -> Event:
        """Start the process and wait for its first event, which says that it is ready."""
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *map(str, self._command),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                limit=LINE_LIMIT,
            )
        self.running = True
        self._reader = asyncio.create_task(self._read(self._process))
        try:
            return await self.next(lambda event: event["event"] == "ready", PATIENCE)
        except BaseException:
            await self.kill()
            raise

    async def call(self, command: str, **arguments: object) -> Any:
        """Send one command and wait for its answer; commands may overlap."""
        if self._process is None or self._process.stdin is None or not self.running:
            raise PeerDown(self._last_words())
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            line = json.dumps({"id": number, "cmd": command, **arguments})
            self._process.stdin.write(line.encode() + b"\n")
            await self._process.stdin.drain()
            return await answer
        except (BrokenPipeError, ConnectionResetError) as error:
            raise PeerDown(self._last_words()) from error
        finally:
            del self._waiting[number]

    async def next(self, predicate: Callable[[Event], bool], timeout: float = 30.0) -> Event:
        """Take the oldest event that fits out of `events`, waiting for one if there is none."""
        try:
            async with asyncio.timeout(timeout), self._news:
                while True:
                    for place, event in enumerate(self.events):
                        if predicate(event):
                            return self.events.pop(place)
                    if not self.running:
                        raise PeerDown(self._last_words())
                    await self._news.wait()
        except TimeoutError:
            raise TimeoutError(f"no such event in {timeout} s, only {self.events[-5:]}") from None

    async def stop(self) -> None:
        """Let the process go by closing its input; kill it if it does not."""
        if self._process is None or self._process.stdin is None:
            return
        self._process.stdin.close()
        try:
            async with asyncio.timeout(PATIENCE):
                await self._process.wait()
        except TimeoutError:
            pass
        finally:
            await self.kill()

    @property
    def pid(self) -> int:
        if self._process is None or not self.running:
            raise PeerDown(self._last_words())
        return self._process.pid

    def signal(self, number: int) -> None:
        """Send the process a signal."""
        os.kill(self.pid, number)

    async def kill(self) -> None:
        """End the process as a crash would; unanswered commands raise PeerDown."""
        if self._process is None or self._reader is None:
            return
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        await self._reader

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        try:
            async for line in process.stdout:
                await self._take(json.loads(line))
        finally:
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(PeerDown(self._last_words()))
            async with self._news:
                self.running = False
                self._news.notify_all()

    async def _take(self, line: dict[str, Any]) -> None:
        if "event" in line:
            async with self._news:
                self.events.append(line)
                self._news.notify_all()
            return
        answer = self._waiting.get(line["id"])
        if answer is None or answer.done():
            return
        if "error" in line:
            answer.set_exception(PeerError(line["error"]))
        else:
            answer.set_result(line["result"])

    def _last_words(self) -> str:
        status = "not started" if self._process is None else f"exit status {self._process.returncode}"
        try:
            lines = self._log.read_text(errors="replace").splitlines()[-5:]
        except OSError:
            lines = []
        return "\n".join([f"{Path(self._command[0]).name}: {status}", *lines])


def state_of(pid: int) -> str:
    """The state of a process in a letter, as proc(5) has them: T is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
