"""A directory that is `/` to the driver: what lies in it, with links followed inside of it only."""

from __future__ import annotations

import errno
import os
import posixpath
import stat
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path

from agent.vendors.common.host import beginning

#: As many links in one path as Linux follows.
MAX_LINKS = 40
#: Of one folder; the fullest library folders hold some thousand names.
MAX_NAMES = 50_000


@dataclass(frozen=True, slots=True)
class Root:
    """Where this process sees the directory, and where the host has it.

    Links in it are read as the driver reads them: one that says /usr/lib means the root's usr/lib, and none
    leads out. Paths that come and go are those below the root, absolute. Nothing here raises: what is not
    there, not readable, or of a name that no text can hold, is not found.
    """

    seen: str
    host: str

    def real(self, path: str) -> str | None:
        """The path without links and dots, None where nothing is there."""
        at, links = "/", 0
        left = path.split("/")[::-1]
        while left:
            part = left.pop()
            if part in ("", "."):
                continue
            if part == "..":
                at = posixpath.dirname(at)
                continue
            step = posixpath.join(at, part)
            try:
                target = os.readlink(self._seen(step))
            except OSError as error:
                if error.errno != errno.EINVAL:
                    return None
                at = step  # no link
                continue
            links += 1
            if links > MAX_LINKS:
                return None
            at = "/" if target.startswith("/") else at
            left += target.split("/")[::-1]
        return at if at.isprintable() else None

    def file(self, path: str) -> str | None:
        """The real path of a file. One that a link of another name leads to is not what it is said to be."""
        real = self.real(path)
        same = real is not None and posixpath.basename(real) == posixpath.basename(path)
        return real if same and stat.S_ISREG(self._mode(real)) else None

    def program(self, path: str) -> str | None:
        """The real path of a file that can be executed."""
        real = self.file(path)
        return real if self._mode(real) & 0o111 else None

    def folder(self, path: str) -> str | None:
        real = self.real(path)
        return real if stat.S_ISDIR(self._mode(real)) else None

    def socket(self, path: str) -> str | None:
        real = self.real(path)
        return real if stat.S_ISSOCK(self._mode(real)) else None

    def nodes(self, pattern: str) -> list[str]:
        """The device nodes of one folder whose names match: what the CDI library takes for one.

        That is block, character and FIFO (container-device-interface, pkg/cdi/container-edits_unix.go,
        deviceInfoFromPath). A container that asks for anything else does not start.
        """
        folder, wanted = posixpath.split(pattern)
        real = self.real(folder) or ""
        names = (name for name in self.names(folder) if fnmatchcase(name, wanted))
        return [f"{folder}/{name}" for name in names if _is_node(self._mode(f"{real}/{name}"))]

    def beginning(self, path: str, limit: int) -> bytes:
        """The first bytes of a file, empty where there is none."""
        real = self.real(path)
        try:
            return beginning(Path(self._seen(real)), limit) if real else b""
        except OSError:
            return b""

    def names(self, folder: str) -> list[str]:
        """What lies in a folder, sorted."""
        real = self.real(folder)
        if real is None:
            return []
        try:
            with os.scandir(self._seen(real)) as entries:
                names = [entry.name for entry in islice(entries, MAX_NAMES)]
        except OSError:
            return []
        return sorted(name for name in names if name.isprintable())

    def on_host(self, path: str) -> str:
        return posixpath.join(self.host, path.lstrip("/"))

    def _mode(self, real: str | None) -> int:
        """The mode of what lies at a real path; 0 where nothing does."""
        try:
            return os.lstat(self._seen(real)).st_mode if real else 0
        except OSError:
            return 0

    def _seen(self, path: str) -> str:
        return self.seen.rstrip("/") + path


def _is_node(mode: int) -> bool:
    return stat.S_ISCHR(mode) or stat.S_ISBLK(mode) or stat.S_ISFIFO(mode)
