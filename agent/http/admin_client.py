"""Sends HTTP requests to an agent: over its admin socket, or over any other connection."""

from __future__ import annotations

import http.client
import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from agent.core.errors import AgentError
from agent.host import files
from agent.host.file_locks import holders, program
from agent.http.inspect_document import InspectDocument, decode
from agent.vendor_api.bounded_reads import by_size
from agent.vendor_api.text import shorten

_TIMEOUT = 10.0
#: Bytes of an answer. An agent with thousands of devices sends a few MiB.
MAX_ANSWER_BYTES = 64 << 20


class CannotAsk(AgentError):
    """Raised when no running agent answers; the text names the socket and what would work."""

    def __init__(self, path: Path, why: str, remedy: str) -> None:
        super().__init__(f"no agent answers at {path}: {why}; {remedy}")


class AnswerTooLong(AgentError):
    """Raised when an answer is longer than any that an agent gives."""

    def __init__(self) -> None:
        super().__init__(f"it answers with more than {MAX_ANSWER_BYTES >> 20} MiB, as no agent does")


def fetch(path: Path, target: str = "/inspect", timeout: float = _TIMEOUT) -> bytes:
    """The body of the answer of the agent behind the admin socket. `timeout` is in seconds.

    Raises:
        CannotAsk: No agent answers, or the status is not 200.
    """
    status, body = ask(path, "GET", target, timeout=timeout)
    if status != 200:
        text = shorten(body.decode("utf-8", "replace").strip(), 300)
        raise CannotAsk(path, f"{target} was answered {status}: {text}", "look at its log")
    return body


def fetch_document(path: Path) -> InspectDocument:
    """What the agent behind the admin socket knows.

    Raises:
        CannotAsk: No agent answers, or the answer is no inspect document.
    """
    try:
        return decode(fetch(path))
    except msgspec.MsgspecError as exc:
        why = f"/inspect was answered with something else than a JSON object: {exc}"
        raise CannotAsk(path, why, "look at which program serves the socket") from exc


def ask(
    path: Path, method: str, target: str, body: bytes | None = None, timeout: float = _TIMEOUT
) -> tuple[int, bytes]:
    """The status and the body of the answer of the agent behind the admin socket. `timeout` is in seconds.

    Raises:
        CannotAsk: No agent answers.
    """
    try:
        return answer(_OverUnix(path, timeout), method, target, body)
    except FileNotFoundError:
        raise CannotAsk(path, *_unserved(path.parent)) from None
    except NotADirectoryError:
        remedy = "name the agent's state directory with --state-dir"
        raise CannotAsk(path, f"{files.in_the_way(path.parent)} is no directory", remedy) from None
    except ConnectionRefusedError:
        raise CannotAsk(path, "the agent that made it is gone", "start one with `xpu-agent run`") from None
    except PermissionError:
        raise CannotAsk(path, "it is not yours to ask", "ask as root, or as the user that runs it") from None
    except TimeoutError:
        raise CannotAsk(path, f"no answer within {timeout:g} s", "look at its log") from None
    except (OSError, http.client.HTTPException, AnswerTooLong) as error:
        raise CannotAsk(
            path, shorten(str(error) or type(error).__name__), "is it the agent's socket?"
        ) from error


def _unserved(directory: Path) -> tuple[str, str]:
    """Why there is no socket, and what would help.

    An agent can hold the state directory and have no room for a socket there.
    """
    for name in ("agent.lock", "."):
        with suppress(OSError):
            for pid in holders(directory / name):
                holder = f"{program(pid)} (pid {pid})" if pid else "a process that is not seen from here"
                remedy = (
                    "where it has just started ask again, else its log says why, and /readyz at agent.http"
                )
                return f"{holder} holds {directory} and serves no socket there", remedy
    return "there is no such socket", "start it with `xpu-agent run`, or name its directory with --state-dir"


def answer(
    connection: http.client.HTTPConnection, method: str, target: str, body: bytes | None = None
) -> tuple[int, bytes]:
    """Send one request and close the connection; returns the status and the body.

    The timeout of the connection holds for the whole answer, even if each byte arrives in time.

    Raises:
        AnswerTooLong: The answer is longer than MAX_ANSWER_BYTES.
        TimeoutError: The answer did not arrive in time.
        OSError, http.client.HTTPException: No server is there, or no HTTP server.
    """
    until = time.monotonic() + (connection.timeout or 0)
    try:
        connection.connect()
        connection.sock = _DeadlineSocket(connection.sock, until)
        connection.request(method, target, body)
        with connection.getresponse() as response:
            content = by_size(response.read, 0, MAX_ANSWER_BYTES + 1) or b""
            if len(content) > MAX_ANSWER_BYTES:
                raise AnswerTooLong
            if response.length:
                raise http.client.IncompleteRead(content, response.length)
            return response.status, content
    finally:
        connection.close()


class _DeadlineSocket(socket.socket):
    """A connected socket with one deadline; a plain socket starts its timeout again with each byte."""

    def __init__(self, connected: socket.socket, until: float) -> None:
        super().__init__(fileno=connected.detach())
        self._until = until
        self.settimeout(max(self._left, 0.001))

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        if (left := self._left) <= 0:
            raise TimeoutError("timed out")
        self.settimeout(left)
        return super().recv_into(buffer, nbytes, flags)

    @property
    def _left(self) -> float:
        return self._until - time.monotonic()


class _OverUnix(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(os.fspath(self._path))
