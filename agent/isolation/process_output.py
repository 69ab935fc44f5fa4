"""What a vendor's process prints: read through a pipe, so that no library writes into the agent's own log."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

import structlog

from agent.core.token_bucket import TokenBucket
from agent.isolation.answers import clean

log = structlog.get_logger()

LINE_LIMIT = 400  # characters
CHUNK = 1 << 16  # bytes; what a pipe holds
BURST, RATE = 20, 5.0  # lines at once, and lines per second after them
PAUSE = 0.02  # seconds without reading after a flood; the pipe makes the process wait for as long
LAST_CHUNKS = 16  # what is read at the end of a process, where a process that it left behind still prints

Say = Callable[[str, int], None]
"""Takes a line, and how many were dropped before it."""


def logged(vendor: str) -> Say:
    """Say it as events of the log."""

    def say(line: str, dropped: int) -> None:
        missing = {"dropped": dropped} if dropped else {}
        log.info("vendor output", vendor=vendor, line=line, **missing)

    return say


class Output:
    """The reading end of the pipe, which it owns."""

    def __init__(self, descriptor: int, say: Say) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._open = True
        self._speech = OutputLines(say)
        self._loop: asyncio.AbstractEventLoop | None = None

    def follow(self) -> None:
        """Read on the running loop from now on."""
        self._loop = asyncio.get_running_loop()
        self._listen()

    def _listen(self) -> None:
        if self._loop is not None and self._open:
            self._loop.add_reader(self._descriptor, self._readable)

    def _readable(self) -> None:
        assert self._loop is not None
        chunk = self._chunk()
        if not chunk:
            self._loop.remove_reader(self._descriptor)
        elif not self._speech.take(chunk, time.monotonic()):
            self._loop.remove_reader(self._descriptor)
            self._loop.call_later(PAUSE, self._listen)

    def _chunk(self) -> bytes:
        try:
            return os.read(self._descriptor, CHUNK)
        except OSError:
            return b""

    def close(self) -> None:
        """Read what is left, and let go of the pipe."""
        if not self._open:
            return
        if self._loop is not None:
            self._loop.remove_reader(self._descriptor)
        for _ in range(LAST_CHUNKS):
            chunk = self._chunk()
            if not chunk:
                break
            self._speech.take(chunk, time.monotonic())
        self._speech.end(time.monotonic())
        self._open = False
        os.close(self._descriptor)


class OutputLines:
    """Bytes made lines, as many as may be said."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._rest = b""
        #: Whether the line that is being read was said already, for it is longer than what is said of one.
        self._said = False
        self._dropped = 0
        self._bucket = TokenBucket(RATE, BURST)

    def take(self, chunk: bytes, now: float) -> bool:
        """Say the lines that this completes, or makes too long; False where something had to be dropped."""
        *lines, rest = (self._rest + chunk).split(b"\n")
        if self._said and lines:
            del lines[0]
            self._said = False
        if self._said:
            rest = b""
        elif len(rest) > 4 * LINE_LIMIT:  # a character has at most four bytes
            lines.append(rest)
            self._said, rest = True, b""
        self._rest = rest
        return self._tell([line for line in lines if line.strip()], now) and not self._said

    def end(self, now: float) -> None:
        """Say what no newline ended, and how much was dropped."""
        self.take(b"\n", now)
        if self._dropped:
            self._say("", self._dropped)

    def _tell(self, lines: list[bytes], now: float) -> bool:
        said = lines[: int(self._bucket.left(now))]
        for line in said:
            text = line[: 4 * LINE_LIMIT].decode(errors="backslashreplace").rstrip()
            self._say(clean(text, LINE_LIMIT), self._dropped)
            self._dropped = 0
        self._bucket.take(len(said), now)
        self._dropped += len(lines) - len(said)
        return len(said) == len(lines)
