"""The log's file on the host: it turns at its size, its owner alone reads it, and it may come and go."""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

NAME = "xpu-agent.log"
#: Seconds until a file that cannot be written is tried again.
AGAIN = 10.0


class LogFile:
    """Writes lines for one thread. Where it cannot the lines are lost here, and `tell` hears why, once.

    `tell` is given a text, or an empty one when lines are written again.
    """

    def __init__(
        self,
        directory: str,
        max_bytes: int,
        keep: int,
        tell: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = Path(directory) / NAME
        #: Why no line is written; empty while all is well.
        self.error = ""
        self._max_bytes = max_bytes
        self._keep = keep
        self._tell = tell
        self._clock = clock
        self._file: _Private | None = None
        self._next = 0.0

    def write(self, line: str) -> None:
        if self._file is None and self._clock() < self._next:
            return
        try:
            self._file = self._file or self._opened()
            self._file.handle(logging.makeLogRecord({"msg": line}))
        except (OSError, ValueError) as error:
            self.close()
            self._next = self._clock() + AGAIN
            self._say(error.strerror or str(error) if isinstance(error, OSError) else str(error))
        else:
            self._say("")

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError, ValueError):  # what it holds back cannot be written either
                file.close()

    def _opened(self) -> _Private:
        """The directory is the owner's alone where it is made here; one that was there stays as it is."""
        there = self.path.parent
        if there.exists() and not there.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, f"{there} is no directory")
        there.mkdir(parents=True, exist_ok=True, mode=0o700)
        return _Private(self.path, maxBytes=self._max_bytes, backupCount=self._keep)

    def _say(self, why: str) -> None:
        told = f"agent.log.dir: {self.path} cannot be written: {why}" if why else ""
        if told != self.error:
            self.error = told
            self._tell(told)


class _Private(RotatingFileHandler):
    """A rotating file that its owner alone can read; its errors are those of who writes."""

    def _open(self) -> Any:
        return open(self.baseFilename, self.mode, encoding="utf-8", opener=_private)

    def emit(self, record: logging.LogRecord) -> None:
        """An agent that hands over and the next one write the same file, and either may turn it."""
        if self.stream is not None and not self._is_at_its_name(self.stream.fileno()):
            self.stream.close()
            self.stream = self._open()
        super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        raise  # called where one is handled

    def _is_at_its_name(self, opened: int) -> bool:
        ours = os.fstat(opened)
        try:
            named = os.lstat(self.baseFilename)
        except FileNotFoundError:
            return False
        return (ours.st_dev, ours.st_ino) == (named.st_dev, named.st_ino)


def _private(path: str, flags: int) -> int:
    opened = os.open(path, flags | os.O_NOFOLLOW, 0o600)
    os.fchmod(opened, 0o600)
    return opened
