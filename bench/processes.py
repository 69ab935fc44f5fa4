"""What a process and its children cost: memory and processor time, as the kernel says."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

PROC = Path("/proc")
MIB = 1024
#: The processor time of all threads, of <linux/posix-timers.h>; clock_getcpuclockid(3) builds the id so.
_CPUCLOCK_SCHED = 2


def tree(pid: int) -> list[int]:
    """The process and everything it started that still runs."""
    parents = _parents()
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def _parents() -> dict[int, int]:
    parents = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int(_stat(int(entry.name))[1])
            except OSError:
                continue  # it ended meanwhile
    return parents


def _stat(pid: int) -> list[str]:
    """The fields of proc_pid_stat(5) from the third on, which is the state."""
    return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()


def pss(pid: int) -> float:
    """Proportional set size of one process, MiB."""
    for line in (PROC / str(pid) / "smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / MIB
    raise RuntimeError(f"/proc/{pid}/smaps_rollup has no Pss")


def cpu_seconds(pids: Sequence[int]) -> float:
    """Processor time of these processes so far, with threads that ended, to the nanosecond.

    Children that ended and were waited for count too, to the clock tick.
    """
    ticks = os.sysconf("SC_CLK_TCK")
    return sum(
        time.clock_gettime(~pid << 3 | _CPUCLOCK_SCHED) + sum(map(int, _stat(pid)[13:15])) / ticks
        for pid in pids
    )
