"""Files that other programs use too: bounded reads that never wait, and replacement in one step."""

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
    """The content; one byte more than `limit` if the file is longer.

    With `devices`, character devices are read too; with `links`, symbolic links are followed.

    Raises:
        OSError: The path cannot be read, or is no file; `strerror` says what it is.
    """
    allowed = (stat.S_IFREG, stat.S_IFCHR) if devices else (stat.S_IFREG,)

    def opener(name: str, flags: int) -> int:
        if not links and os.path.islink(name):
            raise OSError(errno.EINVAL, "is not a file but a symbolic link", name)
        # O_NONBLOCK, because opening a pipe would wait for its writer.
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
    """Write a file, readable by all, in one step: readers see either the old content or the new.

    With `sync`, the file also survives a crash of the machine.

    Raises:
        OSError: The file cannot be written.
    """
    # Hidden and without the suffix, so that programs that read every file of the directory skip it.
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.unlink(missing_ok=True)  # left by a process that was killed
    try:
        with open(unfinished, "x", encoding="utf-8") as file:
            os.fchmod(file.fileno(), 0o644)  # independent of the umask
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
    """The directory or the one above it that is no directory, such as a file or a broken link; or None."""
    above = (directory, *directory.parents)
    return next((it for it in above if os.path.lexists(it) and not it.is_dir()), None)


def sync_directory(directory: Path) -> None:
    """Make earlier changes of the directory's entries survive a crash of the machine.

    Raises:
        OSError: The directory cannot be synced.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
