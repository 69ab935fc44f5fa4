"""What clients can cost."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """What one client can cost, and all of them together."""

    #: A head of many short lines takes h11 a millisecond for 4 KiB.
    head_bytes: int = 4 * 1024
    body_bytes: int = 16 * 1024
    #: Connections in all, and from one address.
    connections: int = 64
    per_peer: int = 16
    #: Requests on one connection; the last answer closes it.
    requests: int = 100
    #: Seconds from the first byte of a request to its last, and for taking the answer.
    request: float = 10.0
    #: Seconds that a connection may wait for its next request.
    idle: float = 60.0
    #: Of the event loop's time: for all requests together, and as much for all who connect.
    share: float = 0.05
