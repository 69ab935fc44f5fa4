"""Peer credentials of a unix socket (SO_PEERCRED)."""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple, Protocol

_UCRED = struct.Struct("=iII")


class Credentials(NamedTuple):
    """The process at the time it connected or began to listen; `pid` is 0 for another pid namespace."""

    pid: int
    uid: int
    gid: int


class Connected(Protocol):
    """A socket, or asyncio's wrapper of one."""

    def getsockopt(self, level: int, name: int, size: int, /) -> bytes: ...


def credentials(connected: Connected) -> Credentials:
    found = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    return Credentials(*_UCRED.unpack(found))
