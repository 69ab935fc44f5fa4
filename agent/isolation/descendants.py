"""Finds descendants of vendors' processes by their mark, and kills them once the processes have ended.

What a library forks may have its own session, parent and environment, as daemons do. The mark is a resource
limit that only a privileged process can remove.
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable, Container, Iterator
from contextlib import suppress
from pathlib import Path

from agent.isolation.child import LOCKS, MARK

MAX_ROUNDS = 100  # passes, for processes that were forked while their parent was being killed


def end_of(origin: int) -> list[int]:
    """Kill the descendants of a vendor's process that has ended; returns those outside its process group.

    Call before the process is collected, so that its pid is not used again.
    """
    return [it for it in _kill(lambda pid, mark: mark == origin != pid) if not _is_in_group(it, origin)]


def end_of_the_dead(origins: Container[int] | None = None) -> list[int]:
    """Kill descendants of vendors' processes that no longer exist: of `origins`, or of any agent's."""

    def is_meant(pid: int, origin: int) -> bool:
        return (origins is None or origin in origins) and pid != origin and not _lives(origin)

    return _kill(is_meant)


def _kill(is_meant: Callable[[int, int], bool]) -> list[int]:
    """Repeat until no new process is found; a killed process cannot fork."""
    killed: dict[int, None] = {}
    for _ in range(MAX_ROUNDS):
        found = [pid for pid, origin in _find_marked() if pid not in killed and is_meant(pid, origin)]
        new = [pid for pid in found if _is_running(pid)]
        if not new:
            break
        for pid in new:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        killed.update(dict.fromkeys(new))
    return list(killed)


def _find_marked() -> Iterator[tuple[int, int]]:
    """Marked processes, each with the pid of the vendor's process that it descends from."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            mark = _mark(int(name))
            if mark >> 32 == MARK >> 32:
                yield int(name), mark & 0xFFFFFFFF


def _mark(pid: int) -> int:
    try:
        return resource.prlimit(pid, LOCKS)[1]
    except OSError:  # the process is gone, or another user's
        return 0


def _lives(origin: int) -> bool:
    """Whether the vendor's process still runs; the pid may belong to another process by now."""
    return _mark(origin) == MARK | origin and _is_running(origin)


def _is_running(pid: int) -> bool:
    """Whether the process runs, in our pid namespace: pids in marks mean nothing in another one."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state not in "ZX" and os.readlink(f"/proc/{pid}/ns/pid") == os.readlink("/proc/self/ns/pid")
    except OSError:
        return False


def _is_in_group(pid: int, group: int) -> bool:
    try:
        return os.getpgid(pid) == group
    except ProcessLookupError:
        return True
