"""Which files the agent leaves on the node when it ends; `uninstall` removes these and no others."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from agent import files

#: In the state directory.
NAME = "agent.remains"
MAX_BYTES = 1 << 20


class Remains:
    """One path per line, each once, in the order in which they came. Several threads may note at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._noted: set[str] = set()

    def note(self, path: Path) -> None:
        """Write down that this file is ours. Where the disk does not take it, the next time tries again."""
        line = str(path)
        if line in self._noted or not line.isprintable():
            return
        try:
            if path not in self.all():
                _append(self._path, f"{line}\n".encode())
        except OSError:
            return
        self._noted.add(line)

    def all(self) -> tuple[Path, ...]:
        """What is written down; nothing where there is no such file.

        Raises:
            OSError: It can not be read.
        """
        try:
            content = files.read(self._path, MAX_BYTES, links=False)
        except FileNotFoundError:
            return ()
        lines = content.decode(errors="replace").splitlines()
        return tuple(dict.fromkeys(Path(it) for it in _absolute(lines)))


def _absolute(lines: Iterable[str]) -> Iterable[str]:
    return (it for it in lines if it.startswith("/"))


def _append(path: Path, line: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o600)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)
