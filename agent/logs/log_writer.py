"""Writes lines in a thread, so that callers never wait; lines that do not fit in the queue are dropped."""

from __future__ import annotations

import contextlib
import os
import queue
import select
import threading
from collections.abc import Callable
from typing import TextIO

#: Lines that may wait for a slow reader, and their characters together.
MAX_LINES = 10_000
MAX_WAITING = 8 << 20


class LogWriter:
    """One daemon thread for one stream or file, so that a blocked write does not keep the process alive.

    `dropped` makes the line that says how many lines are missing. That line follows when no line waits.
    """

    def __init__(
        self,
        write: Callable[[str], object],
        dropped: Callable[[int], str],
        close: Callable[[], object] = lambda: None,
    ) -> None:
        self._write = write
        self._close = close
        self._tell_dropped = dropped
        self._lines: queue.SimpleQueue[str | threading.Event] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._waiting = self._size = self._dropped = 0
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="logs", daemon=True)
        self._thread.start()

    def put(self, line: str) -> None:
        """Take one line, or drop and count it."""
        with self._lock:
            if self._waiting >= MAX_LINES or self._size + len(line) > MAX_WAITING:
                self._dropped += 1
                return
            self._waiting += 1
            self._size += len(line)
        self._lines.put(line)

    def mark(self) -> threading.Event:
        """An event that is set once all lines so far are written."""
        reached = threading.Event()
        self._lines.put(reached)
        return reached

    def close(self, timeout: float) -> None:
        """End the thread after the waiting lines are written; wait for that at most `timeout` seconds."""
        self._closed = True
        self.mark()
        self._thread.join(timeout)

    def _run(self) -> None:
        while True:
            line_or_mark = self._lines.get()
            if isinstance(line_or_mark, str):
                self._one(line_or_mark)
                continue
            line_or_mark.set()
            if self._closed:
                self._close()
                return

    def _one(self, line: str) -> None:
        self._try(line)
        with self._lock:
            self._waiting -= 1
            self._size -= len(line)
            # The dropped lines are newer than all lines that still wait.
            missing = 0 if self._waiting else self._dropped
            self._dropped -= missing
        if missing:
            self._try(self._tell_dropped(missing))

    def _try(self, line: str) -> None:
        # For instance a full disk or a closed pipe: the error cannot be logged either.
        with contextlib.suppress(OSError, ValueError):
            self._write(line)


def to_descriptor(stream: TextIO) -> Callable[[str], None]:
    """A function that writes lines without the stream's buffer.

    The interpreter takes the lock of the buffer when it ends, and would wait for a blocked write.
    """
    encoding = stream.encoding or "utf-8"

    def write(line: str) -> None:
        rest = memoryview(f"{line}\n".encode(encoding, "backslashreplace"))
        while rest:
            try:
                rest = rest[os.write(stream.fileno(), rest) :]
            except BlockingIOError:  # another process has made the shared pipe or terminal non-blocking
                select.select((), (stream,), ())

    return write
