"""Files that others meddle with: read without waiting and not without end, replaced in one step."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

from agent.vendor_api.bounded_reads import by_size

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def read(path: Path, limit: int, *, devices: bool = False, links: bool = True) -> bytes:
    """The content, and where there is more than the limit one byte more than it.

    `devices` count as files; symbolic `links` are followed.

    Raises:
        OSError: It cannot be read, or is no file; `strerror` says what it is.
    """
    allowed = (stat.S_IFREG, stat.S_IFCHR) if devices else (stat.S_IFREG,)

    def opener(name: str, flags: int) -> int:
        if not links and os.path.islink(name):
            raise OSError(errno.EINVAL, "is not a file but a symbolic link", name)
        # Opening a pipe would wait for its writer.
        follow = 0 if links else os.O_NOFOLLOW
        descriptor = os.open(name, flags | os.O_NONBLOCK | os.O_NOCTTY | follow)
        kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
        if kind in allowed:
            return descriptor
        os.close(descriptor)
        raise OSError(errno.EINVAL, f"is not a file but {_KINDS.get(kind, 'something else')}", name)

    with open(path, "rb", buffering=0, opener=opener) as file:
        found = by_size(file.read, os.fstat(file.fileno()).st_size, limit + 1)
    if found is None:
        raise OSError(errno.EAGAIN, "has nothing to read by now, and is not waited for", str(path))
    return found


def replace(path: Path, text: str, *, sync: bool = False) -> None:
    """Write a file that all may read in one step: whoever reads it sees the old one or the new one.

    `sync`: also after a crash of the machine.

    Raises:
        OSError: It cannot be written.
    """
    # Hidden, and without its suffix: those who read every file of the directory leave it alone.
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.unlink(missing_ok=True)  # of a process that was killed
    try:
        with open(unfinished, "x", encoding="utf-8") as file:
            os.fchmod(file.fileno(), 0o644)  # whatever the umask says
            file.write(text)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        with suppress(OSError):
            unfinished.unlink()
        raise


def in_the_way(directory: Path) -> Path | None:
    """What is there and no directory, but should be it or one above it; also a link that leads nowhere."""
    above = (directory, *directory.parents)
    return next((it for it in above if os.path.lexists(it) and not it.is_dir()), None)


def sync_directory(directory: Path) -> None:
    """Have what was made, moved and removed in it survive a crash of the machine.

    Raises:
        OSError: It cannot be synced.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
