"""Listening sockets: TCP, and unix sockets that only their owner can connect to."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from agent.config import HttpAddress
from agent.http.http_errors import CannotServe

#: sockaddr_un holds 108 bytes, the last one zero.
_PATH_BYTES = 107
_BACKLOG = 128
#: Seconds that the removal of a socket's name may take.
REMOVED_WITHIN = 0.5


@contextmanager
def on_address(address: HttpAddress) -> Iterator[tuple[socket.socket, HttpAddress]]:
    """Listen on TCP; yields the listener and the address. Port 0 becomes the port that was free."""
    host = "127.0.0.1" if address.host == "localhost" else address.host
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server(
            (host, address.port),
            family=family,
            backlog=_BACKLOG,
            # [::] means every address, those of IPv4 too.
            dualstack_ipv6=host == "::" and socket.has_dualstack_ipv6(),
        )
    except OSError as error:
        remedy = 'choose another with --http ADDR:PORT, or none with --http ""'
        raise CannotServe(str(address), _why(error), remedy) from error
    with listener:
        listener.setblocking(False)
        # Accepted connections inherit this: an answer is sent in pieces, and none waits for the one before.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield listener, replace(address, port=listener.getsockname()[1])


@contextmanager
def on_path(path: str) -> Iterator[socket.socket]:
    """Listen on a unix socket. The socket of an agent that has ended is replaced.

    Raises:
        CannotServe: The path is too long, not writable, or in use.
    """
    if len(os.fsencode(path)) > _PATH_BYTES:
        why = f"the path is longer than {_PATH_BYTES} bytes"
        raise CannotServe(path, why, "choose a shorter --state-dir")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        try:
            inode = _bind(listener, Path(path))
        except CannotServe:
            raise
        except OSError as error:
            raise CannotServe(path, _why(error), "choose a writable --state-dir") from error
        try:
            yield listener
        finally:
            removing = threading.Thread(target=_remove, args=(Path(path), inode), daemon=True)
            removing.start()
            removing.join(REMOVED_WITHIN)  # a disk that hangs must not keep the agent from ending


def _bind(listener: socket.socket, path: Path) -> int:
    """Bind and listen; returns the inode of the path."""
    _clear(path)
    listener.bind(os.fspath(path))
    # No client can connect before `listen`, so the mode is set in time.
    path.chmod(0o600)
    listener.listen(_BACKLOG)
    listener.setblocking(False)
    return path.stat().st_ino


def _remove(path: Path, inode: int) -> None:
    """Remove the path, unless the next agent has made its own socket there."""
    with contextlib.suppress(OSError):
        if path.stat().st_ino == inode:
            path.unlink()


def _why(error: OSError) -> str:
    # The text of create_server contains the address, and CannotServe names the address too.
    return os.strerror(error.errno) if error.errno else str(error)


def _clear(path: Path) -> None:
    """Remove the socket of an agent that has ended; never a socket that answers."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise CannotServe(str(path), "something else is there", "move it away or choose another --state-dir")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except BlockingIOError:
            pass
    raise CannotServe(str(path), "another agent answers there", "stop it or choose another --state-dir")
