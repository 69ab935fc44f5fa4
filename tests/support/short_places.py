"""Where tests make their nodes: short, for a socket has a path of 107 bytes, and in memory where that works.

Agents of tests write checkpoints thousands of times, and a busy disk stands still for seconds. What the agent
does then has tests of its own, which need no slow disk.
"""

from __future__ import annotations

import os

#: Bytes that must be free; a run on eight processes used 0.2 GiB.
ENOUGH = 1 << 30


def short_place(memory: str = "/dev/shm", disk: str = "/tmp") -> str:
    """The directory in memory, if it has room and may hold libraries; else the one on disk."""
    try:
        found = os.statvfs(memory)
    except OSError:
        return disk
    is_fit = found.f_bavail * found.f_frsize >= ENOUGH and not found.f_flag & os.ST_NOEXEC
    return memory if is_fit and os.access(memory, os.W_OK | os.X_OK) else disk


SHORT_PLACE = short_place()
