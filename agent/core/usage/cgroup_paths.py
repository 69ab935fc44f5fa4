"""Which container has a process, by the text of the process's /proc/PID/cgroup. Pure.

Sources of the forms: cgroups(7) for the lines; k8s.io/kubernetes, pkg/kubelet/cm (cgroup_manager_linux.go,
pod_container_manager_linux.go) for the names of pods; containerd, CRI-O and dockershim for those of
containers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import StrEnum

from msgspec import Struct


class Kind(StrEnum):
    """Whether a process belongs to a pod. `unknown`: its cgroup cannot be seen from here."""

    POD = "pod"
    HOST = "host"
    UNKNOWN = "unknown"


class CgroupOwner(Struct, frozen=True):
    """Who has a process. `container` is a runtime's id of 64 hex digits; empty where only the pod shows."""

    kind: Kind
    uid: str = ""
    container: str = ""


HOST = CgroupOwner(Kind.HOST)
UNKNOWN = CgroupOwner(Kind.UNKNOWN)
#: The cgroup of a pod. The systemd driver writes _ in place of -; a static pod's uid is a hash without them.
_POD = re.compile(r"(?:^|-)pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?$")
#: The cgroup of a container: the id alone, or behind the runtime's name.
_CONTAINER = re.compile(r"(?:^|-)([0-9a-f]{64})(?:\.scope)?$")
#: CRI-O's monitor of a container, which is no process of the container.
_MONITOR = "crio-conmon-"
#: What the kernel writes behind the path of a cgroup that was removed.
_REMOVED = " (deleted)"


def owner(text: str) -> CgroupOwner:
    """The owner of a process with this /proc/PID/cgroup. No text raises an error."""
    unclear = True
    for parts in _paths(text):
        found = _owner_of_path(parts)
        if found.kind is Kind.POD:
            return found
        unclear = unclear and found.kind is Kind.UNKNOWN
    return UNKNOWN if unclear else HOST


def _paths(text: str) -> Iterator[Sequence[str]]:
    """The parts of each path, those of the controllers that every container has first.

    Version 1 has a line for each controller, and version 2 one line; a node with both has both.
    """
    lines = [line.split(":", 2) for line in text.split("\n")]
    whole = [(line[1].split(","), line[2]) for line in lines if len(line) == 3]
    whole.sort(key=lambda line: not {"memory", "pids"}.intersection(line[0]))
    for _, path in whole:
        # A containerd without the systemd driver writes kubepods-pod<uid>.slice:cri-containerd:<id>.
        yield [it for it in path.removesuffix(_REMOVED).replace(":", "/").split("/") if it]


def _owner_of_path(parts: Sequence[str]) -> CgroupOwner:
    """The owner by one path. The last pod counts: a kubelet in a container of a pod has pods of its own."""
    pods = [(n, found[1]) for n, part in enumerate(parts) if (found := _POD.search(part))]
    if not pods:
        above = [part for part in parts if part != ".."]
        # A container beside the reader's own, in a cgroup namespace of the reader, may be of any pod. The
        # cgroups that the reader's own lies in are no containers.
        is_hidden = not parts or (parts[0] == ".." and above and _CONTAINER.search(above[0]))
        return UNKNOWN if is_hidden else HOST
    last, uid = pods[-1]
    below = parts[last + 1 :]
    if any(part.startswith(_MONITOR) for part in below):
        return HOST
    ids = (found[1] for part in below if (found := _CONTAINER.search(part)))
    return CgroupOwner(Kind.POD, uid.replace("_", "-"), next(ids, ""))
