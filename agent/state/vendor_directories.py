"""Directories for the files of vendors' backends: one each, closed to other users."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

import structlog

from agent.state import state_directory

log = structlog.get_logger()

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def of(state_dir: Path, vendor: str) -> Path | None:
    """The vendor's directory, made if missing; None, with a log line, where it cannot be had."""
    path = state_dir / state_directory.VENDORS / vendor
    try:
        if path.name != vendor or vendor in (".", ".."):
            raise OSError(errno.EINVAL, "a vendor of this name can have no directory", vendor)
        state_directory.make(state_dir)
        _own(path.parent)
        _own(path)
    except OSError as exc:
        log.error("vendor has no directory of its own", vendor=vendor, path=str(path), error=exc.strerror)
        return None
    return path


def _own(path: Path) -> None:
    """Make the directory if missing, and close it to other users. A link in its place is not followed.

    Raises:
        OSError: Something else is in its place, it belongs to another user, or it cannot be made.
    """
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)
    descriptor = os.open(path, _DIRECTORY)
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid():
            raise OSError(errno.EPERM, f"{path} belongs to the user {found.st_uid}; move it away", str(path))
        if stat.S_IMODE(found.st_mode) != 0o700:
            os.fchmod(descriptor, 0o700)
    finally:
        os.close(descriptor)
