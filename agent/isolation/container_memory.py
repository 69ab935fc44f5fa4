"""How much memory the control group of this process may have: of its container, or of its service."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
UNLIMITED = 1 << 60  # what is more stands for none: v1 says so with the largest number of whole pages


def memory_limit(root: Path = ROOT, own: Path = OWN) -> int:
    """The smallest limit of the group and those around it, in bytes; 0 if no limit is visible.

    A container may see its own group as the root, and yet read the path that the host knows it by.
    """
    return min((it for it in _limits(root, own) if 0 < it < UNLIMITED), default=0)


def _limits(root: Path, own: Path) -> Iterator[int]:
    for file in _files(root, own):
        with suppress(OSError, ValueError):  # "max" is none
            yield int(file.read_text())


def _files(root: Path, own: Path) -> Iterator[Path]:
    """cgroups(7): `0::/path` is of version 2, `4:memory:/path` of version 1."""
    with suppress(OSError, ValueError):
        for line in own.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            at = Path(path.strip("/"))
            groups = (at, *at.parents)
            if not controllers:
                yield from (root / it / "memory.max" for it in groups)
            elif "memory" in controllers.split(","):
                yield from (root / "memory" / it / "memory.limit_in_bytes" for it in groups)
