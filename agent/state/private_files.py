"""A file of ours alone: 0600, and replaced in one step."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from agent.host import files
from agent.state import state_directory


def replace(path: Path, text: bytes, *, durable: bool) -> None:
    """Put this in the file's place. `durable` also survives a power cut.

    Raises:
        OSError: The directory is full, read-only or gone; the old file is untouched. Where only its
            directory could not be synced, the new one is in place.
    """
    state_directory.make(path.parent)
    fresh = path.with_suffix(".new")
    try:
        _write(fresh, text, durable=durable)
        os.replace(fresh, path)
    except OSError:
        with suppress(OSError):  # half a file is of no use, least of all on a full disk
            os.unlink(fresh)
        raise
    if durable:
        files.sync_directory(path.parent)


def _write(path: Path, text: bytes, *, durable: bool) -> None:
    descriptor = _open_new(path)
    try:
        left = memoryview(text)
        while left:
            left = left[os.write(descriptor, left) :]
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _open_new(path: Path) -> int:
    """A file that was not there: one left behind by a crash lends neither its mode nor where it leads."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o600)
    except FileExistsError:
        os.unlink(path)
        return os.open(path, flags, 0o600)
