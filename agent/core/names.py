"""Names that the kubelet takes: what a resource may be called."""

from __future__ import annotations

import re

from agent.core.text import shorten

#: One part of a domain name.
LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{LABEL}(?:\.{LABEL})*")
_NAME = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?")


def wrong_name(name: str) -> str | None:
    """Why the kubelet would refuse the resource name; None when it takes it."""
    prefix, slash, last = name.partition("/")
    shown = f"the resource name '{shorten(name)}'"
    if not slash:
        return f"{shown} needs a vendor's domain: vendor.com/{shorten(name, 40) or 'name'}"
    if "kubernetes.io/" in name:
        return f"{shown} must not contain 'kubernetes.io/', which is the kubelet's own"
    if name.startswith("requests."):
        return f"{shown} must not begin with 'requests.'"
    # The kubelet checks "requests." + name as a qualified name.
    if not _SUBDOMAIN.fullmatch(prefix) or len(f"requests.{prefix}") > 253:
        return f"{shown}: '{shorten(prefix)}' is not a domain of lower-case letters, digits, '-' and '.'"
    if not _NAME.fullmatch(last):
        return f"{shown}: the part after '/' is letters, digits, '-', '_', '.', no sign at its ends"
    if len(last) > 63:
        return f"{shown}: the part after '/' has {len(last)} characters, 63 are allowed"
    return None
