"""Reads a directory that is `/` for the driver. Links are followed inside of the directory only."""

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

#: Limit of links in one path, as in Linux.
MAX_LINKS = 40
#: Limit of names in one folder. The largest library folders have some thousand.
MAX_NAMES = 50_000


@dataclass(frozen=True, slots=True)
class Root:
    """A driver's root: `seen` is its path for this process, `host` its path on the host.

    Links have the meaning that they have for the driver: /usr/lib is the root's usr/lib, and no link leads
    out of the root. All paths in arguments and results are absolute paths below the root. No method raises: a
    path that does not exist, is not readable, or has a name that is no text, is not found.
    """

    seen: str
    host: str

    def real(self, path: str) -> str | None:
        """The path with all links and dots resolved; None if it does not exist."""
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
                at = step  # this is no link
                continue
            links += 1
            if links > MAX_LINKS:
                return None
            at = "/" if target.startswith("/") else at
            left += target.split("/")[::-1]
        return at if at.isprintable() else None

    def file(self, path: str) -> str | None:
        """The real path of a regular file; None if the path is a link to a file with another name."""
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
        """The device nodes of one folder with names that match, as the CDI library defines device nodes.

        These are block and character devices and FIFOs (container-device-interface,
        pkg/cdi/container-edits_unix.go, deviceInfoFromPath). A container with any other path does not start.
        """
        folder, wanted = posixpath.split(pattern)
        real = self.real(folder) or ""
        names = (name for name in self.names(folder) if fnmatchcase(name, wanted))
        return [f"{folder}/{name}" for name in names if _is_node(self._mode(f"{real}/{name}"))]

    def beginning(self, path: str, limit: int) -> bytes:
        """The first `limit` bytes of a file. Empty if the file cannot be read."""
        real = self.real(path)
        try:
            return beginning(Path(self._seen(real)), limit) if real else b""
        except OSError:
            return b""

    def names(self, folder: str) -> list[str]:
        """The names in a folder, sorted."""
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
        """The mode of the file at a real path; 0 without one."""
        try:
            return os.lstat(self._seen(real)).st_mode if real else 0
        except OSError:
            return 0

    def _seen(self, path: str) -> str:
        return self.seen.rstrip("/") + path


def _is_node(mode: int) -> bool:
    return stat.S_ISCHR(mode) or stat.S_ISBLK(mode) or stat.S_ISFIFO(mode)
