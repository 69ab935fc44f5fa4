"""Which names a device plugin may give its resource."""

from __future__ import annotations

import json
import re

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_PREFIX = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")


def quoted(text: str) -> str:
    """Print as Go's %q does, for the texts that occur here."""
    return json.dumps(text, ensure_ascii=False)


def is_extended_resource(name: str) -> bool:
    """Judge as the kubelet does: the name must also be good with the quota prefix `requests.`."""
    if "/" not in name or "kubernetes.io/" in name or name.startswith("requests."):
        return False
    prefix, _, rest = f"requests.{name}".partition("/")
    return (
        len(prefix) <= 253
        and len(rest) <= 63
        and _PREFIX.fullmatch(prefix) is not None
        and _NAME.fullmatch(rest) is not None
    )
