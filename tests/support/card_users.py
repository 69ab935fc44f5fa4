"""Processes that use a played card: each locks a file with what the process claims (registered_pid.h)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: A Python program: the file, and its text. Prints a word once it holds the lock.
USER = """
import fcntl, sys, time
file = open(sys.argv[1], "w")
fcntl.lockf(file, fcntl.LOCK_EX)
file.write(sys.argv[2])
file.flush()
print("uses", flush=True)
time.sleep(1e9)
"""


@contextmanager
def card_user(registry: Path, text: str) -> Iterator[int]:
    """A process that claims this; its pid. The file stays when the process ends, without the lock."""
    registry.mkdir(exist_ok=True)
    command = [sys.executable, "-c", USER, str(registry / "claim"), text]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as user:
        try:
            assert user.stdout is not None
            assert user.stdout.readline() == b"uses\n"
            yield user.pid
        finally:
            user.kill()
