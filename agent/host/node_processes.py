"""What the node says of processes: /proc, and the names of the kubelet's log directories."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from pathlib import Path

from msgspec import Struct

from agent.core.usage.cgroup_paths import UNKNOWN, Kind, owner
from agent.core.usage.process_owners import NodeProcess

PROC = Path("/proc")
#: The kubelet has a directory for each pod here.
POD_LOGS = Path("/var/log/pods")
#: The most bytes of a cgroup file. A process of a container has some hundreds.
MAX_CGROUP = 64 << 10
#: The most bytes of a stat file: 52 numbers and a name.
MAX_STAT = 4096
#: The most directories of logs that are looked at.
MAX_LOGS = 10_000
#: Position of the start time behind the name in a stat file: proc_pid_stat(5), field 22.
_START = 19


#: The first PID namespace of a machine: Linux, include/linux/proc_ns.h, PROC_PID_INIT_INO.
_FIRST_PIDS = "pid:[4026531836]"


class ReadProcesses(Struct, frozen=True):
    """The processes that exist, by pid."""

    processes: Mapping[int, NodeProcess]
    #: Why the owner of some process cannot be read; empty where all can.
    trouble: str = ""


class _KnownProcess(Struct, frozen=True):
    """A process that was read."""

    #: Number and time of the inode of /proc/PID. The kernel never gives the inode to another process, and may
    #: make another one for the same process. Source: Linux, fs/proc/base.c, pid_revalidate.
    inode: tuple[int, int]
    #: In ticks since the boot, as it is written.
    started: bytes
    process: NodeProcess


class ProcessReader:
    """Reads which container has a process. A known process costs one look at its directory.

    A pid can come again, so a process is known by its pid and its start time.
    """

    def __init__(self, proc: Path = PROC) -> None:
        self.proc = os.fspath(proc)
        self._known: dict[int, _KnownProcess] = {}

    def read(self, pids: Collection[int]) -> ReadProcesses:
        """The processes with these pids. A process that has ended is left out."""
        found: dict[int, NodeProcess] = {}
        known: dict[int, _KnownProcess] = {}
        trouble = ""
        for pid in pids:
            before = self._known.get(pid)
            inode = self._inode(pid)
            if before is not None and before.inode == inode:
                found[pid], known[pid] = before.process, before
            elif inode is not None and (started := self._stat(pid)) is not None:
                process, why = before.process if before is not None else NodeProcess(UNKNOWN), ""
                if before is None or before.started != started[0]:
                    process, why = self._new(pid, started[1])
                # Between the reads, the pid may have come again for another process.
                if self._inode(pid) == inode:
                    found[pid], trouble = process, trouble or why
                    if process.owner.kind is not Kind.UNKNOWN:  # what could not be seen is looked at again
                        known[pid] = _KnownProcess(inode, started[0], process)
        self._known = known
        return ReadProcesses(found, trouble)

    def _inode(self, pid: int) -> tuple[int, int] | None:
        """Number and time of the inode of the process's directory; None if there is no process."""
        try:
            status = os.stat(f"{self.proc}/{pid}")
        except OSError:
            return None
        return status.st_ino, status.st_ctime_ns

    def _new(self, pid: int, name: str) -> tuple[NodeProcess, str]:
        """What can be read of a process, and why its owner cannot be read."""
        try:
            text = self._content(pid, "cgroup", MAX_CGROUP)
        except OSError as exc:
            return NodeProcess(UNKNOWN, name), f"the cgroup of process {pid} cannot be read: {exc.strerror}"
        if len(text) > MAX_CGROUP:
            why = f"the cgroup of process {pid} cannot be read: more than {MAX_CGROUP >> 10} KiB"
            return NodeProcess(UNKNOWN, name), why
        return NodeProcess(owner(text.decode(errors="replace")), name), ""

    def _stat(self, pid: int) -> tuple[bytes, str] | None:
        """The start time and the name of the process; None if there is none.

        The name stands in parentheses and may have any character, a parenthesis too.
        """
        try:
            text = self._content(pid, "stat", MAX_STAT)
        except OSError:
            return None
        before, _, after = text.rpartition(b")")
        fields = after.split(maxsplit=_START + 1)
        name = before.partition(b"(")[2].decode(errors="replace")
        return (fields[_START], name) if len(fields) > _START else None

    def _content(self, pid: int, name: str, limit: int) -> bytes:
        """The content; more bytes than `limit` if the file is longer."""
        descriptor = os.open(f"{self.proc}/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = os.read(descriptor, limit + 1)
            while 0 < len(text) <= limit and (more := os.read(descriptor, limit + 1 - len(text))):
                text += more
            return text
        finally:
            os.close(descriptor)


def pod_log_directories(directory: Path = POD_LOGS) -> Sequence[str]:
    """The names of the kubelet's log directories; none where they cannot be read."""
    try:
        with os.scandir(directory) as entries:
            return [entry.name for entry in islice(entries, MAX_LOGS)]
    except OSError:
        return ()


def sees_node_pids(proc: Path = PROC) -> bool:
    """Whether this process has the PIDs of the machine, and not those of a container."""
    try:
        return os.readlink(proc / "self" / "ns" / "pid") == _FIRST_PIDS
    except OSError:
        return False
