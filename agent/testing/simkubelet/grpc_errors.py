"""Errors of failed calls with the texts of grpc-go."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from grpclib.const import Status
from grpclib.exceptions import GRPCError, ProtocolError, StreamTerminatedError

#: Of an answer without content-type, such as grpclib's own "no such method": grpclib's words, and grpc-go's.
NO_CONTENT_TYPE = "Missing content-type header"
GO_NO_CONTENT_TYPE = (
    "unexpected HTTP status code received from server: 200 (OK); malformed header: missing HTTP content-type"
)


class RpcError(Exception):
    """Raised when a call to a device plugin failed; the text is what a kubelet prints."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(f"rpc error: code = {_go_name(status)} desc = {message}")
        self.status = status


def _go_name(status: Status) -> str:
    if status is Status.CANCELLED:
        return "Canceled"
    return "".join(word.capitalize() for word in status.name.split("_"))


@contextmanager
def as_grpc_go(socket: Path) -> Iterator[None]:
    """Turn errors of grpclib into RpcError."""
    try:
        yield
    except GRPCError as exc:
        text = exc.message or ""
        raise RpcError(exc.status, GO_NO_CONTENT_TYPE if text == NO_CONTENT_TYPE else text) from exc
    except TimeoutError as exc:
        raise RpcError(Status.DEADLINE_EXCEEDED, "context deadline exceeded") from exc
    except (StreamTerminatedError, ProtocolError, AssertionError) as exc:
        raise RpcError(Status.UNAVAILABLE, "error reading from server: EOF") from exc
    except OSError as exc:
        why = f"dial unix {socket}: connect: {(exc.strerror or str(exc)).lower()}"
        raise RpcError(
            Status.UNAVAILABLE, f'connection error: desc = "transport: Error while dialing: {why}"'
        ) from exc
