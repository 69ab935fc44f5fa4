"""A connection to the kubelet that is kept while the same socket is at the path."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import anyio

from .kubelet_errors import KubeletError, KubeletRefused
from .rpc import ServerChannel, call_on


class _SocketFile(NamedTuple):
    """Identifies the socket at a path. A kubelet that starts makes another one."""

    device: int
    inode: int
    changed_ns: int


class KeptChannel:
    """Makes calls on one connection, one call at a time. A new connection costs more than the call.

    A connection is used again only if the path has the same socket as when the connection was made, and the
    last call on the connection ended with an answer. A process that ends loses the connection, and one that
    starts makes another socket, so that the answer is never that of an earlier kubelet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._channel: ServerChannel | None = None
        self._connected_to: _SocketFile | None = None

    async def call(self, method: str, request: bytes, *, timeout: float) -> bytes:
        """Call the server that listens at the path now. `timeout`: seconds, for a second try, too.

        Raises:
            KubeletRefused: The kubelet answered with an error.
            KubeletError: There was no answer, or one above MAX_ANSWER bytes.
        """
        try:
            return await self._call(method, request, timeout)
        except KubeletRefused:
            raise
        except BaseException:
            self.close()
            raise

    async def _call(self, method: str, request: bytes, timeout: float) -> bytes:
        began, at = anyio.current_time(), _socket_file(self._path)
        kept = self._channel
        if kept is not None and kept.is_connected and at is not None and at == self._connected_to:
            try:
                return await call_on(kept, method, request, timeout=timeout)
            except KubeletError as exc:
                timeout -= anyio.current_time() - began
                if isinstance(exc, KubeletRefused) or kept.is_connected or timeout <= 0:
                    raise
                # The server ended the connection, as a kubelet does that restarts.
        self.close()
        # If the socket was replaced since, `at` names the earlier one, and the next call connects again.
        self._channel, self._connected_to = ServerChannel(self._path), at
        return await call_on(self._channel, method, request, timeout=timeout)

    def close(self) -> None:
        """End the connection. A later call makes a new one."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()


def _socket_file(path: Path) -> _SocketFile | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return _SocketFile(found.st_dev, found.st_ino, found.st_ctime_ns)
