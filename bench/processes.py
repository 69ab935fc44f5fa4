"""What a process and its children cost: memory and processor time, read from /proc."""

from __future__ import annotations

from pathlib import Path

PROC = Path("/proc")


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
                stat = (entry / "stat").read_text()
            except OSError:
                continue  # it ended meanwhile
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    return parents


def pss(pid: int) -> float:
    """Proportional set size of one process, MB."""
    for line in (PROC / str(pid) / "smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1000
    raise RuntimeError(f"/proc/{pid}/smaps_rollup has no Pss")


def cpu_seconds(pids: list[int]) -> float:
    """Processor time of these processes so far, to the nanosecond; threads that ended are not counted."""
    spent = 0
    for pid in pids:
        for thread in (PROC / str(pid) / "task").iterdir():
            spent += int((thread / "schedstat").read_text().split()[0])
    return spent / 1e9
