"""The log file on the host: rotated by size, readable by its owner only, reopened where it was lost."""

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
RETRY_SECONDS = 10.0


class LogFile:
    """Writes lines, for one thread. Lines that cannot be written are lost.

    `tell` is called once with the reason, and with an empty text when lines are written again. `clock` gives
    seconds.
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
        #: Why no line is written; empty while lines are written.
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
            self._next = self._clock() + RETRY_SECONDS
            self._report(error.strerror or str(error) if isinstance(error, OSError) else str(error))
        else:
            self._report("")

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError, ValueError):  # buffered lines cannot be written either
                file.close()

    def _opened(self) -> _Private:
        """Open the file. A new directory is for its owner only; an existing directory stays as it is."""
        directory = self.path.parent
        if directory.exists() and not directory.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, f"{directory} is no directory")
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        return _Private(self.path, maxBytes=self._max_bytes, backupCount=self._keep)

    def _report(self, why: str) -> None:
        error = f"agent.log.dir: {self.path} cannot be written: {why}" if why else ""
        if error != self.error:
            self.error = error
            self._tell(error)


class _Private(RotatingFileHandler):
    """A rotating file that only its owner can read. Errors go to the caller, not to standard error."""

    def _open(self) -> Any:
        return open(self.baseFilename, self.mode, encoding="utf-8", opener=_private)

    def emit(self, record: logging.LogRecord) -> None:
        """Reopen the file where another agent has rotated it: two agents write one file during a handover."""
        if self.stream is not None and not self._is_at_its_name(self.stream.fileno()):
            self.stream.close()
            self.stream = self._open()
        super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        raise  # logging calls this while it handles the exception

    def _is_at_its_name(self, opened: int) -> bool:
        found = os.fstat(opened)
        try:
            named = os.lstat(self.baseFilename)
        except FileNotFoundError:
            return False
        return (found.st_dev, found.st_ino) == (named.st_dev, named.st_ino)


def _private(path: str, flags: int) -> int:
    opened = os.open(path, flags | os.O_NOFOLLOW, 0o600)
    os.fchmod(opened, 0o600)
    return opened
