"""Who listens at a unix socket; asked by connecting and hanging up, which no server minds."""

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
from agent.kubelet.directory import KUBELET_SOCKET

#: Entries of a directory that are looked at; a kubelet's has a handful.
MOST = 200

State = Literal["missing", "not-a-socket", "deaf", "denied", "listens"]


@dataclass(frozen=True, slots=True)
class SocketListener:
    """`pid` 0: in another pid namespace, or nobody. `found` words what is not a listener.

    `is_busy`: it listens and took no call, so that its pid is not known.
    """

    state: State
    found: str = ""
    pid: int = 0
    is_busy: bool = False

    def __str__(self) -> str:
        if not self.pid:
            return "a process that is not seen from here"
        return f"{program(self.pid)} (pid {self.pid})"


def beside(kubelet_dir: Path) -> tuple[Path, ...]:
    """The sockets in the kubelet's directory but for its own, of the first entries.

    Raises:
        OSError: It cannot be listed.
    """
    entries = islice((it for it in kubelet_dir.iterdir() if it.name != KUBELET_SOCKET), MOST)
    return tuple(sorted(it for it in entries if it.is_socket()))


def listener(path: Path) -> SocketListener:
    """What is at the path. Nothing is sent."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        dangling = f": it is a link to {os.readlink(path)}, which is not there" if path.is_symlink() else ""
        return SocketListener("missing", f"there is no {path}{dangling}")
    except OSError as exc:
        return SocketListener("denied", f"{path}: {exc.strerror}")
    if not stat.S_ISSOCK(mode):
        return SocketListener("not-a-socket", f"{path} is no socket but {stat.filemode(mode)}")
    directory = None
    try:
        directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return _connected(path, directory)
    except OSError as exc:
        return SocketListener("denied", f"{path}: {exc.strerror or exc}")
    finally:
        if directory is not None:
            os.close(directory)


def _connected(path: Path, directory: int) -> SocketListener:
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)  # one whose queue is full is a listener, and is not waited for
            # However long the path is, a socket's address has room for 107 bytes.
            probe.connect(f"/proc/self/fd/{directory}/{path.name}")
            return SocketListener("listens", pid=credentials(probe).pid)
    except ConnectionRefusedError:
        return SocketListener("deaf", f"{path} is there, and nobody listens")
    except BlockingIOError:
        return SocketListener("listens", is_busy=True)
