"""Refuses requests on loopback that name another host: DNS rebinding."""

from __future__ import annotations

import re
from ipaddress import ip_address

from agent.http.answer import Answer, text
from agent.vendor_api.text import shorten

_WITH_PORT = re.compile(r":\d*$")


def refusal(host: str) -> Answer | None:
    """The answer for a client on this machine whose Host header names another one; None for all others.

    A page in a browser on this machine can have a name that leads to loopback, and would read the views.
    """
    if not host or _is_loopback(host):
        return None
    return text(421, f"this is not '{shorten(host, 60)}'; ask 127.0.0.1, [::1] or localhost")


def _is_loopback(host: str) -> bool:
    name = host.rpartition(":")[0] if _WITH_PORT.search(host) else host
    if name.lower() == "localhost":
        return True
    try:
        return ip_address(name.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False
