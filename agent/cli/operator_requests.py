"""An operator's words, said to the running agent, and the health of its devices, shown."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import msgspec

from agent.cli.inspect_tables import age, reason_of
from agent.core.errors import AgentError, UsageError
from agent.host.terminal import show_table
from agent.http.admin_client import ask, fetch
from agent.vendor_api.text import printable

#: A disk that hangs is waited for.
_TIMEOUT = 30.0


class CommandRefused(AgentError):
    """Raised when the agent does not do what it was told; its own words say why."""


def say(path: Path, verb: str, device: str, reason: str = "") -> str:
    """Tell the agent behind the admin socket something of a device; what came of it.

    Raises:
        CannotAsk: Nobody answers.
        Refused: It is not done, or will not outlive the agent.
        UsageError: It cannot be said.
    """
    said = {"device": device, "reason": reason, "user": os.environ.get("SUDO_USER", "")}
    for name, text in said.items():
        if not text.isascii() and any("\ud800" <= it <= "\udfff" for it in text):
            raise UsageError(f"{name}: is not UTF-8")
    status, body = ask(path, "POST", f"/health/{verb}", msgspec.json.encode(said), _TIMEOUT)
    answer = printable(body.decode("utf-8", "replace").strip())
    if status != 200:
        raise CommandRefused(answer or f"answered {status}")
    return answer


def listed(path: Path) -> list[dict[str, Any]]:
    """What the agent says of the health of each device, also of those that are remembered alone.

    Raises:
        CannotAsk: Nobody answers.
    """
    document = msgspec.json.decode(fetch(path))
    devices = ((it, True) for it in document.get("devices", ()))
    absent = ((it, False) for it in document.get("absent", ()))
    return [
        {
            "vendor": it.get("vendor"),
            "uuid": it.get("uuid"),
            "index": it.get("index"),
            "slice": it.get("slice"),
            "listed": here,
            "health": it.get("health"),
            "clearedBy": _proofs(it),
            "cordon": it.get("cordon"),
            "inUse": it.get("inUse"),
        }
        for it, here in (*devices, *absent)
    ]


def _proofs(device: Mapping[str, Any]) -> list[str]:
    """What ends its fault; an operator's word is a proof of every one that waits for some."""
    proofs = list(device.get("clearedBy") or ())
    return [*proofs, "operator"] if proofs and "operator" not in proofs else proofs


def show(
    devices: Sequence[Mapping[str, Any]], stream: TextIO | None = None, now: float | None = None
) -> None:
    """Print the devices as a table."""
    now = time.time() if now is None else now
    show_table("health", [_row(it, now) for it in devices], stream)


def _row(it: Mapping[str, Any], now: float) -> dict[str, Any]:
    health, cordon = it.get("health") or {}, it.get("cordon") or {}
    sick = health.get("state") == "unhealthy"
    return {
        "vendor": it.get("vendor"),
        "index": it.get("index") if it.get("slice") is None else f"{it.get('index')}:{it['slice']}",
        "uuid": it.get("uuid"),
        "health": health.get("state") if it.get("listed") else f"{health.get('state')} (not listed)",
        "reason": reason_of(it),
        "since": age(health.get("since"), now),
        "ends with": ", ".join(it.get("clearedBy") or (["good looks"] if sick else [])),
        "in use": it.get("inUse"),
        "cordoned by": cordon.get("author"),
        "because": cordon.get("reason"),
        "for": age(cordon.get("since"), now),
    }
