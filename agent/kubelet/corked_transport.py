"""A transport that joins what is written within one turn of the event loop, and sends it in one piece."""

from __future__ import annotations

import asyncio
from typing import Any


class CorkedTransport:
    """The part of a transport that grpclib uses.

    An answer is three frames. Sent one by one, each would be a system call and would wake the kubelet.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._waiting: list[bytes] = []

    def write(self, data: bytes) -> None:
        if not self._waiting:
            self._loop.call_soon(self._hand_on)
        self._waiting.append(data)

    def _hand_on(self) -> None:
        if self._waiting:
            data, self._waiting = b"".join(self._waiting), []
            self._transport.write(data)

    def close(self) -> None:
        """Close once all written data is sent."""
        self._hand_on()
        self._transport.close()

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._transport.get_protocol()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)
