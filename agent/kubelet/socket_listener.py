"""A listening unix socket: accepts one client in each turn of the loop, and pauses if accept fails."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import structlog

from .kubelet_errors import KubeletError

log = structlog.get_logger()

#: sun_path of Linux without its closing zero.
MAX_SOCKET_PATH = 107
_BACKLOG = 100
#: Seconds of pause after accept failed, for instance because no file descriptor is left.
ACCEPT_PAUSE = 1.0
#: Seconds between two log lines about that.
_REMIND = 60.0


def check_socket_path(path: Path) -> None:
    size = len(os.fsencode(path))
    if size > MAX_SOCKET_PATH:
        raise KubeletError(f"{path} has {size} bytes, a socket path can have {MAX_SOCKET_PATH}")


def listen(path: Path) -> socket.socket:
    """Listen at the path, for this user and root only.

    Raises:
        KubeletError: The path is too long, taken, or cannot be made.
    """
    check_socket_path(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # asyncio would unlink a socket that is in the way, even one on which a process listens.
        listener.bind(str(path))
        os.chmod(path, 0o600)
    except OSError as exc:
        listener.close()
        raise KubeletError(f"cannot serve in {path.parent}: {exc.strerror}") from exc
    listener.setblocking(False)
    listener.listen(_BACKLOG)
    return listener


async def accepted(listener: socket.socket, rest: float = ACCEPT_PAUSE) -> AsyncIterator[socket.socket]:
    """Accept every client, for ever.

    Without a free descriptor, asyncio's own loop tries a hundred times, logs each try, and sets a hundred
    timers that do the same (3.11, `_accept_connection`). It also leaks clients that connect while it closes.
    """
    loop = asyncio.get_running_loop()
    logged_at = -_REMIND
    while True:
        await anyio.wait_readable(listener)
        try:
            client, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            continue  # the client is gone again
        except OSError as exc:
            if loop.time() - logged_at >= _REMIND:
                log.warning("client not accepted, trying again", error=exc.strerror, every_seconds=rest)
                logged_at = loop.time()
            await asyncio.sleep(rest)
            continue
        client.setblocking(False)
        yield client
