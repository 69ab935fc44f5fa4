"""Closing a server of asyncio's without a leak."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path


async def settled(listener: socket.socket) -> None:
    """Take nobody in any more, and let who was just taken in become a connection that can be closed.

    asyncio leaks a client that it accepted in the moment before its server is closed.
    """
    if listener.fileno() < 0:
        return  # closed by an earlier end of the same server
    asyncio.get_running_loop().remove_reader(listener)
    for _ in range(3):  # accepted, made a transport, told its protocol
        await asyncio.sleep(0)


def abandon(listener: socket.socket, path: Path) -> None:
    """Close and remove the socket of a server whose start was cancelled.

    asyncio listens before its last await, and then nothing but the loop knows of the server.
    """
    asyncio.get_running_loop().remove_reader(listener)
    listener.close()
    path.unlink(missing_ok=True)
