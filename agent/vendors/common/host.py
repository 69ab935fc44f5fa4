"""The host's files as a vendor's process sees them: device nodes, and the first bytes of files."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent.vendor_api.bounded_reads import by_size

#: Where a container has the host's files mounted, unless the setting `containerDriverRoot` names a place.
DRIVER_ROOT = "/driver-root"


def sysfs(settings: Mapping[str, Any]) -> Path:
    """The directory of the setting `sysfs`."""
    return Path(settings.get("sysfs") or "/sys")


def driver_root(settings: Mapping[str, Any]) -> str:
    """The directory of the setting `containerDriverRoot`. It need not exist."""
    return settings.get("containerDriverRoot") or DRIVER_ROOT


def root(mounted: str) -> str:
    """`mounted` if the host's files are mounted there, else "/", for a process outside of a container."""
    return mounted if os.path.isdir(os.path.join(mounted, "dev")) else "/"


def is_node(mounted: str, path: str) -> bool:
    """Whether a path of the host is a character device. `mounted` as for `root`."""
    try:
        status = os.stat(os.path.join(root(mounted), path.lstrip("/")))
    except OSError:
        return False
    return stat.S_ISCHR(status.st_mode)


def read(path: Path, limit: int) -> str:
    """The first `limit` bytes of a file as text. Empty if the file cannot be read."""
    try:
        return beginning(path, limit).decode("ascii", "replace").strip()
    except OSError:
        return ""


def beginning(path: Path, limit: int) -> bytes:
    """The first `limit` bytes of a file of any kind, files of sysfs and procfs among them.

    Raises:
        OSError: The file cannot be read.
    """
    with open(path, "rb", buffering=0) as file:
        return by_size(file.read, os.fstat(file.fileno()).st_size, limit) or b""


def number(text: str) -> int | None:
    """The number that a text of ASCII digits stands for; None for any other text."""
    return int(text) if text.isascii() and text.isdigit() else None
