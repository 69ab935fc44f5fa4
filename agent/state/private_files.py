"""Writes files that only the agent's user can read: 0600, replaced in one step."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from agent.host import files
from agent.state import state_directory


def replace(path: Path, text: bytes, *, durable: bool) -> None:
    """Replace the file's content; with `durable` it also survives a power cut.

    Raises:
        OSError: The directory is full, read-only or gone, and the old file is untouched. If only the sync of
            its directory failed, the new file is in place.
    """
    state_directory.make(path.parent)
    fresh = path.with_suffix(".new")
    try:
        _write(fresh, text, durable=durable)
        os.replace(fresh, path)
    except OSError:
        with suppress(OSError):  # an incomplete file would only take space on a full disk
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
    """Open a new file. One left by a crash is removed first, with its mode, or its target if it is a link."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o600)
    except FileExistsError:
        os.unlink(path)
        return os.open(path, flags, 0o600)
