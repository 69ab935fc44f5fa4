"""Closing an asyncio server without a leak."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path


async def settled(listener: socket.socket) -> None:
    """Accept no new client, and wait until clients that were just accepted have connections to close.

    asyncio leaks a client that was accepted in the moment before its server is closed.
    """
    if listener.fileno() < 0:
        return  # closed by an earlier end of the same server
    asyncio.get_running_loop().remove_reader(listener)
    for _ in range(3):  # accepted, made a transport, told its protocol
        await asyncio.sleep(0)


def abandon(listener: socket.socket, path: Path) -> None:
    """Close and remove the socket of a server after its start was cancelled.

    asyncio listens before its last await, so a cancellation there leaves a server that only the loop knows.
    """
    asyncio.get_running_loop().remove_reader(listener)
    listener.close()
    path.unlink(missing_ok=True)
