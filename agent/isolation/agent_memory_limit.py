"""The memory limit of this process's control group, which is that of its container or service."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

CGROUP_ROOT = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")
UNLIMITED = 1 << 60  # a higher value means no limit: v1 writes the largest number of whole pages


def memory_limit(root: Path = CGROUP_ROOT, own: Path = OWN_CGROUP) -> int:
    """The smallest limit of the group and the groups around it, in bytes; 0 if none is visible.

    A container may see its own group as the root, but its path as the host names it; both are tried.
    """
    return min((it for it in _limits(root, own) if 0 < it < UNLIMITED), default=0)


def _limits(root: Path, own: Path) -> Iterator[int]:
    for file in _files(root, own):
        with suppress(OSError, ValueError):  # "max" is no limit
            yield int(file.read_text())


def _files(root: Path, own: Path) -> Iterator[Path]:
    """The limit files of cgroups(7): `0::/path` is of version 2, `4:memory:/path` of version 1."""
    with suppress(OSError, ValueError):
        for line in own.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            at = Path(path.strip("/"))
            groups = (at, *at.parents)
            if not controllers:
                yield from (root / it / "memory.max" for it in groups)
            elif "memory" in controllers.split(","):
                yield from (root / "memory" / it / "memory.limit_in_bytes" for it in groups)
