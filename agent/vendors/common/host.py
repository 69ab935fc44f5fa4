"""The host's files, as a vendor's process sees them: device nodes, and the beginnings of files."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent.vendor_api.bounded_reads import by_size

#: Where a container sees the host's files, unless `containerDriverRoot` says otherwise.
DRIVER_ROOT = "/driver-root"


def sysfs(settings: Mapping[str, Any]) -> Path:
    """The directory of the setting `sysfs`."""
    return Path(settings.get("sysfs") or "/sys")


def driver_root(settings: Mapping[str, Any]) -> str:
    """The directory of the setting `containerDriverRoot`, which need not be there."""
    return settings.get("containerDriverRoot") or DRIVER_ROOT


def root(mounted: str) -> str:
    """Where the host's files are mounted for us, or without a container around us where they are."""
    return mounted if os.path.isdir(os.path.join(mounted, "dev")) else "/"


def is_node(mounted: str, path: str) -> bool:
    """Whether it is a device node, below where the host's /dev is for us."""
    try:
        found = os.stat(os.path.join(root(mounted), path.lstrip("/")))
    except OSError:
        return False
    return stat.S_ISCHR(found.st_mode)


def read(path: Path, limit: int) -> str:
    """The beginning of a file, empty where there is none."""
    try:
        return beginning(path, limit).decode("ascii", "replace").strip()
    except OSError:
        return ""


def beginning(path: Path, limit: int) -> bytes:
    """The first bytes of a file, of any kind.

    Raises:
        OSError: It cannot be read.
    """
    with open(path, "rb", buffering=0) as file:
        return by_size(file.read, os.fstat(file.fileno()).st_size, limit) or b""


def number(text: str) -> int | None:
    """The number that the text is; None where it is none."""
    return int(text) if text.isascii() and text.isdigit() else None
