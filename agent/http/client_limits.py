"""Limits on what HTTP clients can cost the agent."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """What one client may cost, and what all clients together may cost."""

    #: Bytes. h11 takes a millisecond for 4 KiB of many short header lines.
    head_bytes: int = 4 * 1024
    body_bytes: int = 16 * 1024
    #: Open connections in all, and from one address.
    connections: int = 64
    per_peer: int = 16
    #: Requests on one connection; the answer to the last one closes the connection.
    requests: int = 100
    #: Seconds from the first byte of a request to its last byte, and seconds in which a client has to take an
    #: answer.
    request: float = 10.0
    #: Seconds that a connection may wait for its next request.
    idle: float = 60.0
    #: The part of the event loop's time that all requests together get. Accepting connections gets as much.
    share: float = 0.05
