"""What lies in the machine's own places, so that a change of it shows whoever made it.

Compiled programs and shells are no Python processes, and `hook` does not see them.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

#: Directories of which all is told, and patterns of the agent's files where others write, too.
OWN = (
    "/var/lib/xpu-agent",
    "/var/log/xpu-agent",
    "/etc/xpu-agent",
    "/var/run/cdi",
    "/etc/cdi",
    "/var/run/koordlet/xpu-device-infos",
    "/etc/kubernetes/node-feature-discovery/features.d",
    "/var/lib/kubelet/device-plugins/xpu-*",
)
#: Paths that are looked at; a state directory has a dozen.
MOST = 10_000

#: Path to inode, size, mode and the time of the last change.
Traces = Mapping[str, tuple[int, int, int, int]]


def traces(places: Sequence[str] | None = None) -> Traces:
    """What is there now."""
    return dict(islice(_each(OWN if places is None else places), MOST))


def differences(before: Traces, after: Traces) -> tuple[str, ...]:
    """A sentence for each path that came, went or was written."""
    words = {True: "was made", False: "was removed"}
    return tuple(
        f"{path} {'was changed' if path in before and path in after else words[path in after]}"
        for path in sorted(before.keys() | after.keys())
        if before.get(path) != after.get(path)
    )


def _each(places: Sequence[str]) -> Iterator[tuple[str, tuple[int, int, int, int]]]:
    for place in places:
        for pattern in (place, f"{place}/**/*"):
            for path in glob.iglob(pattern, recursive=True, include_hidden=True):
                try:
                    its = os.lstat(path)
                except OSError:
                    continue
                yield path, (its.st_ino, its.st_size, its.st_mode, its.st_mtime_ns)
