"""Asks the agent behind its admin socket: HTTP over a unix socket."""

from __future__ import annotations

import http.client
import os
import socket
from pathlib import Path

from agent.core.errors import AgentError
from agent.core.text import shorten

_TIMEOUT = 10.0


class CannotAsk(AgentError):
    """Raised when no running agent answers; the text names the socket and what would work."""

    def __init__(self, path: Path, why: str, remedy: str) -> None:
        super().__init__(f"no agent answers at {path}: {why}; {remedy}")


def fetch(path: Path, target: str = "/inspect", timeout: float = _TIMEOUT) -> bytes:
    """Ask the agent behind the admin socket.

    Raises:
        CannotAsk: Nobody answers, or not with what was asked for.
    """
    status, body = ask(path, "GET", target, timeout=timeout)
    if status != 200:
        told = shorten(body.decode("utf-8", "replace").strip(), 300)
        raise CannotAsk(path, f"{target} was answered {status}: {told}", "look at its log")
    return body


def ask(
    path: Path, method: str, target: str, body: bytes | None = None, timeout: float = _TIMEOUT
) -> tuple[int, bytes]:
    """Ask the agent behind the admin socket; the status and the body of its answer.

    Raises:
        CannotAsk: Nobody answers.
    """
    connection = _OverUnix(path, timeout)
    try:
        connection.request(method, target, body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except FileNotFoundError:
        remedy = "start it with `xpu-agent run`, or name its directory with --state-dir"
        raise CannotAsk(path, "there is no such socket", remedy) from None
    except ConnectionRefusedError:
        raise CannotAsk(path, "the agent that made it is gone", "start one with `xpu-agent run`") from None
    except PermissionError:
        raise CannotAsk(path, "it is not yours to ask", "ask as root, or as who runs it") from None
    except TimeoutError:
        raise CannotAsk(path, f"no answer within {timeout:g} s", "look at its log") from None
    except (OSError, http.client.HTTPException) as error:
        raise CannotAsk(
            path, shorten(str(error) or type(error).__name__), "is it the agent's socket?"
        ) from error
    finally:
        connection.close()


class _OverUnix(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(os.fspath(self._path))
