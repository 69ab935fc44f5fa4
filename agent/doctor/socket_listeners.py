"""Finds the process that listens at a unix socket, by connecting and closing the connection at once."""

from __future__ import annotations

import os
import socket
import stat
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

from agent.host.file_locks import program
from agent.host.peer_credentials import credentials
from agent.kubelet.kubelet_directory import KUBELET_SOCKET

#: Entries of a directory that are read; the kubelet's directory has a few.
MAX_SOCKETS = 200

State = Literal["missing", "not-a-socket", "deaf", "denied", "listens"]


@dataclass(frozen=True, slots=True)
class SocketListener:
    """The process at a socket. `pid` is 0 without a process, and for a process in another pid namespace.

    `found` says why there is no listener. `is_busy`: the queue of the listener is full, so its pid is
    unknown.
    """

    state: State
    found: str = ""
    pid: int = 0
    is_busy: bool = False

    def __str__(self) -> str:
        if not self.pid:
            return "a process that is hidden from the doctor"
        return f"{program(self.pid)} (pid {self.pid})"


def plugin_sockets(kubelet_dir: Path) -> tuple[Path, ...]:
    """The sockets in the kubelet's directory, without kubelet.sock, among the first MAX_SOCKETS entries.

    Raises:
        OSError: The directory cannot be listed.
    """
    entries = islice((it for it in kubelet_dir.iterdir() if it.name != KUBELET_SOCKET), MAX_SOCKETS)
    return tuple(sorted(it for it in entries if it.is_socket()))


def listener(path: Path) -> SocketListener:
    """The listener at the path. Nothing is sent to it."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        dangling = (
            f": the path is a link to {os.readlink(path)}, which does not exist" if path.is_symlink() else ""
        )
        return SocketListener("missing", f"there is no {path}{dangling}")
    except OSError as exc:
        return SocketListener("denied", f"{path}: {exc.strerror}")
    if not stat.S_ISSOCK(mode):
        return SocketListener("not-a-socket", f"{path} is no socket but {stat.filemode(mode)}")
    directory = None
    try:
        directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return _connect(path, directory)
    except OSError as exc:
        return SocketListener("denied", f"{path}: {exc.strerror or exc}")
    finally:
        if directory is not None:
            os.close(directory)


def _connect(path: Path, directory: int) -> SocketListener:
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)  # do not wait for a listener with a full queue
            # A socket's address has room for 107 bytes; the path may be longer.
            probe.connect(f"/proc/self/fd/{directory}/{path.name}")
            return SocketListener("listens", pid=credentials(probe).pid)
    except ConnectionRefusedError:
        return SocketListener("deaf", f"{path} exists, and no process listens")
    except BlockingIOError:
        return SocketListener("listens", is_busy=True)
