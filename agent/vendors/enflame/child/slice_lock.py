"""One change of slices after the other, also where the process that began one is gone and its efsmi runs on.

efsmi inherits the locked file, so the lock is held for as long as one of both lives.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FILE = "efsmi.lock"


class ChangeInProgress(Exception):
    """Raised where a change that was begun before is not over."""


@contextmanager
def taken(directory: Path | None) -> Iterator[tuple[int, ...]]:
    """The turn, as the descriptors that efsmi has to inherit. Without a directory nobody is waited for.

    Raises:
        StillRuns: It is somebody else's.
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
    """Whether no change is being made."""
    try:
        with taken(directory):
            return True
    except ChangeInProgress:
        return False
