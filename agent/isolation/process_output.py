"""Reads what a vendor's process prints through a pipe, so that no library writes into the agent's log."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

import structlog

from agent.core.token_bucket import TokenBucket
from agent.isolation.vendor_answers import clean

log = structlog.get_logger()

LINE_LIMIT = 400  # characters
CHUNK_BYTES = 1 << 16  # bytes; what a pipe holds
BURST, RATE = 20, 5.0  # lines at once, and lines per second after them
FLOOD_PAUSE = 0.02  # seconds without reading after a flood; the full pipe then makes the process wait
LAST_CHUNKS = 16  # reads at the end of a process; a descendant that still prints could go on for ever

LineSink = Callable[[str, int], None]
"""Called with a line, and the number of lines that were dropped before it."""


def logged(vendor: str) -> LineSink:
    """Write the lines to the agent's log."""

    def emit(line: str, dropped: int) -> None:
        missing = {"dropped": dropped} if dropped else {}
        log.info("vendor output", vendor=vendor, line=line, **missing)

    return emit


class Output:
    """Owns and reads the pipe."""

    def __init__(self, descriptor: int, emit: LineSink) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._open = True
        self._lines = OutputLines(emit)
        self._loop: asyncio.AbstractEventLoop | None = None

    def follow(self) -> None:
        """Read on the running event loop from now on."""
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
        elif not self._lines.take(chunk, time.monotonic()):
            self._loop.remove_reader(self._descriptor)
            self._loop.call_later(FLOOD_PAUSE, self._listen)

    def _chunk(self) -> bytes:
        try:
            return os.read(self._descriptor, CHUNK_BYTES)
        except OSError:
            return b""

    def close(self) -> None:
        """Read what is left, and close the pipe."""
        if not self._open:
            return
        if self._loop is not None:
            self._loop.remove_reader(self._descriptor)
        for _ in range(LAST_CHUNKS):
            chunk = self._chunk()
            if not chunk:
                break
            self._lines.take(chunk, time.monotonic())
        self._lines.end(time.monotonic())
        self._open = False
        os.close(self._descriptor)


class OutputLines:
    """Splits output into lines, and passes on as many as allowed."""

    def __init__(self, emit: LineSink) -> None:
        self._emit = emit
        self._rest = b""
        #: Whether the line in progress was passed on already, cut to its longest.
        self._is_cut = False
        self._dropped = 0
        self._bucket = TokenBucket(RATE, BURST)

    def take(self, chunk: bytes, now: float) -> bool:
        """Pass on lines that are complete or too long; False if some were dropped."""
        *lines, rest = (self._rest + chunk).split(b"\n")
        if self._is_cut and lines:
            del lines[0]
            self._is_cut = False
        if self._is_cut:
            rest = b""
        elif len(rest) > 4 * LINE_LIMIT:  # a character has at most four bytes
            lines.append(rest)
            self._is_cut, rest = True, b""
        self._rest = rest
        return self._emit_lines([line for line in lines if line.strip()], now) and not self._is_cut

    def end(self, now: float) -> None:
        """Pass on a last line without a newline, and the number of dropped lines."""
        self.take(b"\n", now)
        if self._dropped:
            self._emit("", self._dropped)

    def _emit_lines(self, lines: list[bytes], now: float) -> bool:
        emitted = lines[: int(self._bucket.left(now))]
        for line in emitted:
            text = line[: 4 * LINE_LIMIT].decode(errors="backslashreplace").rstrip()
            self._emit(clean(text, LINE_LIMIT), self._dropped)
            self._dropped = 0
        self._bucket.take(len(emitted), now)
        self._dropped += len(lines) - len(emitted)
        return len(emitted) == len(lines)
