"""Sends an operator's command on a device to the running agent."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from agent.core.errors import AgentError, UsageError
from agent.http.admin_client import ask
from agent.vendor_api.text import printable

#: Seconds. The agent answers after it has written the command to a disk, which may be slow.
_TIMEOUT = 30.0


class CommandRefused(AgentError):
    """Raised when the agent does not carry out a command; the text is the agent's answer."""


def send(path: Path, verb: str, device: str, reason: str = "") -> str:
    """Send a command on a device to the agent behind the admin socket; the agent's answer.

    Raises:
        CannotAsk: No agent answers.
        CommandRefused: The command is not carried out, or its effect will not outlive the agent.
        UsageError: An argument cannot be sent.
    """
    request = {"device": device, "reason": reason, "user": os.environ.get("SUDO_USER", "")}
    for name, text in request.items():
        if not text.isascii() and any("\ud800" <= it <= "\udfff" for it in text):
            raise UsageError(f"{name}: is not UTF-8")
    status, body = ask(path, "POST", f"/health/{verb}", msgspec.json.encode(request), _TIMEOUT)
    answer = printable(body.decode("utf-8", "replace").strip())
    if status != 200:
        raise CommandRefused(answer or f"answered {status}")
    return answer
