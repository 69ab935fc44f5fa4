"""The process at the other end of a unix socket, as the kernel names it."""

from __future__ import annotations

import os
import socket
from typing import NamedTuple

from agent.host.peer_credentials import Connected, credentials

_SO_PEERPIDFD = 77  # include/uapi/asm-generic/socket.h, Linux 6.5


class PeerProcess(NamedTuple):
    """The process at the other end. Equal values are one process, or several that cannot be told apart.

    `pid` is 0 for a process of another pid namespace, as the kubelet is for an agent in a container. `pidfd`
    is the inode of the process's pidfd. It is unique from Linux 6.9 on (pidfs), and equal for all before.
    """

    pid: int
    pidfd: int = 0


def peer_of(connected: Connected) -> PeerProcess:
    """The process that connected, or listened, when this connection was made."""
    return PeerProcess(credentials(connected).pid, _pidfd_of(connected))


def _pidfd_of(connected: Connected) -> int:
    try:
        descriptor = int.from_bytes(connected.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD, 4), "little")
    except OSError:
        return 0  # an older kernel, a process that has ended, or too many open files
    try:
        return os.fstat(descriptor).st_ino
    finally:
        os.close(descriptor)


def gives_way(holder: PeerProcess, challenger: PeerProcess, kubelet: PeerProcess | None) -> bool:
    """Whether the holder's list stream ends for the caller's: only where the caller is the kubelet."""
    return challenger == kubelet != holder
