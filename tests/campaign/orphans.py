"""Processes that dead agents leave behind: the campaign inherits them, where it asked for that."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from .process import children

PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 36, 37  # linux/prctl.h


def adopt() -> None:
    """Inherit the children of dead children from now on. For a process that has no other use for its own."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def left_behind(known: Collection[int | None]) -> list[str]:
    """What still runs and nobody knows, by its command line; what is dead is collected."""
    adopting = ctypes.c_int()
    ctypes.CDLL(None).prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(adopting))
    if not adopting.value:
        return []
    return [_command(pid) for pid in children("self") if pid not in known and not _collected(pid)]


def _collected(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def _command(pid: int) -> str:
    with suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()[:80]
    return str(pid)
