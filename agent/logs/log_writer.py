"""A writer of lines that keeps nobody waiting: a thread writes, and lines that do not fit are dropped."""

from __future__ import annotations

import contextlib
import os
import queue
import select
import threading
from collections.abc import Callable
from typing import TextIO

#: Lines that wait for a reader who stalls, and their characters together.
MAX_LINES = 10_000
MAX_WAITING = 8 << 20


class LogWriter:
    """One thread for one place. A daemon, so that a place that hangs does not stop the end.

    `dropped` words the line that tells how many lines are missing, once lines flow again.
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
        """What is set once everything put so far is written."""
        reached = threading.Event()
        self._lines.put(reached)
        return reached

    def close(self, timeout: float) -> None:
        """End the thread after what waits is written; wait for that no longer than this."""
        self._closed = True
        self.mark()
        self._thread.join(timeout)

    def _run(self) -> None:
        while True:
            item = self._lines.get()
            if isinstance(item, str):
                self._one(item)
                continue
            item.set()
            if self._closed:
                self._close()
                return

    def _one(self, line: str) -> None:
        self._try(line)
        with self._lock:
            self._waiting -= 1
            self._size -= len(line)
            # The missing ones are younger than all that still waits.
            missing = 0 if self._waiting else self._dropped
            self._dropped -= missing
        if missing:
            self._try(self._tell_dropped(missing))

    def _try(self, line: str) -> None:
        # A full disk, a closed pipe: there is no place left to tell it.
        with contextlib.suppress(OSError, ValueError):
            self._write(line)


def to_descriptor(stream: TextIO) -> Callable[[str], None]:
    """Writes past the stream's buffer, whose lock the interpreter wants when it ends."""
    encoding = stream.encoding or "utf-8"

    def write(line: str) -> None:
        rest = memoryview(f"{line}\n".encode(encoding, "backslashreplace"))
        while rest:
            try:
                rest = rest[os.write(stream.fileno(), rest) :]
            except BlockingIOError:  # somebody who shares the pipe or terminal made it so
                select.select((), (stream,), ())

    return write
