"""Which processes hold a lock on a file, from the kernel's list: to try the lock would disturb others."""

from __future__ import annotations

import os
from pathlib import Path

from agent.host import files

#: Bytes of the list; a node with ten thousand locks has half a megabyte.
_MOST = 8 << 20
LOCKS = Path("/proc/locks")
_LONGEST_NAME = 64


def holders(path: Path, locks: Path = LOCKS) -> tuple[int, ...]:
    """The pids that hold the file with flock(2); 0 for a process of another pid namespace.

    A line is `1: FLOCK ADVISORY WRITE 4711 fe:00:9988530 0 EOF`: pid, device and inode. A line for a process
    that waits has an arrow after its number (proc_locks(5)).

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
        # Some file systems show another device to stat than to the lock list; then open files decide.
        if words[5] == f"{device}:{found.st_ino}" or _has_open(pid, found):
            pids.append(max(pid, 0))
    return tuple(dict.fromkeys(pids))


def program(pid: int) -> str:
    """The kernel's name for a process."""
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
