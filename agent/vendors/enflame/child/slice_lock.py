"""Serialises changes of slices, even if efsmi outlives the process that started it.

efsmi inherits the descriptor of the locked file. So the lock is held until both processes have ended.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FILE = "efsmi.lock"


class ChangeInProgress(Exception):
    """Raised when an earlier change has not ended."""


@contextmanager
def taken(directory: Path | None) -> Iterator[tuple[int, ...]]:
    """Hold the lock for the block, and give the descriptors that efsmi must inherit.

    Without a directory there is no lock.

    Raises:
        ChangeInProgress: Another process holds the lock.
    """
    if directory is None:
        yield ()
        return
    lock = os.open(directory / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ChangeInProgress from None
        yield (lock,)
    finally:
        os.close(lock)


def free(directory: Path | None) -> bool:
    """Whether no change is in progress."""
    try:
        with taken(directory):
            return True
    except ChangeInProgress:
        return False
