"""A unix socket that only its owner can connect to."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from pathlib import Path

from agent.http.errors import CannotServe

#: sockaddr_un holds 108 bytes, the last one zero.
_PATH_BYTES = 107


class UnixListener:
    """A bound socket and its name; what a dead agent left at the name is replaced."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        if len(os.fsencode(path)) > _PATH_BYTES:
            raise CannotServe(
                path, f"the path is longer than {_PATH_BYTES} bytes", "choose a shorter --state-dir"
            )
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._bind()
        except CannotServe:
            self.socket.close()
            raise
        except OSError as error:
            self.socket.close()
            raise CannotServe(path, error.strerror or str(error), "choose a writable --state-dir") from error

    def _bind(self) -> None:
        _clear(self._path)
        self.socket.bind(os.fspath(self._path))
        # Nobody connects before it listens, so the mode is set in time.
        self._path.chmod(0o600)
        self.socket.setblocking(False)
        self._inode = self._path.stat().st_ino

    def remove(self) -> None:
        """Remove the name, unless it is a successor's by now."""
        with contextlib.suppress(OSError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()
                self._inode = -1


def _clear(path: Path) -> None:
    """Remove what a dead agent left behind; never a socket that answers."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise CannotServe(str(path), "something else is there", "move it away or choose another --state-dir")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as knock:
        knock.setblocking(False)
        try:
            knock.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except BlockingIOError:
            pass
    raise CannotServe(str(path), "another agent answers there", "stop it or choose another --state-dir")
