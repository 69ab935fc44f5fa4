"""Which files the agent leaves on the node when it ends, and where a NodeFeature object of it may be.

`uninstall` removes these and no others.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from agent import files
from agent.core.names import LABEL, LABEL_LIMIT

#: In the state directory.
NAME = "agent.remains"
MAX_BYTES = 1 << 20
#: Before a namespace; a path begins with a slash.
_NAMESPACE = "namespace:"


class Remains:
    """One entry per line, each once, in the order in which they came. Several threads may note at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._noted: set[str] = set()

    def note(self, path: Path) -> None:
        """Write down that this file is ours. Where the disk does not take it, the next time tries again."""
        self._note(str(path))

    def note_namespace(self, namespace: str) -> None:
        """Write down that we make a NodeFeature object there."""
        self._note(f"{_NAMESPACE}{namespace}")

    def _note(self, line: str) -> None:
        if line in self._noted or not line.isprintable():
            return
        try:
            if line not in self._lines():
                _append(self._path, f"{line}\n".encode())
        except OSError:
            return
        self._noted.add(line)

    def all(self) -> tuple[Path, ...]:
        """What is written down; nothing where there is no such file.

        Raises:
            OSError: It can not be read.
        """
        return tuple(dict.fromkeys(Path(it) for it in _absolute(self._lines())))

    def namespaces(self) -> tuple[str, ...]:
        """Where NodeFeature objects may be; what can not be the name of a namespace is passed over.

        Raises:
            OSError: It can not be read.
        """
        found = (it.removeprefix(_NAMESPACE) for it in self._lines() if it.startswith(_NAMESPACE))
        return tuple(dict.fromkeys(it for it in found if len(it) <= LABEL_LIMIT and re.fullmatch(LABEL, it)))

    def _lines(self) -> list[str]:
        try:
            content = files.read(self._path, MAX_BYTES, links=False)
        except FileNotFoundError:
            return []
        return content.decode(errors="replace").splitlines()


def _absolute(lines: Iterable[str]) -> Iterable[str]:
    return (it for it in lines if it.startswith("/"))


def _append(path: Path, line: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o600)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)
