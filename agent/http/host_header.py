"""Refuses requests on loopback that name another host: DNS rebinding."""

from __future__ import annotations

import re
from ipaddress import ip_address

from agent.http.answer import HttpAnswer, text
from agent.vendor_api.text import shorten

_WITH_PORT = re.compile(r":\d*$")


def refusal(host: str) -> HttpAnswer | None:
    """The refusal of a request that names another host than this machine; None for a good `host`.

    A web page in a browser on this machine can use a host name that resolves to loopback. Without this check
    the page could read which pods have which cards. Without a Host header there is no browser.
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
