"""`inspect --format NAME`: what the agent shows in the format of a vendor's own tool."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from agent.core.errors import AgentError
from agent.http.admin_client import ask
from agent.vendor_api.text import shorten


class NoSuchFormat(AgentError):
    """Raised when the agent has no format of this name, or nothing to show in it."""


def in_format(socket: Path, name: str) -> str:
    """What the agent behind the admin socket shows in a vendor's format.

    Raises:
        CannotAsk: No agent answers.
        NoSuchFormat: There is no format of this name, or the format has nothing to show.
    """
    status, body = ask(socket, "GET", f"/inspect/{quote(name, safe='')}")
    shown = body.decode("utf-8", "replace")
    if status != 200:
        raise NoSuchFormat(shorten(shown.strip(), 300))
    return shown
