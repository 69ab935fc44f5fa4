"""Who holds a file's lock, as the kernel lists it: to try the lock would take it from who waits for it."""

from __future__ import annotations

import os
from pathlib import Path

from agent.host import files

#: Bytes; a node of ten thousand locks has half a megabyte.
_MOST = 8 << 20
LOCKS = Path("/proc/locks")
_LONGEST_NAME = 64


def holders(path: Path, locks: Path = LOCKS) -> tuple[int, ...]:
    """The pids that hold the file with flock(2); 0 for one of another pid namespace.

    A line is `1: FLOCK ADVISORY WRITE 4711 fe:00:9988530 0 EOF`: pid, device and inode; one that only waits
    has an arrow after its number (proc_locks(5)).

    Raises:
        OSError: The file or the list cannot be read.
    """
    found = path.stat()
    device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}"
    pids = []
    for line in files.read(locks, _MOST).decode(errors="replace").splitlines():
        words = line.split()
        if len(words) < 6 or words[1] != "FLOCK" or words[5].rpartition(":")[2] != str(found.st_ino):
            continue
        pid = int(words[4])
        # Of a file system that shows another device to stat than the kernel locks, the open files tell.
        if words[5] == f"{device}:{found.st_ino}" or _has_open(pid, found):
            pids.append(max(pid, 0))
    return tuple(dict.fromkeys(pids))


def program(pid: int) -> str:
    """The name of a process, as the kernel keeps it."""
    try:
        name = files.read(Path(f"/proc/{pid}/comm"), _LONGEST_NAME).decode(errors="replace").strip()
    except OSError:
        return "a process"
    return name or "a process"


def _has_open(pid: int, wanted: os.stat_result) -> bool:
    try:
        with os.scandir(f"/proc/{pid}/fd") as entries:
            return any(_is(entry.path, wanted) for entry in entries)
    except OSError:
        return False


def _is(path: str, wanted: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.stat(path), wanted)
    except OSError:
        return False
