"""Names that Kubernetes accepts: rules for resource names and for labels."""

from __future__ import annotations

import re

from agent.vendor_api.label_values import LABEL_LIMIT
from agent.vendor_api.text import shorten

#: One part of a domain name.
LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{LABEL}(?:\.{LABEL})*")
_NAME = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?")


def wrong_name(name: str) -> str | None:
    """Why the kubelet would refuse the resource name; None where the kubelet accepts the name."""
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


def wrong_label(key: str, value: str) -> str | None:
    """Why Kubernetes would refuse the label; None where Kubernetes accepts the label."""
    domain, slash, last = key.rpartition("/")
    shown = f"the label '{shorten(key)}'"
    if slash and not (_SUBDOMAIN.fullmatch(domain) and len(domain) <= 253):
        return f"{shown}: '{shorten(domain)}' is not a domain of lower-case letters, digits, '-' and '.'"
    if not _NAME.fullmatch(last) or len(last) > LABEL_LIMIT:
        return f"{shown}: a name of 1 to 63 letters, digits, '-', '_', '.' is needed, no sign at its ends"
    if (value and not _NAME.fullmatch(value)) or len(value) > LABEL_LIMIT:
        return f"{shown} has the value '{shorten(value)}': at most 63 letters, digits, '-', '_', '.' work"
    return None
