"""What descends of vendors' processes: found by the mark that it has of them, and ended when they have ended.

What a library forks may take a session, a parent and an environment of its own, as daemons do. The mark is a
limit that only a privileged process can put off.
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable, Container, Iterator
from contextlib import suppress
from pathlib import Path

from agent.isolation.child import LOCKS, MARK

ROUNDS = 100  # looks for what was forked while its parent was being killed


def end_of(origin: int) -> list[int]:
    """Kill what descends of a vendor's process that has ended; what of it was in another group.

    The number of the process must still be its own: it is not collected yet.
    """
    return [it for it in _kill(lambda pid, its: its == origin != pid) if not _is_in_group(it, origin)]


def end_of_the_dead(origins: Container[int] | None = None) -> list[int]:
    """Kill what descends of vendors' processes that are no more: of these, or of all, of whatever agent."""
    return _kill(
        lambda pid, its: (origins is None or its in origins) and pid != its and not _lives(its),
    )


def _kill(is_meant: Callable[[int, int], bool]) -> list[int]:
    """Repeat until no new process is found; a killed process cannot fork."""
    killed: dict[int, None] = {}
    for _ in range(ROUNDS):
        new = [pid for pid, its in _marked() if pid not in killed and is_meant(pid, its) and _is_running(pid)]
        if not new:
            break
        for pid in new:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        killed.update(dict.fromkeys(new))
    return list(killed)


def _marked() -> Iterator[tuple[int, int]]:
    """Processes with a mark, and of which vendor's process it is."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            mark = _mark(int(name))
            if mark >> 32 == MARK >> 32:
                yield int(name), mark & 0xFFFFFFFF


def _mark(pid: int) -> int:
    try:
        return resource.prlimit(pid, LOCKS)[1]
    except OSError:  # it is gone, or another user's
        return 0


def _lives(origin: int) -> bool:
    """Whether this is still the vendor's process; its number may be another's by now."""
    return _mark(origin) == MARK | origin and _is_running(origin)


def _is_running(pid: int) -> bool:
    """Whether it has not ended, and its number and those in marks are ours: a container has its own."""
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
